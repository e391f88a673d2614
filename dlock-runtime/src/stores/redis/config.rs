//! Which servers a store is on, as its URL says.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::connector::Connector;
use super::errors::Place;
use super::locate::{Locator, SlotMap};
use super::sentinel::{self, Sentinels};
use super::settings::{self, Settings};
use super::topology::Topology;
use crate::backend::BackendError;
use crate::deadline::ManagerClock;
use crate::stores::address::Address;
use crate::stores::tier::FoundTier;

/// Which servers have the locks.
#[derive(Clone)]
pub(crate) struct Config {
    /// How to connect; in a cluster, with its first node.
    pub(super) settings: Settings,
    pub(super) found: Found,
    /// It is one of several who vote.
    pub(super) votes: bool,
}

/// How they are found.
#[derive(Clone)]
pub(crate) enum Found {
    /// The server is at this address.
    At(Address),
    BySentinels(Arc<Sentinels>),
    /// By asking these nodes of a cluster, of which the first is at this address.
    ByNodes(Address, Vec<Settings>),
    /// It is the node of a cluster that has this slot.
    OfSlot(Arc<Topology>, u16),
}

impl Config {
    pub(super) fn of_server(url: &str) -> Result<Self, BackendError> {
        Self::at(Settings::of_server(url)?)
    }

    pub(super) fn at(settings: Settings) -> Result<Self, BackendError> {
        let address = settings.address().cloned();
        let nowhere = || settings::invalid("it says nowhere where the server is");
        Ok(Self {
            found: Found::At(address.ok_or_else(nowhere)?),
            settings,
            votes: false,
        })
    }

    pub(super) fn of_master(url: &str) -> Result<Self, BackendError> {
        let (settings, sentinels) = sentinel::read(url)?;
        Ok(Self {
            settings,
            found: Found::BySentinels(sentinels),
            votes: false,
        })
    }

    /// `None` if there is no node.
    pub(super) fn of_cluster(nodes: Vec<Settings>) -> Option<Self> {
        let settings = nodes.first()?.clone();
        let address = settings.address()?.clone();
        Some(Self {
            settings,
            found: Found::ByNodes(address, nodes),
            votes: false,
        })
    }

    /// What makes its connections, or in a cluster, what they have in common.
    pub(super) fn connector(&self, place: Place, clock: ManagerClock) -> Arc<Connector> {
        let locator = match &self.found {
            Found::At(address) | Found::ByNodes(address, _) => Locator::At(address.clone()),
            Found::BySentinels(sentinels) => Locator::Sentinels(Arc::clone(sentinels)),
            Found::OfSlot(topology, slot) => {
                let map: Arc<dyn SlotMap> = Arc::<Topology>::clone(topology);
                Locator::OfSlot(map, *slot)
            }
        };
        Arc::new(Connector {
            locator,
            place,
            settings: self.settings.clone(),
            clock,
            highest_token: AtomicU64::new(0),
            tokens: FoundTier::unknown(),
        })
    }

    /// The nodes of a cluster that its URL names.
    pub(super) fn nodes(&self) -> Vec<Settings> {
        let Found::ByNodes(_, nodes) = &self.found else {
            return Vec::new();
        };
        let request_timeout = self.settings.request_timeout;
        let nodes = nodes.iter().map(|node| Settings {
            request_timeout,
            ..node.clone()
        });
        nodes.collect()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Found::At(_) | Found::OfSlot(..) => self.settings.fmt(f),
            Found::BySentinels(sentinels) => f
                .debug_struct("RedisSentinel")
                .field("sentinels", sentinels)
                .field("master", &self.settings)
                .finish(),
            Found::ByNodes(..) => f
                .debug_struct("RedisCluster")
                .field("nodes", &self.nodes())
                .finish_non_exhaustive(),
        }
    }
}
