//! Which node has which slot.
//!
//! The map is a hint. A node that is asked for a slot that it does not have answers which node
//! has it, and that goes into the map at once. The complete map is asked for again whenever there
//! is a cause ([`refresh`](super::refresh)).

use std::collections::HashSet;
use std::sync::Arc;

use redis::ServerError;
use tokio::sync::{Notify, watch};

use super::super::endpoint::Endpoint;
use super::super::errors::{RetryPolicy, classify};
use super::super::names::SLOTS;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;

/// Which node of a cluster has which slot, as far as it is known.
pub(crate) struct SlotMap {
    /// The cluster, as messages name it.
    pub(crate) endpoint: Endpoint,
    view: watch::Sender<View>,
    /// Notified when the map should be asked for again.
    pub(super) demand: Notify,
}

/// The owners of the slots, as the nodes report them.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// By slot. Empty until the nodes were asked.
    pub(crate) owners: Vec<Option<Arc<Address>>>,
    pub(crate) replicas: Vec<Arc<Address>>,
    /// The slots whose owner was reported by a redirection since the nodes were last asked for
    /// the complete map.
    pub(crate) moved: HashSet<u16>,
}

impl View {
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Address>> {
        self.owners.get(usize::from(slot))?.as_ref()
    }

    /// The nodes that have slots, in the order of the slots.
    fn masters(&self) -> Vec<Arc<Address>> {
        let mut masters: Vec<Arc<Address>> = Vec::new();
        let mut before = None;
        for owner in self.owners.iter().flatten() {
            // The slots of a range share one `Arc`, so comparing pointers is usually enough.
            let is_same = before.is_some_and(|before| Arc::ptr_eq(before, owner));
            if !is_same && !masters.contains(owner) {
                masters.push(Arc::clone(owner));
            }
            before = Some(owner);
        }
        masters
    }

    /// All nodes that are known.
    pub(super) fn nodes(&self) -> Vec<Arc<Address>> {
        let mut nodes = self.masters();
        nodes.extend(self.replicas.iter().cloned());
        nodes
    }
}

impl SlotMap {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            view: watch::Sender::default(),
            demand: Notify::new(),
        }
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Address>> {
        self.view.borrow().owner(slot).cloned()
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Address>> {
        self.view.borrow().masters()
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Address>> {
        self.view.borrow().nodes()
    }

    /// The last slot of each master.
    pub(crate) fn last_slots(&self) -> Vec<u16> {
        let view = self.view.borrow();
        let mut met = HashSet::new();
        let with_owner = (0..SLOTS).rev().zip(view.owners.iter().rev());
        let last = with_owner.filter(|(_, owner)| owner.as_ref().is_some_and(|it| met.insert(it)));
        let mut slots: Vec<_> = last.map(|(slot, _)| slot).collect();
        slots.reverse();
        slots
    }

    /// Waits until the owner of a slot is known.
    pub(crate) async fn locate(
        &self,
        slot: u16,
        time: &Time,
        deadline: Deadline,
    ) -> Result<Arc<Address>, BackendError> {
        let mut changes = self.changes();
        let known = async {
            loop {
                if let Some(owner) = changes.borrow_and_update().owner(slot) {
                    return Arc::clone(owner);
                }
                self.refresh_soon();
                // Cannot fail: `self` has the sender.
                let _ = changes.changed().await;
            }
        };
        let located = time.bound(deadline, known).await;
        located.map_err(|_| self.nobody_has(slot))
    }

    /// Resolves when another node is known to have the slot.
    pub(crate) async fn moves_from(&self, slot: u16, address: &Address) {
        let moved = |view: &View| view.owner(slot).is_some_and(|owner| **owner != *address);
        let _ = self.changes().wait_for(moved).await;
    }

    pub(super) fn nobody_has(&self, slot: u16) -> BackendError {
        BackendError::unavailable(format!(
            "{}: no node is known to have slot {slot}; see CLUSTER INFO and CLUSTER NODES there",
            self.endpoint
        ))
    }

    /// Called when a node has refused a command. If the reason is that it does not have the slot,
    /// the answer names the node that has it.
    pub(crate) fn redirected(&self, error: &ServerError, from: &Address) {
        if classify(error) == RetryPolicy::Moved
            && let Some((slot, address)) = named_in(error, from)
        {
            self.view.send_if_modified(|view| {
                view.moved.insert(slot);
                let is_news = view.owner(slot).is_none_or(|owner| **owner != address);
                if is_news {
                    view.owners.resize(SLOTS.into(), None);
                    view.owners[usize::from(slot)] = Some(Arc::new(address));
                }
                is_news
            });
        }
        self.refresh_soon();
    }

    /// Called when the map may be wrong.
    pub(crate) fn refresh_soon(&self) {
        self.demand.notify_one();
    }

    /// Called when the nodes are about to be asked for the map.
    pub(super) fn begin_refresh(&self) {
        self.view.send_if_modified(|view| {
            view.moved.clear();
            false
        });
    }

    /// Replaces the map by what the nodes report, except for slots that were redirected since
    /// they were asked: for these the report may be older.
    pub(crate) fn update(&self, mut said: View) {
        let changed = self.view.send_if_modified(|view| {
            for slot in std::mem::take(&mut view.moved) {
                said.owners[usize::from(slot)] = view.owner(slot).cloned();
            }
            let changed = view.owners != said.owners;
            *view = said;
            changed
        });
        if changed {
            tracing::debug!(
                target: "dlock::store",
                "{}: the slots are on {:?} now", self.endpoint, self.masters()
            );
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }
}

/// The slot and the node in `MOVED <slot> <host>:<port>` or `ASK …`. If the host is missing, it
/// is the host of the node that answered.
pub(super) fn named_in(error: &ServerError, from: &Address) -> Option<(u16, Address)> {
    let (slot, address) = error.details()?.split_once(' ')?;
    let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
    let (host, port) = address.rsplit_once(':')?;
    let address = from.beside(host, port.trim().parse().ok()?)?;
    Some((slot, address))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::errors::Role;
    use super::super::super::names::Keyspace;
    use super::*;

    pub(crate) fn address(port: u16) -> Address {
        Address::at("h", port).expect("a port")
    }

    /// One node has all slots.
    pub(crate) fn view(port: u16) -> View {
        View {
            owners: vec![Some(Arc::new(address(port))); SLOTS.into()],
            ..View::default()
        }
    }

    pub(crate) fn redirection(code: &str, details: &str) -> ServerError {
        let error = redis::make_extension_error(code.into(), Some(details.into()));
        ServerError::try_from(error).expect("a server error")
    }

    #[test]
    fn an_old_map_does_not_undo_what_was_heard_since() {
        let map = SlotMap::new(Endpoint::new(Role::Cluster, "c", Keyspace::Slots, None));
        let has = |slot| map.owner(slot).map(|at| (*at).clone());
        let at = |ports: [u16; 2]| ports.map(|port| Some(address(port)));
        map.update(view(1));
        map.begin_refresh();
        map.redirected(&redirection("MOVED", "7 h:2"), &address(1));
        map.update(view(1));
        assert_eq!([7, 8].map(has), at([2, 1]));
        // Nodes that are asked after that know better.
        map.begin_refresh();
        map.update(view(3));
        assert_eq!([7, 8].map(has), at([3, 3]));
    }

    #[test]
    fn a_redirection_names_a_node() {
        let from = Address::at("here", 1).expect("a port");
        let named = |details: &str| {
            let named = named_in(&redirection("MOVED", details), &from);
            named.map(|(slot, address)| {
                assert_eq!(slot, 3999);
                address.to_string()
            })
        };
        assert_eq!(
            named("3999 10.0.0.1:6381").as_deref(),
            Some("10.0.0.1:6381")
        );
        assert_eq!(named("3999 ::1:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(named("3999 :6381").as_deref(), Some("here:6381"));
        for nonsense in [
            "3999",
            "3999 a",
            "3999 a:b",
            "3999 a:0",
            "a a:1",
            "16384 a:1",
        ] {
            assert_eq!(named(nonsense), None);
        }
    }
}
