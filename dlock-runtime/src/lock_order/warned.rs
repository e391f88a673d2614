//! The circles that have been warned of.

use std::collections::HashMap;
use std::panic::Location;

use super::edge::{Edge, Node};

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
