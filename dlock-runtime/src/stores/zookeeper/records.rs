//! The records that prove grants: nodes, and when each was last seen in the store.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use zookeeper_client::Error;

use super::nodes::Node;
use super::session::AT_ONCE;
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::since::held;
use crate::sync::Mutex;

/// A node that holds a lock, or that nobody wants any more.
pub(crate) struct Record {
    pub(super) node: Node,
    /// The ttl of its lease.
    ttl: Duration,
    /// When the question was sent that last showed the node. `None`: it is not there.
    seen_at: Mutex<Option<Instant>>,
    since: Mutex<Since>,
}

/// Whether the node is to say since when the lock is held.
enum Since {
    /// With the first renewal.
    Later(u64),
    /// With the next look at the node, which then has this content.
    Now(Arc<[u8]>),
    /// It says so, or has nothing to say.
    Settled,
}

/// The nodes that hold locks.
#[derive(Default)]
pub(super) struct Held(Mutex<Vec<Weak<Record>>>);

/// What the server has refused: each lease whose node this session may not look at, and why.
#[derive(Default)]
pub(super) struct Refusals(Vec<(Arc<Record>, Failure)>);

impl Refusals {
    pub(super) fn of(&self, record: &Arc<Record>) -> Option<&Failure> {
        let is_it = |(refused, _): &&(Arc<Record>, Failure)| Arc::ptr_eq(refused, record);
        self.0.iter().find(is_it).map(|(_, failure)| failure)
    }

    fn note(&mut self, record: Arc<Record>, error: Error) {
        let failure = record.node.session.refused(&record.node.path(), error);
        self.0.push((record, failure));
    }
}

impl Record {
    fn new(node: Node, ttl: Duration, seen_at: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            since: Mutex::new(node.since.map_or(Since::Settled, Since::Later)),
            node,
            ttl,
            seen_at: Mutex::new(seen_at),
        })
    }

    /// For a node that nobody wants, if it is there.
    pub(super) fn left(node: Node) -> Arc<Self> {
        Self::new(node, Duration::ZERO, None)
    }

    /// When it was last seen. `None`: it is not there any more.
    pub(super) fn seen_at(&self) -> Option<Instant> {
        self.seen_at.lock().filter(|_| !self.node.session.is_over())
    }

    /// Whether the node must be looked at to say since when the lock is held, now that the lock is
    /// renewed. With another ttl than before it is not: that keeps the lock (`min_hold`).
    pub(super) fn is_to_say_since(&self, request: &Request) -> bool {
        let says = {
            let mut since = self.since.lock();
            if let Since::Later(ms) = *since
                && request.ttl == self.ttl
            {
                let text = held(&request.owner.to_string(), Some(ms));
                *since = Since::Now(text.into_bytes().into());
            }
            matches!(*since, Since::Now(_))
        };
        says && self.seen_at().is_some()
    }

    /// Its node was there at this time.
    fn note_seen(&self, at: Instant) {
        let mut seen_at = self.seen_at.lock();
        *seen_at = seen_at.map(|last| last.max(at));
    }

    fn to_say(&self) -> Option<Arc<[u8]>> {
        match &*self.since.lock() {
            Since::Now(text) => Some(Arc::clone(text)),
            Since::Later(_) | Since::Settled => None,
        }
    }

    /// Whether the node must be looked at before a lease of this ttl can be extended. A look within
    /// the last sixth of the ttl is enough, as renewals come at a third. A renewal with another ttl
    /// than before says how long the lock is kept (`min_hold`), and always takes a look.
    pub(super) fn is_to_be_seen(&self, ttl: Duration, now: Instant) -> bool {
        let enough = if ttl == self.ttl {
            ttl / 6
        } else {
            Duration::ZERO
        };
        self.seen_at().is_some_and(|seen_at| now > seen_at + enough)
    }
}

impl Held {
    pub(super) fn enter(&self, node: Node, ttl: Duration, seen_at: Instant) -> Arc<Record> {
        let record = Record::new(node, ttl, Some(seen_at));
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|record| record.strong_count() > 0);
            let living = all.len();
            all.reserve(living);
        }
        all.push(Arc::downgrade(&record));
        record
    }

    /// Looks at the nodes of these leases, if there are any, and then also at all others that have
    /// not been seen for a while. So renewals that are due one by one share a look. A node that may
    /// not be looked at is noted in `refusals`, and is no failure of the others.
    pub(super) async fn look_at(
        &self,
        mut due: Vec<Arc<Record>>,
        now: Instant,
        deadline: Deadline,
        refusals: &mut Refusals,
    ) -> Result<(), Failure> {
        if due.is_empty() {
            return Ok(());
        }
        let is_unseen = |record: &Arc<Record>| record.is_to_be_seen(record.ttl, now);
        due.retain(|record| !is_unseen(record));
        let held: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        due.extend(held.into_iter().filter(is_unseen));
        for records in due.chunks(AT_ONCE) {
            look_at_some(records.to_vec(), deadline, refusals).await?;
        }
        Ok(())
    }
}

/// Checks in one transaction that the nodes exist, and writes what they are to say. If one does not
/// exist, or may not be looked at, the others are checked in another transaction. All are of one
/// session: those of an ended session are gone with it.
async fn look_at_some(
    mut records: Vec<Arc<Record>>,
    deadline: Deadline,
    refusals: &mut Refusals,
) -> Result<(), Failure> {
    while let Some(first) = records.first() {
        let session = Arc::clone(&first.node.session);
        let nodes = records
            .iter()
            .map(|record| (record.node.path(), record.to_say()));
        let nodes: Vec<_> = nodes.collect();
        match session.check(&nodes, deadline).await? {
            Ok(sent_at) => {
                for (record, (_, said)) in records.drain(..).zip(nodes) {
                    record.note_seen(sent_at);
                    if said.is_some() {
                        *record.since.lock() = Since::Settled;
                    }
                }
            }
            Err((missing, Error::NoNode)) => *records.remove(missing).seen_at.lock() = None,
            // The lease does not depend on what its node says.
            Err((refused, _)) if nodes[refused].1.is_some() => {
                *records[refused].since.lock() = Since::Settled;
            }
            Err((refused, error)) => refusals.note(records.remove(refused), error),
        }
    }
    Ok(())
}
