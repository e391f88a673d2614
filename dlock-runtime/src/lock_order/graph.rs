//! The edges that were seen, the circles they form, and those that have been warned of.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::Location;

use super::edge::{Edge, Node};

/// How many edges are remembered. Beyond that, the oldest edge that was not seen again is
/// forgotten: keys that are used once make way, and the order of a service's own templates stays.
pub(super) const MOST_EDGES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Graph {
    /// By the lock that was held. The inner map is sorted, so that every run finds the same circle.
    edges: HashMap<Node, BTreeMap<Target, Known>>,
    /// All edges, the oldest first.
    ages: VecDeque<(Node, Target)>,
}

/// Where an edge leads, and whether it rises. Rising and falling edges between the same locks are
/// separate.
type Target = (Node, bool);

#[derive(Debug)]
struct Known {
    edge: Edge,
    seen_again: bool,
}

impl Graph {
    /// Whether the edge is known; if so, marks it as seen again.
    pub(super) fn knows(&mut self, edge: &Edge) -> bool {
        let known = self
            .edges
            .get_mut(&edge.held.node)
            .and_then(|targets| targets.get_mut(&target(edge)));
        known.map(|known| known.seen_again = true).is_some()
    }

    /// Remembers an edge that is not known.
    pub(super) fn add(&mut self, edge: Edge) {
        while self.ages.len() >= MOST_EDGES {
            self.forget_one();
        }
        let (held, target) = (edge.held.node.clone(), target(&edge));
        self.ages.push_back((held.clone(), target.clone()));
        let known = Known {
            edge,
            seen_again: false,
        };
        self.edges.entry(held).or_default().insert(target, known);
    }

    /// The shortest path from what `closing` wants back to what it holds, with `closing` itself
    /// first.
    ///
    /// If every key of a path is greater than the one before, or every key less, there is no circle
    /// among the keys themselves, even if there is one among their templates: somewhere it would
    /// have to turn.
    pub(super) fn circle(&self, closing: &Edge) -> Option<Vec<Edge>> {
        let start = (&closing.wanted.node, senses((false, false), closing));
        let mut reached_by = HashMap::from([(start, None)]);
        let mut queue = VecDeque::from([start]);
        while let Some(here) = queue.pop_front() {
            let (node, sensed) = here;
            if *node == closing.held.node && sensed == (true, true) {
                let way_back =
                    std::iter::successors(reached_by[&here], |(_, from)| reached_by[from]);
                let mut circle: Vec<_> = way_back.map(|(edge, _)| Edge::clone(edge)).collect();
                circle.push(closing.clone());
                circle.reverse();
                return Some(circle);
            }
            for known in self.edges.get(node).into_iter().flat_map(BTreeMap::values) {
                let edge = &known.edge;
                let there = (&edge.wanted.node, senses(sensed, edge));
                if let Entry::Vacant(unseen) = reached_by.entry(there) {
                    unseen.insert(Some((edge, here)));
                    queue.push_back(there);
                }
            }
        }
        None
    }

    fn forget_one(&mut self) {
        while let Some((held, target)) = self.ages.pop_front() {
            let Entry::Occupied(mut targets) = self.edges.entry(held.clone()) else {
                continue;
            };
            if let Some(known) = targets.get_mut().get_mut(&target)
                && known.seen_again
            {
                known.seen_again = false;
                self.ages.push_back((held, target));
                continue;
            }
            targets.get_mut().remove(&target);
            if targets.get().is_empty() {
                targets.remove();
            }
            return;
        }
    }
}

fn target(edge: &Edge) -> Target {
    (edge.wanted.node.clone(), edge.rises())
}

/// Whether any edge of a path rises, and whether any falls, including this one.
fn senses((rising, falling): (bool, bool), edge: &Edge) -> (bool, bool) {
    (rising || edge.rises(), falling || !edge.rises())
}

type Site = &'static Location<'static>;

/// How many warnings the same call sites may cause. Code with one function for all locks has one
/// call site for every key, so other keys there are another mistake; but a hundred such warnings
/// would not help.
const MOST_OF_SAME_SITES: usize = 8;

/// How many sets of call sites may cause warnings.
const MOST_SITES: usize = 256;

/// The circles that have been warned of, by the call sites of their edges.
#[derive(Debug, Default)]
pub(super) struct Warned {
    circles: HashMap<Vec<(Site, Site)>, Vec<Vec<Node>>>,
}

impl Warned {
    /// Whether to warn of this circle, which happens once.
    pub(super) fn add(&mut self, circle: &[Edge]) -> bool {
        let sites = sorted(circle.iter().map(|edge| (edge.held.site, edge.wanted.site)));
        if self.circles.len() >= MOST_SITES && !self.circles.contains_key(&sites) {
            return false;
        }
        let nodes = sorted(circle.iter().map(|edge| edge.held.node.clone()));
        let warned = self.circles.entry(sites).or_default();
        let is_new = warned.len() < MOST_OF_SAME_SITES && !warned.contains(&nodes);
        if is_new {
            warned.push(nodes);
        }
        is_new
    }
}

/// The parts of a circle in a fixed order, whichever part it begins with.
fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut sorted = Vec::new();
    // There are a few, and a sort is much code.
    for item in items {
        let at = sorted.partition_point(|it| *it <= item);
        sorted.insert(at, item);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_order::edge::tests::edge;

    fn size(graph: &Graph) -> (usize, usize, usize) {
        let edges = graph.edges.values().map(BTreeMap::len).sum();
        (edges, graph.edges.len(), graph.ages.len())
    }

    fn see(graph: &mut Graph, edge: Edge) {
        if !graph.knows(&edge) {
            graph.add(edge);
        }
    }

    #[test]
    fn any_number_of_keys_costs_no_more_than_the_bound() {
        let mut graph = Graph::default();
        for key in 0..100_000 {
            see(&mut graph, edge(&format!("order:{key}"), "audit"));
            assert!(graph.ages.len() <= MOST_EDGES);
        }
        assert_eq!(size(&graph), (MOST_EDGES, MOST_EDGES, MOST_EDGES));
        for key in 0..10_000 {
            see(&mut graph, edge("nightly", &format!("order:{key}")));
        }
        assert_eq!(size(&graph), (MOST_EDGES, 1, MOST_EDGES));
    }

    #[test]
    fn what_is_seen_again_outlives_what_is_not() {
        let mut graph = Graph::default();
        see(&mut graph, edge("a", "b"));
        see(&mut graph, edge("b", "c"));
        for key in 0..10 * MOST_EDGES {
            see(&mut graph, edge(&format!("order:{key}"), "audit"));
            if key % (MOST_EDGES / 2) == 0 {
                assert!(graph.knows(&edge("b", "c")), "forgotten at {key}");
            }
        }
        assert!(!graph.knows(&edge("a", "b")));
        assert_eq!(graph.circle(&edge("c", "b")).map(|c| c.len()), Some(2));
    }

    #[test]
    fn all_that_is_seen_again_is_bounded_too() {
        let mut graph = Graph::default();
        for key in 0..3 * MOST_EDGES {
            let edge = edge(&format!("order:{key}"), "audit");
            see(&mut graph, edge.clone());
            see(&mut graph, edge);
        }
        assert_eq!(size(&graph), (MOST_EDGES, MOST_EDGES, MOST_EDGES));
    }

    #[test]
    fn a_circle_is_the_same_from_wherever_it_is_closed() {
        let [ab, bc, ca] = [edge("a", "b"), edge("b", "c"), edge("c", "a")];
        let mut warned = Warned::default();
        assert!(warned.add(&[ab.clone(), bc.clone(), ca.clone()]));
        assert!(!warned.add(&[bc.clone(), ca.clone(), ab.clone()]));
        assert!(!warned.add(&[ca, ab, bc]));
    }

    #[test]
    fn other_keys_at_the_same_places_are_told_a_few_times() {
        let mut warned = Warned::default();
        let new = (0..1000).filter(|n| {
            let (a, b) = (format!("{n}:a"), format!("{n}:b"));
            warned.add(&[edge(&a, &b), edge(&b, &a)])
        });
        assert_eq!(new.count(), MOST_OF_SAME_SITES);
        assert_eq!(warned.circles.len(), 1);
    }

    #[test]
    fn any_number_of_places_costs_no_more_than_the_bound() {
        let mut warned = Warned::default();
        let circle = vec![edge("a", "b"); 1000];
        let new = (1..1000).filter(|length| warned.add(&circle[..*length]));
        assert_eq!(new.count(), MOST_SITES);
        assert_eq!(warned.circles.len(), MOST_SITES);
    }
}
