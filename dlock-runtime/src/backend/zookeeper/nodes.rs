//! The nodes of this process: those that hold locks, and those that nobody wants
//! any more.
//!
//! An ephemeral node stays for as long as its session does, whatever becomes of
//! who made it. So it is this process that ends a lease at its ttl, and that
//! deletes what was left behind: until the server has confirmed it, or the
//! session has ended.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::names;
use super::session::{Session, Term};
use crate::backend::{Owner, Request};
use crate::in_flight::{Counted, InFlight};

#[derive(Default)]
pub(super) struct Nodes {
    table: Mutex<Table>,
    /// Told when something is due before the time that the table is armed for.
    earlier: Notify,
    left_behind: InFlight,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<Owner, Node>,
    schedule: BTreeSet<(Instant, Owner)>,
    /// When the next look is. What is due later need not wake anybody, so a
    /// short hold costs no more than an entry.
    armed: Option<Instant>,
}

/// The node of a request.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) session: Arc<Session>,
    /// The lock's.
    pub(super) folder: String,
    /// Its name in there, if it was heard.
    pub(super) name: Option<String>,
}

struct Node {
    place: Place,
    /// When it is to be deleted, if it still is there.
    due: Instant,
    wanted: bool,
    /// When the question was sent by which it was last seen in the store.
    seen_at: Instant,
    /// Of its lease.
    ttl: Duration,
    /// A shutdown waits for it, until then.
    counted: Option<(Counted, Instant)>,
}

/// A node that is to be deleted.
pub(super) struct Doomed {
    pub(super) owner: Owner,
    pub(super) place: Place,
    /// A shutdown waits for it, until then.
    pub(super) counted: Option<(Counted, Instant)>,
}

impl Nodes {
    /// This node holds a lock for this term.
    pub(super) fn hold(&self, owner: Owner, place: Place, seen_at: Instant, term: Term) {
        self.insert(
            owner,
            Node {
                place,
                due: term.ends(),
                wanted: true,
                seen_at,
                ttl: term.ttl,
                counted: None,
            },
        );
    }

    /// Nobody wants this node, if it is there.
    pub(super) fn leave_behind(&self, request: &Request, place: Place) {
        let now = Instant::now();
        self.insert(
            request.owner,
            Node {
                place,
                due: now,
                wanted: false,
                seen_at: now,
                ttl: request.ttl,
                counted: Some((self.left_behind.count(), now + request.ttl)),
            },
        );
    }

    fn insert(&self, owner: Owner, node: Node) {
        self.change(|table| {
            table.remove(owner);
            table.schedule.insert((node.due, owner));
            table.nodes.insert(owner, node);
        });
    }

    /// Whether the lease of this request cannot be renewed by what is known.
    pub(super) fn is_to_be_seen(&self, request: &Request) -> bool {
        let table = self.table();
        let node = table.nodes.get(&request.owner).filter(|node| node.wanted);
        // What asks for another time than before is about to be kept or left.
        node.is_some_and(|node| node.ttl != request.ttl || node.is_to_be_seen(Instant::now()))
    }

    /// The nodes that hold locks for these requests, and all others that have not
    /// been seen for a while.
    pub(super) fn to_be_seen(&self, requests: &[Request]) -> Vec<(Owner, Place)> {
        let asked: HashSet<_> = requests.iter().map(|request| request.owner).collect();
        let now = Instant::now();
        let table = self.table();
        let nodes = table.nodes.iter().filter(|&(owner, node)| {
            node.wanted && (asked.contains(owner) || node.is_to_be_seen(now))
        });
        nodes
            .map(|(&owner, node)| (owner, node.place.clone()))
            .collect()
    }

    /// These nodes were there when that was asked.
    pub(super) fn seen(&self, nodes: &[(Owner, Place)], sent_at: Instant) {
        let mut table = self.table();
        for (owner, _) in nodes {
            if let Some(node) = table.nodes.get_mut(owner) {
                node.seen_at = node.seen_at.max(sent_at);
            }
        }
    }

    /// Extends the lease of this request to its ttl from when its node was last
    /// seen: then, and by which session. `None` if the lease has ended.
    pub(super) fn extend(&self, request: &Request) -> Option<(Arc<Session>, Instant)> {
        self.change(|table| {
            let node = table.nodes.get(&request.owner);
            let node = node.filter(|node| node.wanted)?;
            let (session, seen_at) = (Arc::clone(&node.place.session), node.seen_at);
            table.reschedule(request.owner, seen_at + request.ttl);
            Some((session, seen_at))
        })
    }

    /// The lease ends now, by whoever asks; if that does not get to delete the
    /// node within `patience`, it is deleted from here. Where it is, and whether
    /// somebody has tried before. `None` if the owner has no node.
    pub(super) fn give_back(&self, owner: Owner, patience: Duration) -> Option<(Place, bool)> {
        self.change(|table| {
            let node = table.nodes.get_mut(&owner)?;
            let tried = !std::mem::replace(&mut node.wanted, false);
            let place = node.place.clone();
            table.reschedule(owner, Instant::now() + patience);
            Some((place, tried))
        })
    }

    /// The node is to be deleted from here, and now.
    pub(super) fn hurry(&self, owner: Owner) {
        self.change(|table| table.reschedule(owner, Instant::now()));
    }

    /// The node is no more. Whether it held a lock.
    pub(super) fn forget(&self, owner: Owner) -> bool {
        let node = self.table().remove(owner);
        node.is_some_and(|node| node.wanted)
    }

    /// The session has ended, with all of its nodes. Who held a lock by them.
    pub(super) fn forget_all_of(&self, session: &Arc<Session>) -> Vec<Owner> {
        let mut table = self.table();
        let gone: Vec<_> = table
            .nodes
            .iter()
            .filter(|(_, node)| Arc::ptr_eq(&node.place.session, session))
            .map(|(&owner, _)| owner)
            .collect();
        gone.into_iter()
            .filter(|&owner| table.remove(owner).is_some_and(|node| node.wanted))
            .collect()
    }

    /// Whether a lock is held by this owner.
    pub(super) fn holds(&self, owner: Owner) -> bool {
        let table = self.table();
        table.nodes.get(&owner).is_some_and(|node| node.wanted)
    }

    /// Whether locks are held whose time has not come.
    pub(super) fn holds_any(&self) -> bool {
        self.table().nodes.values().any(|node| node.wanted)
    }

    /// What is to be deleted now, and when there will be more.
    pub(super) fn take_due(&self) -> (Vec<Doomed>, Option<Instant>) {
        let now = Instant::now();
        let mut table = self.table();
        let mut doomed = Vec::new();
        while let Some(&(due, owner)) = table.schedule.first() {
            if due > now {
                break;
            }
            table.schedule.pop_first();
            // Out of the schedule: whoever deletes it does not give up.
            let Some(node) = table.nodes.get_mut(&owner) else {
                continue;
            };
            node.wanted = false;
            doomed.push(Doomed {
                owner,
                place: node.place.clone(),
                counted: node.counted.take(),
            });
        }
        table.armed = table.schedule.first().map(|&(due, _)| due);
        (doomed, table.armed)
    }

    /// Waits until something is due sooner than it was.
    pub(super) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Waits until nothing is left behind, or it would have run out.
    pub(super) async fn settle(&self) {
        self.left_behind.wait_idle().await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table();
        let answer = change(&mut table);
        let first = table.schedule.first().map(|&(due, _)| due);
        let wake = first.is_some_and(|first| table.armed.is_none_or(|armed| first < armed));
        if wake {
            table.armed = first;
        }
        drop(table);
        if wake {
            self.earlier.notify_one();
        }
        answer
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code of ours panics while it holds this.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The path of the node.
    pub(super) fn path(&self) -> String {
        names::join(&self.folder, self.name.as_deref().unwrap_or_default())
    }
}

impl Node {
    /// Often enough for a renewal that comes at a third of the ttl.
    fn is_to_be_seen(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.seen_at) > self.ttl / 6
    }
}

impl Table {
    fn reschedule(&mut self, owner: Owner, due: Instant) {
        if let Some(node) = self.nodes.get_mut(&owner) {
            self.schedule.remove(&(node.due, owner));
            self.schedule.insert((due, owner));
            node.due = due;
        }
    }

    fn remove(&mut self, owner: Owner) -> Option<Node> {
        let node = self.nodes.remove(&owner)?;
        self.schedule.remove(&(node.due, owner));
        Some(node)
    }
}
