//! What proves the grants of this process: nodes, and when each was last seen in
//! the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::errors::Failed;
use super::nodes::Node;
use super::session::Checked;
use crate::deadline::Deadline;
use crate::store::{Due, Store};

/// How many bytes of paths go into one transaction: the server takes a megabyte
/// (`jute.maxbuffer`).
const MOST_BYTES: usize = 256 * 1024;

/// A node that holds a lock; or one that nobody wants.
pub(crate) struct Record {
    pub(super) node: Node,
    /// Of its lease.
    ttl: Duration,
    /// By the question that was sent then. `None`: it is not there.
    seen_at: Mutex<Option<Instant>>,
}

/// The nodes that hold locks.
#[derive(Default)]
pub(super) struct Held(Mutex<Vec<Weak<Record>>>);

impl Record {
    fn new(node: Node, ttl: Duration, seen_at: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            node,
            ttl,
            seen_at: Mutex::new(seen_at),
        })
    }

    /// Nobody wants the node, if it is there.
    pub(super) fn left(node: Node) -> Arc<Self> {
        Self::new(node, Duration::ZERO, None)
    }

    /// When it was last seen. `None`: it is not there any more.
    pub(super) fn seen_at(&self) -> Option<Instant> {
        self.seen().filter(|_| !self.node.session.is_over())
    }

    /// Whether a lease of this ttl cannot be extended by what is known. It is seen
    /// often enough for a renewal that comes at a third of the ttl; and what asks for
    /// another time than before is about to be kept or left.
    pub(super) fn is_to_be_seen(&self, ttl: Duration, now: Instant) -> bool {
        let enough = if ttl == self.ttl {
            ttl / 6
        } else {
            Duration::ZERO
        };
        self.seen_at().is_some_and(|seen_at| now > seen_at + enough)
    }

    fn seen(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.seen_at)
    }
}

impl Held {
    pub(super) fn enter(&self, node: Node, ttl: Duration, seen_at: Instant) -> Arc<Record> {
        let record = Record::new(node, ttl, Some(seen_at));
        let mut all = lock(&self.0);
        if all.len() == all.capacity() {
            all.retain(|record| record.strong_count() > 0);
        }
        all.push(Arc::downgrade(&record));
        record
    }

    /// Looks at the nodes of leases that cannot be extended by what is known; and then
    /// at all others that have not been seen for a while: renewals that are due one
    /// by one share it.
    pub(super) async fn look_at(
        &self,
        due: &[Due<impl Store<Record = Arc<Record>>>],
        now: Instant,
        deadline: Deadline,
    ) -> Result<(), Failed> {
        let is_unseen = |record: &Arc<Record>| record.is_to_be_seen(record.ttl, now);
        let due = due.iter().filter_map(|due| {
            let record = due.record.as_ref()?;
            record.is_to_be_seen(due.request.ttl, now).then_some(record)
        });
        let due: Vec<_> = due.cloned().collect();
        if due.is_empty() {
            return Ok(());
        }
        let mut records: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        records.retain(is_unseen);
        records.extend(due.into_iter().filter(|record| !is_unseen(record)));
        while !records.is_empty() {
            let mut bytes = 0;
            let fits = records.iter().take_while(|record| {
                bytes += record.node.path().len() + 32;
                bytes <= MOST_BYTES
            });
            let fits = fits.count().max(1);
            look_at_batch(records.drain(..fits).collect(), deadline).await?;
        }
        Ok(())
    }
}

/// Checks that the nodes exist, in one transaction; without those that do not, in
/// another. All are of one session: those of one that has ended are gone with it.
async fn look_at_batch(mut records: Vec<Arc<Record>>, deadline: Deadline) -> Result<(), Failed> {
    while let Some(first) = records.first() {
        let session = Arc::clone(&first.node.session);
        let paths = records.iter().map(|record| record.node.path());
        match session.check(paths, deadline).await? {
            Checked::There(sent_at) => {
                for record in records.drain(..) {
                    let mut seen = record.seen();
                    *seen = seen.map(|last| last.max(sent_at));
                }
            }
            Checked::Missing(index) => *records.remove(index).seen() = None,
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
