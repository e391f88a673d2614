//! How servers are found, and what they are called in messages.

use std::future::pending;
use std::sync::Arc;

use redis::ServerError;

use super::endpoint::Endpoint;
use super::errors::{RetryPolicy, Role, classify};
use super::names::Keyspace;
use super::redisson::Layout;
use super::sentinel::Sentinels;
use super::settings::Settings;
use super::topology::{Seeds, SlotMap};
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;

/// Where the servers are, or which servers know it.
#[derive(Clone)]
pub(super) enum Locator {
    /// One server at a fixed address.
    At(Address),
    /// The master that these sentinels name. They are asked before each connection.
    Sentinels(Arc<Sentinels>),
    /// The nodes of a cluster. These are some of them, which know the others.
    Cluster(Seeds),
    /// A node of a cluster.
    Node(Address),
    /// The node of a cluster that has this slot, in which all keys with a tag are.
    Slot(Arc<SlotMap>, u16, Arc<str>),
}

impl Locator {
    /// How keys are named on these servers.
    pub(super) fn space(&self, settings: &Settings) -> Keyspace {
        if let Some(recipe) = settings.recipe {
            let in_slots = !matches!(self, Self::At(_) | Self::Sentinels(_));
            return Keyspace::Redisson(Layout { recipe, in_slots });
        }
        match self {
            Self::At(_) | Self::Sentinels(_) => Keyspace::Server,
            Self::Cluster(_) | Self::Node(_) => Keyspace::Slots,
            Self::Slot(_, _, tag) => Keyspace::Vote(Arc::clone(tag)),
        }
    }

    /// The name of the servers in messages.
    pub(super) fn endpoint(&self, settings: &Settings) -> Endpoint {
        let (role, name, at) = match self {
            Self::At(address) => (Role::Server, "redis".to_owned(), Some(address)),
            Self::Sentinels(sentinels) => {
                let name = format!("redis master `{}`", sentinels.master());
                (Role::Master, name, None)
            }
            Self::Cluster(_) => {
                let name = format!("redis cluster at {}", self.hosts().join(","));
                (Role::Cluster, name, None)
            }
            Self::Node(address) => (
                Role::Cluster,
                "redis cluster node".to_owned(),
                Some(address),
            ),
            Self::Slot(_, slot, _) => {
                let name = format!("redis cluster node of slot {slot}");
                (Role::Cluster, name, None)
            }
        };
        let endpoint = Endpoint::new(role, name, self.space(settings), settings.login.password());
        match at {
            Some(address) => endpoint.found_at(address),
            None => endpoint,
        }
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        match self {
            Self::At(address) | Self::Node(address) => vec![address.to_string()],
            Self::Sentinels(sentinels) => sentinels.hosts(),
            Self::Cluster(nodes) => nodes.iter().map(Address::to_string).collect(),
            // Other nodes say where it is, and they are connected to first.
            Self::Slot(..) => Vec::new(),
        }
    }

    /// Finds the address of the server, again for each connection, since a master may have moved.
    pub(super) async fn locate(
        &self,
        endpoint: &Endpoint,
        settings: &Settings,
        time: &Time,
        deadline: Deadline,
    ) -> Result<Address, BackendError> {
        match self {
            Self::At(address) | Self::Node(address) => Ok(address.clone()),
            Self::Slot(map, slot, _) => {
                let owner = map.locate(*slot, time, deadline).await?;
                Ok((*owner).clone())
            }
            Self::Sentinels(sentinels) => {
                // The rest of the time is needed for the master itself.
                let deadline = deadline.within(settings.patience() / 2);
                sentinels.locate(endpoint, time, deadline).await
            }
            // Connections are opened only to its nodes.
            Self::Cluster(_) => Err(endpoint.unexpected_answer()),
        }
    }

    /// Resolves when it is known that the server is no longer at this address. A server that is
    /// silent does not prove that it has moved.
    pub(super) async fn moves_from(&self, address: &Address) {
        match self {
            Self::Sentinels(sentinels) => sentinels.moves_from(address).await,
            Self::Slot(map, slot, _) => map.moves_from(*slot, address).await,
            Self::At(_) | Self::Cluster(_) | Self::Node(_) => pending().await,
        }
    }

    /// The server has gone or does not answer. If it was chosen for a slot, the slot may have
    /// moved.
    pub(super) fn refresh_if_slot(&self) {
        if let Self::Slot(map, ..) = self {
            map.refresh_soon();
        }
    }

    /// Called when the server at this address has refused a command. Returns whether the reason
    /// is that it no longer has the slot; the next connection then leads elsewhere.
    pub(super) fn redirected(&self, error: &ServerError, from: &Address) -> bool {
        use RetryPolicy::{Cluster, Moved, Reconnect};
        match (self, classify(error)) {
            (Self::Slot(map, ..), Moved | Cluster | Reconnect) => {
                map.redirected(error, from);
                true
            }
            _ => false,
        }
    }
}
