//! How servers are found, and what they are called.

use std::sync::Arc;

use super::errors::{Place, Role};
use super::names::Keyspace;
use super::sentinel::Sentinels;
use super::settings::Settings;
use super::topology::SlotMap;
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
    pub(super) fn space(&self) -> Keyspace {
        match self {
            Self::At(_) | Self::Sentinels(_) => Keyspace::Server,
            Self::Cluster(_) | Self::Node(_) => Keyspace::Slots,
            Self::Slot(_, _, tag) => Keyspace::Vote(Arc::clone(tag)),
        }
    }

    /// What it is called in messages.
    pub(super) fn place(&self, settings: &Settings) -> Place {
        let place = |role, name: &str| {
            let secret = settings.login.password();
            Place::new(role, name, self.space(), secret)
        };
        match self {
            Self::At(address) => place(Role::Server, "redis").found_at(address),
            Self::Sentinels(sentinels) => {
                let name = format!("redis master `{}`", sentinels.master());
                place(Role::Master, &name)
            }
            Self::Cluster(_) => {
                let name = format!("redis cluster at {}", self.hosts().join(","));
                place(Role::Cluster, &name)
            }
            Self::Node(address) => place(Role::Cluster, "redis cluster node").found_at(address),
            Self::Slot(_, slot, _) => {
                let name = format!("redis cluster node of slot {slot}");
                place(Role::Cluster, &name)
            }
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
}
