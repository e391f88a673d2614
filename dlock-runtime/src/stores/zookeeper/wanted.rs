//! Which nodes of a session somebody wants, so that the others can be swept away.
//!
//! A creation can arrive after a later question of its session was answered with "no such node". A
//! follower that is cut off from the leader takes up the creation, and is silent, so the client
//! leaves it. Perhaps the client asks there for its session again, gives that up too, and is served
//! by another server, which finds no node. When the follower reaches the leader again, the leader
//! is told of both: the creation, and that the session has moved back. It notes the second at once,
//! in `LearnerHandler`. Another thread, `PrepRequestProcessor`, looks at the first: by then, it
//! comes from where the session is. (So in ZooKeeper 3.8. In the other order, it would be refused.)
//! Nothing that a client can ask for rules this out.
//!
//! Such a node would keep its lock for nobody, for as long as the session lasts. But it is one of
//! the session's nodes, which the server lists, and nobody here claims it.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::sync::Mutex;

/// Says that somebody wants a node, which may not be there yet.
pub(super) struct Claim {
    /// The beginning of its path: all but the number.
    start: String,
    path: Mutex<Option<String>>,
}

#[derive(Default)]
pub(super) struct Wanted {
    claims: Mutex<Vec<Weak<Claim>>>,
    /// How many creations may still come that nobody knows of any more.
    doubts: watch::Sender<u64>,
}

impl Claim {
    /// The node has this path.
    pub(super) fn is(&self, path: String) {
        *self.path.lock() = Some(path);
    }
}

impl Wanted {
    /// Claims a node whose path begins like this. Call this before the creation is sent.
    pub(super) fn claim(&self, start: &str) -> Arc<Claim> {
        let claim = Arc::new(Claim {
            start: start.to_owned(),
            path: Mutex::default(),
        });
        let mut claims = self.claims.lock();
        if claims.len() == claims.capacity() {
            claims.retain(|claim| claim.strong_count() > 0);
            let living = claims.len();
            claims.reserve(living.max(8));
        }
        claims.push(Arc::downgrade(&claim));
        claim
    }

    /// A creation was neither answered nor found.
    pub(super) fn doubt(&self) {
        self.doubts.send_modify(|number| *number += 1);
    }

    pub(super) fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    /// Those of the session's nodes that nobody wants. If a request has two nodes, this is the one
    /// that it does not know; if it knows neither, both stay.
    pub(super) fn not_among(&self, mut nodes: Vec<String>) -> Vec<String> {
        let claims: Vec<_> = {
            let claims = self.claims.lock();
            claims.iter().filter_map(Weak::upgrade).collect()
        };
        let (mut known, mut unknown) = (HashSet::new(), Vec::new());
        for claim in &claims {
            match claim.path.lock().clone() {
                Some(path) => drop(known.insert(path)),
                None => unknown.push(claim.start.as_str()),
            }
        }
        let may_be = |path: &String| unknown.iter().any(|start| path.starts_with(start));
        nodes.retain(|path| !known.contains(path) && !may_be(path));
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_wanted_for_as_long_as_somebody_claims_them() {
        let wanted = Wanted::default();
        let unwanted = |paths: &[&str]| {
            let paths = paths.iter().map(|&path| path.to_owned());
            wanted.not_among(paths.collect())
        };
        let (one, other) = (wanted.claim("/a/1-lock-"), wanted.claim("/a/2-lock-"));
        assert_eq!(
            unwanted(&["/a/1-lock-0000000001", "/a/3-lock-0000000002"]),
            ["/a/3-lock-0000000002"]
        );
        one.is("/a/1-lock-0000000003".into());
        let all = [
            "/a/1-lock-0000000001",
            "/a/1-lock-0000000003",
            "/a/2-lock--000000004",
        ];
        assert_eq!(unwanted(&all), [all[0]]);
        drop(other);
        assert_eq!(unwanted(&all), [all[0], all[2]]);
        drop(one);
        assert_eq!(unwanted(&all), all);
    }

    #[test]
    fn claims_of_the_past_are_forgotten() {
        let wanted = Wanted::default();
        let kept = wanted.claim("/a/kept-lock-");
        for _ in 0..1000 {
            wanted.claim("/a/1-lock-");
        }
        assert!(wanted.claims.lock().capacity() <= 64);
        drop(kept);
    }
}
