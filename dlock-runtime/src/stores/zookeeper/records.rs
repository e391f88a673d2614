//! What proves the grants of this process: nodes, and when each was last seen in
//! the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::errors::Failed;
use super::nodes::Node;
use super::session::{Checked, Session};
use crate::backend::Owner;
use crate::deadline::Deadline;

/// How many bytes of paths go into one transaction: the server takes a megabyte
/// (`jute.maxbuffer`).
const MOST_BYTES: usize = 256 * 1024;

/// A node that holds a lock; or one that nobody wants.
pub(crate) struct Record {
    pub(super) node: Node,
    /// Of its lease.
    ttl: Duration,
    seen: Mutex<Seen>,
    among: Option<(Owner, Arc<Held>)>,
}

#[derive(Clone, Copy)]
enum Seen {
    /// By the question that was sent then.
    At(Instant),
    /// It is not there.
    Gone,
}

/// The nodes that hold locks.
#[derive(Default)]
pub(super) struct Held(Mutex<HashMap<Owner, Weak<Record>>>);

impl Record {
    pub(super) fn held(
        held: &Arc<Held>,
        owner: Owner,
        node: Node,
        ttl: Duration,
        seen_at: Instant,
    ) -> Arc<Self> {
        let record = Arc::new(Self {
            node,
            ttl,
            seen: Mutex::new(Seen::At(seen_at)),
            among: Some((owner, Arc::clone(held))),
        });
        held.nodes().insert(owner, Arc::downgrade(&record));
        record
    }

    /// Nobody wants the node, if it is there.
    pub(super) fn left(node: Node) -> Arc<Self> {
        Arc::new(Self {
            node,
            ttl: Duration::ZERO,
            seen: Mutex::new(Seen::Gone),
            among: None,
        })
    }

    /// When it was last seen. `None`: it is not there any more.
    pub(super) fn seen_at(&self) -> Option<Instant> {
        match *self.seen() {
            Seen::At(instant) if !self.node.session.is_over() => Some(instant),
            Seen::At(_) | Seen::Gone => None,
        }
    }

    /// Whether a lease of this ttl cannot be extended by what is known.
    pub(super) fn is_to_be_seen_for(&self, ttl: Duration, now: Instant) -> bool {
        // What asks for another time than before is about to be kept or left.
        self.is_to_be_seen(now) || (ttl != self.ttl && self.seen_at().is_some())
    }

    /// Often enough for a renewal that comes at a third of the ttl.
    fn is_to_be_seen(&self, now: Instant) -> bool {
        let since = |seen| now.saturating_duration_since(seen);
        self.seen_at()
            .is_some_and(|seen| since(seen) > self.ttl / 6)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some((owner, held)) = self.among.take() {
            held.nodes().remove(&owner);
        }
    }
}

impl Held {
    /// Looks at the nodes of these owners, and at all others that have not been seen
    /// for a while, whether their leases are to be renewed now or soon: renewals
    /// that are due one by one share it.
    pub(super) async fn look_at(
        &self,
        owners: &HashSet<Owner>,
        session: &Arc<Session>,
        now: Instant,
        deadline: Deadline,
    ) -> Result<(), Failed> {
        let mut records = self.records();
        records.retain(|(owner, record)| {
            Arc::ptr_eq(&record.node.session, session)
                && (owners.contains(owner) || record.is_to_be_seen(now))
        });
        while !records.is_empty() {
            let mut bytes = 0;
            let count = records.iter().take_while(|(_, record)| {
                bytes += record.node.path().len() + 32;
                bytes <= MOST_BYTES
            });
            let count = count.count().max(1);
            let batch = records.drain(..count).map(|(_, record)| record);
            look_at_batch(session, batch.collect(), deadline).await?;
        }
        Ok(())
    }

    fn records(&self) -> Vec<(Owner, Arc<Record>)> {
        let nodes = self.nodes();
        let held = nodes.iter();
        held.filter_map(|(&owner, record)| Some((owner, record.upgrade()?)))
            .collect()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Owner, Weak<Record>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that the nodes exist, in one transaction; without those that do not, in
/// another.
async fn look_at_batch(
    session: &Session,
    mut records: Vec<Arc<Record>>,
    deadline: Deadline,
) -> Result<(), Failed> {
    while !records.is_empty() {
        let paths = records.iter().map(|record| record.node.path());
        match session.check(paths, deadline).await? {
            Checked::There(sent_at) => {
                for record in records.drain(..) {
                    let mut seen = record.seen();
                    if let Seen::At(last) = &mut *seen {
                        *last = sent_at.max(*last);
                    }
                }
            }
            Checked::Missing(index) => *records.remove(index).seen() = Seen::Gone,
        }
    }
    Ok(())
}
