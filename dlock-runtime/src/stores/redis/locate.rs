//! How servers are found, and what they are called.

use std::future::pending;
use std::sync::Arc;

use redis::ServerError;

use super::errors::{Endpoint, RetryPolicy, Role, classify};
use super::names::Keyspace;
use super::redisson::Layout;
use super::sentinel::Sentinels;
use super::settings::Settings;
use super::topology::SlotMap;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;

/// Where the servers are, or who knows.
#[derive(Clone)]
pub(super) enum Locator {
    /// One server, which is always there.
    At(Address),
    /// The master that these sentinels name; they are asked for each connection.
    Sentinels(Arc<Sentinels>),
    /// Those of a cluster. These are nodes of it, who know the others.
    Cluster(Vec<Address>),
    /// A node of a cluster.
    Node(Address),
    /// The node of a cluster that has this slot, and in it all keys under a tag.
    Slot(Arc<SlotMap>, u16, Arc<str>),
}

impl Locator {
    /// Where the names of their keys differ.
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

    /// What it is called in messages.
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
            // Others say where it is, and are connected to first.
            Self::Slot(..) => Vec::new(),
        }
    }

    /// Where the server is. A master may have moved since it was last asked.
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
                // The rest of the time is for the master itself.
                let deadline = deadline.within(settings.patience() / 2);
                sentinels.locate(endpoint, time, deadline).await
            }
            // There are connections to its nodes only.
            Self::Cluster(_) => Err(endpoint.nonsense()),
        }
    }

    /// Resolves when it is known that the server is not at this address any more: one
    /// that says nothing does not say so, nor one that was not told.
    pub(super) async fn moves_from(&self, address: &Address) {
        match self {
            Self::Sentinels(sentinels) => sentinels.moves_from(address).await,
            Self::Slot(map, slot, _) => map.moves_from(*slot, address).await,
            Self::At(_) | Self::Cluster(_) | Self::Node(_) => pending().await,
        }
    }

    /// The server has gone, or does not answer. If it is meant for a slot, that
    /// may be elsewhere by now.
    pub(super) fn is_in_doubt(&self) {
        if let Self::Slot(map, ..) = self {
            map.refresh_soon();
        }
    }

    /// The server at this address has refused a command. Whether that is because the
    /// slot that is meant is not its own any more: then the next connection goes
    /// elsewhere.
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
