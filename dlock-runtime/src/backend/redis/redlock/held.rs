//! What this process holds, and where: which vote stands for a lease, and the
//! nodes that have it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::connection::Connection;
use super::nodes::NodeSet;
use crate::backend::clock::Deadline;
use crate::backend::{Owner, Request};

/// An entry is kept for so many ttls after the lease was last extended, as a
/// release may come late. Nobody would take it out if none came at all.
const KEPT: u32 = 4;

/// The leases of this process.
#[derive(Default)]
pub(super) struct Held(Mutex<Table>);

#[derive(Default)]
struct Table {
    leases: HashMap<Owner, Entry>,
    /// So many entries before the next look for old ones.
    full: usize,
}

struct Entry {
    lease: HeldLease,
    until: Deadline,
}

/// One lease.
#[derive(Clone)]
pub(super) struct HeldLease {
    /// As whom the nodes know the holder. Each election has an owner of its
    /// own: what is still on its way from one that was lost must not touch the
    /// votes of the next.
    pub(super) owner: Owner,
    /// The last of its token numbers.
    pub(super) last_token: u64,
    /// The nodes that have the vote, and whose counter is at `last_token` or
    /// above. Only they count.
    pub(super) sure: NodeSet,
    /// Other nodes that may have the vote.
    pub(super) unsure: NodeSet,
    /// Where the vote was still on its way when the lock was granted, and over
    /// which connection.
    pub(super) in_flight: Vec<(usize, Connection)>,
}

impl HeldLease {
    /// All nodes that may have the vote.
    pub(super) fn voters(&self) -> NodeSet {
        let in_flight = self.in_flight.iter().map(|(node, _)| *node).collect();
        self.sure.with(self.unsure).with(in_flight)
    }
}

impl Held {
    pub(super) fn insert(&self, request: &Request, lease: HeldLease) {
        let mut table = self.table();
        if table.leases.len() >= table.full {
            table.leases.retain(|_, entry| !entry.until.has_passed());
            table.full = (2 * table.leases.len()).max(64);
        }
        let until = kept_until(request.ttl);
        table.leases.insert(request.owner, Entry { lease, until });
    }

    pub(super) fn get(&self, owner: Owner) -> Option<HeldLease> {
        let table = self.table();
        table.leases.get(&owner).map(|entry| entry.lease.clone())
    }

    /// The lease lasts for `ttl` more, and these nodes are sure to have it.
    pub(super) fn extended(&self, owner: Owner, ttl: Duration, sure: NodeSet) {
        if let Some(entry) = self.table().leases.get_mut(&owner) {
            entry.lease.sure = entry.lease.sure.with(sure);
            entry.until = kept_until(ttl);
        }
    }

    /// These nodes may have the vote, too.
    pub(super) fn may_have(&self, owner: Owner, nodes: NodeSet) {
        if let Some(entry) = self.table().leases.get_mut(&owner) {
            entry.lease.unsure = entry.lease.unsure.with(nodes);
        }
    }

    /// What was still on its way when the lease was granted. Asked once, by
    /// whoever gives it back.
    pub(super) fn take_in_flight(&self, owner: Owner) -> Vec<(usize, Connection)> {
        let mut table = self.table();
        let Some(Entry { lease, .. }) = table.leases.get_mut(&owner) else {
            return Vec::new();
        };
        lease.unsure = lease.voters().without(lease.sure);
        std::mem::take(&mut lease.in_flight)
    }

    pub(super) fn remove(&self, owner: Owner) {
        self.table().leases.remove(&owner);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kept_until(ttl: Duration) -> Deadline {
    Deadline::after(ttl.saturating_mul(KEPT))
}
