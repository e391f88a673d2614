//! Lock-order detection: which locks were taken while which were held, and a warning when an order
//! closes a circle, before anybody waits in it.
//!
//! The reasons for this design: `docs/design/lock_order.md`.

mod edge;
mod graph;
mod warning;

use std::collections::HashSet;
use std::sync::Arc;

pub(crate) use self::edge::WrittenLock;
use crate::key::LockKey;
use crate::options::Options;
use crate::sync::Mutex;
use edge::Edge;
use graph::{Graph, Warned};

/// How many names of a key, and how many held locks, are considered.
const MOST_LOCKS: usize = 16;

/// What one manager has seen of the order in which locks are taken.
#[derive(Debug, Default)]
pub(crate) struct LockOrder {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    graph: Graph,
    warned: Warned,
}

impl LockOrder {
    /// Records that the calling code, which holds `held`, is about to wait for the locks of `key`.
    /// Warns if that closes a circle.
    pub(crate) fn about_to_wait(
        &self,
        key: &LockKey,
        options: &Options,
        held: impl Iterator<Item = WrittenLock>,
    ) {
        let mut names = HashSet::new();
        let distinct = held.filter(|lock| names.insert(Arc::clone(&lock.name)));
        let held: Vec<_> = distinct.take(MOST_LOCKS).collect();
        if held.is_empty() && key.single().is_some() {
            return;
        }
        let circle = self.seen.lock().note(edges(&held, key, options));
        // After the mutex is released: a subscriber's code is not ours.
        if let Some(circle) = circle {
            tracing::warn!(
                target: "dlock::order",
                circle = %warning::path(&circle),
                "{}", warning::text(&circle)
            );
        }
    }
}

impl Seen {
    /// Adds the new edges, and returns the circle to warn of. If a call closes several circles,
    /// only the shortest new one is returned: it is the same mistake.
    fn note(&mut self, edges: Vec<Edge>) -> Option<Vec<Edge>> {
        let mut circles = Vec::<Vec<_>>::new();
        for edge in edges {
            if self.graph.knows(&edge) {
                continue;
            }
            circles.extend(self.graph.circle(&edge));
            self.graph.add(edge);
        }
        // Searched instead of sorted: there are a few, and a sort is much code.
        while let Some((at, _)) = circles.iter().enumerate().min_by_key(|(_, it)| it.len()) {
            let shortest = circles.remove(at);
            if self.warned.add(&shortest) {
                return Some(shortest);
            }
        }
        None
    }
}

/// What each of the locks of `key` has to wait for: those that are held, and the one before it,
/// since they are taken in the order of their names.
fn edges(held: &[WrittenLock], key: &LockKey, options: &Options) -> Vec<Edge> {
    let mut names = key.distinct();
    names.retain(|name| held.iter().all(|lock| lock.name != *name));
    names.sort_unstable();
    names.truncate(MOST_LOCKS);
    let wanted: Vec<_> = names
        .iter()
        .map(|name| WrittenLock::new(name, options.mode, options.origin(key, name)))
        .collect();
    let nested = |wanted| held.iter().map(move |held| Edge::new(held, wanted, false));
    let mut edges: Vec<_> = wanted.iter().flat_map(nested).collect();
    let at_once = wanted.windows(2);
    edges.extend(at_once.map(|pair| Edge::new(&pair[0], &pair[1], true)));
    edges
}

#[cfg(test)]
mod tests {
    use super::edge::tests::edge;
    use super::*;

    #[test]
    fn a_circle_that_was_forgotten_is_not_told_again() {
        let mut seen = Seen::default();
        let (ab, ba) = (edge("a", "b"), edge("b", "a"));
        assert!(seen.note(vec![ab.clone()]).is_none());
        assert!(seen.note(vec![ba.clone()]).is_some());
        for key in 0..2 * graph::MOST_EDGES {
            seen.note(vec![edge(&format!("order:{key}"), "audit")]);
        }
        assert!(!seen.graph.knows(&ba));
        assert!(seen.note(vec![ab]).is_none());
        assert!(seen.note(vec![ba]).is_none());
    }
}
