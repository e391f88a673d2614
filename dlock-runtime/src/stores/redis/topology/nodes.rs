//! The connections to the nodes of a cluster.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ServerError;

use super::super::connection::Connection;
use super::super::connections::Connections;
use super::super::connector::{Connector, Listener};
use super::super::locate::Locator;
use super::super::names::{Keyspace, Topic};
use super::super::settings::Settings;
use super::super::subscriptions::Subscriptions;
use super::super::values::Process;
use super::Seeds;
use super::map::{SlotMap, named_in};
use crate::apart::apart;
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::store::{Context, Failure};
use crate::stores::address::Address;
use crate::sync::Mutex;

/// A node that has had no slot for this long is forgotten. Not earlier, since a node that is
/// about to get its first slot has none yet.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// If there is no connection after this time, the node may have been replaced.
const DOUBT: Duration = Duration::from_millis(200);

/// A cluster, as far as it is known.
pub(crate) struct Topology {
    pub(crate) map: Arc<SlotMap>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    /// The nodes that the URL names.
    pub(super) seeds: Seeds,
    pub(super) settings: Settings,
    space: Keyspace,
    pub(super) time: Time,
    events: Events,
    nodes: Mutex<HashMap<Arc<Address>, Node>>,
}

struct Node {
    connections: Arc<Connections>,
    /// Since when the node has had no slot.
    idle_since: Option<Instant>,
}

impl Topology {
    pub(crate) fn new(
        settings: Settings,
        seeds: &Seeds,
        process: Process,
        context: &Context,
    ) -> Arc<Self> {
        let locator = Locator::Cluster(seeds.clone());
        let (endpoint, space) = (locator.endpoint(&settings), locator.space(&settings));
        let map = Arc::new(SlotMap::new(endpoint));
        let time = context.time.clone();
        Arc::new(Self {
            subscriptions: Arc::new(Subscriptions::new(
                process,
                space.clone(),
                Some(Arc::clone(&map)),
                context,
            )),
            space,
            map,
            seeds: seeds.clone(),
            settings,
            time,
            events: context.events.clone(),
            nodes: Mutex::default(),
        })
    }

    /// The connections to the node at this address, which are created if the node is new.
    pub(crate) fn node(&self, address: &Arc<Address>) -> Arc<Connections> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Arc::clone(&node.connections);
        }
        let locator = Locator::Node((**address).clone());
        let connector = Connector::new(self.settings.clone(), locator, self.time.clone());
        let listener = Listener {
            space: self.space.clone(),
            events: self.events.clone(),
            channel: None,
        };
        let connections = Arc::new(Connections::new(connector, Some(listener)));
        let node = Node {
            connections: Arc::clone(&connections),
            idle_since: None,
        };
        nodes.insert(Arc::clone(address), node);
        connections
    }

    /// The node that is about to get the slot, as an `ASK` names it. A node that is asked is not
    /// idle, however long the move of its first slot takes.
    pub(crate) fn named(&self, error: &ServerError, from: &Address) -> Option<Arc<Connections>> {
        let (_, address) = named_in(error, from)?;
        let address = Arc::new(address);
        let connections = self.node(&address);
        if let Some(node) = self.nodes.lock().get_mut(&address) {
            node.idle_since = None;
        }
        Some(connections)
    }

    /// Closes the connections to nodes that have had no slot for a long time.
    pub(super) fn forget_idle(&self) {
        let busy: HashSet<_> = self.map.masters().into_iter().collect();
        let now = self.time.now();
        self.nodes.lock().retain(|address, node| {
            if busy.contains(address) {
                node.idle_since = None;
                return true;
            }
            let idle_since = *node.idle_since.get_or_insert(now);
            let is_kept = now.saturating_duration_since(idle_since) < FORGOTTEN_AFTER;
            if !is_kept {
                node.connections.close();
            }
            is_kept
        });
    }

    /// The connection of the calling runtime to the node that has the slot. While it is being
    /// opened, another node may get the slot.
    pub(crate) async fn connection(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Connection, Failure> {
        if let Some(owner) = self.map.owner(slot)
            && let Some(connection) = self.node(&owner).here()?.ready()
        {
            return Ok(connection);
        }
        apart(self.next_connection(slot, deadline)).await
    }

    async fn next_connection(&self, slot: u16, deadline: Deadline) -> Result<Connection, Failure> {
        let connected = async {
            loop {
                let located = self.map.locate(slot, &self.time, deadline).await;
                let owner = located.map_err(Failure::refused)?;
                tokio::select! {
                    biased;
                    connected = async { self.node(&owner).connection(deadline).await } => {
                        return connected;
                    }
                    () = self.map.moves_from(slot, &owner) => {}
                }
            }
        };
        let doubts = async {
            loop {
                self.time.sleep(self.time.after(DOUBT)).await;
                self.map.refresh_soon();
            }
        };
        tokio::select! {
            biased;
            connected = connected => connected,
            never = doubts => never,
        }
    }

    /// Subscribes to grants of this lock, which somebody waits for.
    pub(crate) async fn listen(&self, heard: &Topic, deadline: Deadline) -> Result<(), Failure> {
        if self.subscriptions.is_subscribed(heard) {
            return Ok(());
        }
        let located = self
            .map
            .locate(self.space.slot(&heard.key), &self.time, deadline)
            .await;
        let node = self.node(&located.map_err(Failure::refused)?);
        let connection = node.of_manager().connection(deadline).await?;
        let listened = self.subscriptions.listen(heard, &connection, deadline);
        listened.await.map_err(|lost| {
            tracing::debug!(target: "dlock::store", "{}: {lost:?}", connection.endpoint());
            match lost.refusal() {
                Some(error) => self.map.redirected(&error, connection.address()),
                None => self.map.refresh_soon(),
            }
            Failure::not_sent()
        })
    }

    /// Closes every connection.
    pub(crate) fn close(&self) {
        for (_, node) in std::mem::take(&mut *self.nodes.lock()) {
            node.connections.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::Config;
    use super::super::map::tests::{address, redirection, view};
    use super::*;

    #[tokio::test]
    async fn a_node_that_is_about_to_get_its_first_slot_is_kept() {
        let config = Config::read("redis://127.0.0.1:1").expect("a valid URL");
        let context = crate::engine::context();
        let process = Process::unique();
        let topology = Topology::new(config.settings, &Vec::new(), process, &context);
        let update = || {
            topology.map.update(view(1));
            topology.forget_idle();
        };
        update();
        let ask = || {
            let asked = topology.named(&redirection("ASK", "7 h:2"), &address(1));
            assert!(asked.is_some(), "a node");
        };
        ask();
        let is_kept = || topology.nodes.lock().contains_key(&address(2));
        let grows_old = || {
            let long_ago = Instant::now().checked_sub(FORGOTTEN_AFTER);
            let long_ago = long_ago.expect("a machine that has run for a minute");
            let mut nodes = topology.nodes.lock();
            nodes.get_mut(&address(2)).expect("kept").idle_since = Some(long_ago);
        };
        grows_old();
        ask();
        update();
        assert!(is_kept(), "it was asked just now");
        grows_old();
        update();
        assert!(!is_kept());
    }
}
