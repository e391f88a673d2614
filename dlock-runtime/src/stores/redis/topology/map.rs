//! Which node has which slot, and the ways to the nodes.
//!
//! The map is a hint. A node that is asked for a slot that it does not have says
//! who has it, and that goes into the map at once; the rest is asked for anew
//! whenever there is cause ([`refresh`](super::refresh)).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::ServerError;
use tokio::sync::{Notify, watch};

use super::super::connector::{Connector, Listener};
use super::super::errors::{Place, Server as Named};
use super::super::locate::{Locator, SlotMap};
use super::super::names::{Keyspace, SLOTS};
use super::super::server_connections::One;
use super::super::settings::{Server, Settings};
use crate::backend::BackendError;
use crate::deadline::{Deadline, ManagerClock};
use crate::stores::address::Address;
use crate::stores::tier::FoundTier;

/// A node that has had no slot for so long is forgotten. One that is about to
/// get its first has none yet.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// A cluster, as far as it is known.
pub(crate) struct Topology {
    /// The nodes that the URL names.
    pub(crate) seeds: Vec<Settings>,
    pub(crate) place: Place,
    pub(super) clock: ManagerClock,
    listener: ListenerAt,
    map: RwLock<Map>,
    changes: watch::Sender<()>,
    /// The map is asked for anew.
    pub(super) demand: Notify,
}

/// Makes what hears the messages of the node at an address.
pub(crate) type ListenerAt = Box<dyn Fn(&Address) -> Arc<dyn Listener> + Send + Sync>;

struct Map {
    /// By slot.
    owners: Vec<Option<Arc<Node>>>,
    nodes: HashMap<Address, Arc<Node>>,
    replicas: Vec<Address>,
    /// The slots of which a node has said who has them since the nodes were last
    /// asked for the map.
    moved: HashSet<u16>,
    /// Since when a node has had no slot.
    idle: HashMap<Address, Instant>,
}

/// A master.
pub(crate) struct Node {
    pub(crate) address: Address,
    pub(super) connector: Arc<Connector>,
    pub(crate) one: One,
}

/// What the nodes say who has which slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// First and last slot, and their node.
    pub(super) ranges: Vec<(u16, u16, Address)>,
    pub(super) replicas: Vec<Address>,
}

impl Topology {
    pub(crate) fn new(
        seeds: Vec<Settings>,
        clock: ManagerClock,
        listener: ListenerAt,
    ) -> Arc<Self> {
        let names: Vec<_> = seeds.iter().filter_map(Settings::address).collect();
        let names: Vec<_> = names.into_iter().map(Address::to_string).collect();
        let secret = seeds.first().and_then(|seed| seed.login.password());
        let name = Named::Cluster(names.join(",").into());
        Arc::new(Self {
            place: Place::new(name, Keyspace::Slots, secret),
            seeds,
            clock,
            listener,
            map: RwLock::new(Map {
                owners: vec![None; SLOTS.into()],
                nodes: HashMap::new(),
                replicas: Vec::new(),
                moved: HashSet::new(),
                idle: HashMap::new(),
            }),
            changes: watch::Sender::new(()),
            demand: Notify::new(),
        })
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map().owners.get(usize::from(slot)).cloned().flatten()
    }

    pub(crate) fn address(&self, slot: u16) -> Option<Address> {
        self.owner(slot).map(|node| node.address.clone())
    }

    /// The nodes that have slots, in the order of these.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let map = self.map();
        let mut seen = HashSet::new();
        let owners = map.owners.iter().flatten();
        owners
            .filter(|node| seen.insert(&node.address))
            .cloned()
            .collect()
    }

    /// The last slot of each master.
    pub(crate) fn last_slots(&self) -> Vec<u16> {
        let map = self.map();
        let mut last: HashMap<&Address, u16> = HashMap::new();
        for (slot, node) in (0..SLOTS).zip(&map.owners) {
            if let Some(node) = node {
                last.insert(&node.address, slot);
            }
        }
        let mut slots: Vec<_> = last.into_values().collect();
        slots.sort_unstable();
        slots
    }

    /// All nodes that are known to be there.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let map = self.map();
        let mut addresses: Vec<_> = map.nodes.keys().chain(&map.replicas).cloned().collect();
        for seed in self.seeds.iter().filter_map(Settings::address).cloned() {
            if !addresses.contains(&seed) {
                addresses.push(seed);
            }
        }
        addresses
    }

    /// The settings for a node at this address: those of the URL.
    pub(super) fn settings(&self, address: &Address) -> Option<Settings> {
        Some(Settings {
            server: Server::At(address.clone()),
            ..self.seeds.first()?.clone()
        })
    }

    /// The node at this address, which may be new.
    pub(super) fn node(&self, address: &Address) -> Option<Arc<Node>> {
        if let Some(node) = self.map().nodes.get(address) {
            return Some(Arc::clone(node));
        }
        let settings = self.settings(address)?;
        let mut map = self.map_mut();
        Some(self.node_in(&mut map, address, settings))
    }

    fn node_in(&self, map: &mut Map, address: &Address, settings: Settings) -> Arc<Node> {
        let node = map.nodes.entry(address.clone()).or_insert_with(|| {
            let connector = Arc::new(Connector {
                locator: Locator::At(address.clone()),
                place: settings.place(),
                settings,
                clock: self.clock.clone(),
                highest_token: AtomicU64::new(0),
                tokens: FoundTier::unknown(),
            });
            let listener = (self.listener)(address);
            Arc::new(Node {
                address: address.clone(),
                one: One::new(&connector, listener),
                connector,
            })
        });
        Arc::clone(node)
    }

    /// Who has a slot, as soon as it is known.
    pub(crate) async fn locate(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Address, BackendError> {
        let mut changes = self.changes();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if let Some(address) = self.address(slot) {
                    return address;
                }
                self.refresh_soon();
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let located = self.clock.bound(deadline, wait).await;
        located.map_err(|_| self.nobody_has(slot))
    }

    /// Resolves when another node is known to have the slot.
    pub(crate) async fn moves_from(&self, slot: u16, address: &Address) {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if self
                .owner(slot)
                .is_some_and(|node| node.address != *address)
            {
                return;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) fn nobody_has(&self, slot: u16) -> BackendError {
        BackendError::unavailable(format!(
            "{}: no node is known to have slot {slot}; see CLUSTER INFO and CLUSTER NODES there",
            self.place
        ))
    }

    /// A node has said that another one has a slot. It may not have named its
    /// host: then that is its own.
    pub(crate) fn moved(&self, slot: u16, error: &ServerError, from: &Address) {
        if let Some(address) = named_in(error, from)
            && let Some(node) = self.node(&address)
        {
            let mut map = self.map_mut();
            map.moved.insert(slot);
            let owner = &mut map.owners[usize::from(slot)];
            let known = owner.as_ref().is_some_and(|owner| owner.address == address);
            *owner = Some(node);
            drop(map);
            if !known {
                self.changes.send_replace(());
            }
        }
        self.refresh_soon();
    }

    /// Another node is about to get the slot. As long as it is asked it is not
    /// idle, however long its first slot is on its way.
    pub(crate) fn named(&self, error: &ServerError, from: &Address) -> Option<Arc<Node>> {
        let address = named_in(error, from)?;
        let node = self.node(&address);
        self.map_mut().idle.remove(&address);
        node
    }

    /// There is cause to doubt the map.
    pub(crate) fn refresh_soon(&self) {
        self.demand.notify_one();
    }

    /// The nodes are about to be asked for the map.
    pub(super) fn is_asked_for(&self) {
        self.map_mut().moved.clear();
    }

    /// Puts what the nodes say into the map, but for the slots of which more was
    /// heard since they were asked: what they say of these may be older.
    pub(super) fn update(&self, view: View) {
        let mut owners = vec![None; SLOTS.into()];
        let mut map = self.map_mut();
        for (first, last, address) in &view.ranges {
            let Some(settings) = self.settings(address) else {
                continue;
            };
            let node = self.node_in(&mut map, address, settings);
            let slots = usize::from(*first)..=usize::from(*last);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(Some(node));
            }
        }
        for slot in std::mem::take(&mut map.moved) {
            let slot = usize::from(slot);
            owners[slot].clone_from(&map.owners[slot]);
        }
        let same = |one: &Option<Arc<Node>>, other: &Option<Arc<Node>>| match (one, other) {
            (Some(one), Some(other)) => one.address == other.address,
            (None, None) => true,
            _ => false,
        };
        let before = std::mem::replace(&mut map.owners, owners);
        let changed = !before
            .iter()
            .zip(&map.owners)
            .all(|(one, other)| same(one, other));
        map.replicas = view.replicas;
        let gone = map.forget_idle();
        drop(map);
        for node in gone {
            node.one.close();
        }
        if changed {
            self.changes.send_replace(());
            let masters = self.masters();
            let masters: Vec<_> = masters
                .iter()
                .map(|node| node.address.to_string())
                .collect();
            tracing::debug!(
                target: "dlock::store",
                "{}: the slots are on {} now", self.place, masters.join(", ")
            );
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Closes every connection.
    pub(crate) fn close(&self) {
        let nodes = std::mem::take(&mut self.map_mut().nodes);
        for node in nodes.into_values() {
            node.one.close();
        }
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl SlotMap for Topology {
    async fn locate(&self, slot: u16, deadline: Deadline) -> Result<Address, BackendError> {
        Self::locate(self, slot, deadline).await
    }

    async fn moves_from(&self, slot: u16, address: &Address) {
        Self::moves_from(self, slot, address).await;
    }

    fn moved(&self, slot: u16, error: &ServerError, from: &Address) {
        Self::moved(self, slot, error, from);
    }

    fn refresh_soon(&self) {
        Self::refresh_soon(self);
    }
}

impl Map {
    /// Takes the nodes out that have had no slot for long.
    fn forget_idle(&mut self) -> Vec<Arc<Node>> {
        let busy: HashSet<_> = self
            .owners
            .iter()
            .flatten()
            .map(|node| &node.address)
            .collect();
        let now = Instant::now();
        self.idle.retain(|address, _| !busy.contains(address));
        for address in self.nodes.keys().filter(|address| !busy.contains(address)) {
            self.idle.entry(address.clone()).or_insert(now);
        }
        let old = |since: &Instant| now.duration_since(*since) >= FORGOTTEN_AFTER;
        let gone: Vec<_> = self
            .idle
            .iter()
            .filter(|(_, since)| old(since))
            .map(|(address, _)| address.clone())
            .collect();
        gone.iter()
            .filter_map(|address| {
                self.idle.remove(address);
                self.nodes.remove(address)
            })
            .collect()
    }
}

/// The node in `MOVED <slot> <host>:<port>` or `ASK …`.
fn named_in(error: &ServerError, from: &Address) -> Option<Address> {
    let (_, address) = error.details()?.split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    Some(Address {
        host: if host.is_empty() {
            from.host.clone()
        } else {
            host.to_owned()
        },
        port: port.trim().parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::process::Process;
    use super::super::subscriptions::Subscriptions;
    use super::*;
    use crate::engine::events::Events;
    use crate::engine::time::Time;

    fn topology() -> Arc<Topology> {
        let clock = ManagerClock::of_this_runtime().expect("a runtime");
        let seed = Settings {
            space: Keyspace::Slots,
            ..Settings::of_server("redis://127.0.0.1:1").expect("a valid URL")
        };
        let events = Events::new(Time::of_the_machine(clock.clone()), FORGOTTEN_AFTER);
        let subscriptions = Subscriptions::new(Process::unique(), events);
        Topology::new(vec![seed], clock, subscriptions.listeners())
    }

    fn address(port: u16) -> Address {
        Address {
            host: "h".to_owned(),
            port,
        }
    }

    /// One node has all slots.
    fn view(port: u16) -> View {
        View {
            ranges: vec![(0, SLOTS - 1, address(port))],
            replicas: Vec::new(),
        }
    }

    fn redirection(code: &str, details: &str) -> ServerError {
        let error = redis::make_extension_error(code.into(), Some(details.into()));
        ServerError::try_from(error).expect("a server error")
    }

    #[tokio::test]
    async fn an_old_map_does_not_undo_what_was_heard_since() {
        let topology = topology();
        let has = |slot| topology.address(slot).map(|address| address.port);
        topology.update(view(1));
        topology.is_asked_for();
        topology.moved(7, &redirection("MOVED", "7 h:2"), &address(1));
        topology.update(view(1));
        assert_eq!([7, 8].map(has), [Some(2), Some(1)]);
        // Those who are asked after that know better.
        topology.is_asked_for();
        topology.update(view(3));
        assert_eq!([7, 8].map(has), [Some(3), Some(3)]);
    }

    #[tokio::test]
    async fn a_node_that_is_about_to_get_its_first_slot_is_kept() {
        let topology = topology();
        topology.update(view(1));
        let ask = || topology.named(&redirection("ASK", "7 h:2"), &address(1));
        let node = ask().expect("a node");
        let is_kept = || topology.map().nodes.contains_key(&node.address);
        let grows_old = || {
            let long_ago = Instant::now().checked_sub(FORGOTTEN_AFTER);
            let long_ago = long_ago.expect("a machine that has run for a minute");
            topology.map_mut().idle.insert(address(2), long_ago);
        };
        grows_old();
        ask();
        topology.update(view(1));
        assert!(is_kept(), "it was asked just now");
        grows_old();
        topology.update(view(1));
        assert!(!is_kept());
    }

    #[test]
    fn a_redirection_names_a_node() {
        let from = Address {
            host: "here".to_owned(),
            port: 1,
        };
        let named = |details: &str| {
            named_in(&redirection("MOVED", details), &from).map(|address| address.to_string())
        };
        assert_eq!(
            named("3999 10.0.0.1:6381").as_deref(),
            Some("10.0.0.1:6381")
        );
        assert_eq!(named("3999 ::1:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(named("3999 :6381").as_deref(), Some("here:6381"));
        for nonsense in ["3999", "3999 a", "3999 a:b"] {
            assert_eq!(named(nonsense), None);
        }
    }
}
