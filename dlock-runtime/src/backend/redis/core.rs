//! A backend that has been started: its state, and its tasks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::cluster::Topology;
use super::commands;
use super::confirm::Confirmer;
use super::connector::{Connector, Listener};
use super::errors;
use super::hub::Hub;
use super::locate::{Locator, SlotMap};
use super::process::Process;
use super::sentinel::{Sentinels, follow};
use super::server_connections::{One, Side};
use super::settings::{self, Settings};
use super::shared::{Release, Servers, Shared};
use super::waiters::{Waiters, WakeUps};
use super::watch;
use crate::backend::address::Address;
use crate::backend::clock::Clock;
use crate::backend::tier::FoundTier;
use crate::backend::unknown_outcomes::UnknownOutcomes;
use crate::backend::{BackendError, TokenTier};

/// A backend between its start and its stop.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Hub,
    pub(super) confirmer: Option<Confirmer>,
    pub(super) unknown: UnknownOutcomes,
}

/// Which server a backend works with.
pub(super) enum Target {
    At(Address),
    /// The master that these name.
    Master(Arc<Sentinels>),
    /// The node of the cluster that has this slot.
    Voter(Arc<Topology>, u16),
}

impl Target {
    /// The server at the address in the URL.
    pub(super) fn fixed(settings: &Settings) -> Result<Self, BackendError> {
        let address = settings.address().cloned();
        let nowhere = || settings::invalid("it says nowhere where the server is");
        Ok(Self::At(address.ok_or_else(nowhere)?))
    }

    fn locator(&self) -> Locator {
        match self {
            Self::At(address) => Locator::At(address.clone()),
            Self::Master(sentinels) => Locator::Sentinels(Arc::clone(sentinels)),
            Self::Voter(topology, slot) => {
                let map: Arc<dyn SlotMap> = Arc::<Topology>::clone(topology);
                Locator::OfSlot(map, *slot)
            }
        }
    }

    fn servers(self, connections: One) -> Servers {
        match self {
            Self::At(_) | Self::Master(_) => Servers::One(connections),
            Self::Voter(topology, slot) => Servers::Voter {
                connections,
                topology,
                slot,
            },
        }
    }
}

impl Core {
    /// Connects, checks what the server promises, and starts the tasks, all on
    /// the current runtime.
    pub(super) async fn start(settings: Settings, target: Target) -> Result<Self, BackendError> {
        let process = Process::unique();
        let waiters = Waiters::new();
        let listener = WakeUps {
            process,
            waiters: Arc::clone(&waiters),
        };
        let (core, one) = Self::open(
            settings,
            target,
            process,
            waiters,
            Arc::new(listener),
            commands::release,
        )?;
        core.shared.check_server(&one.lane).await?;
        Ok(core)
    }

    /// Starts the tasks on the current runtime. Nothing is connected yet.
    pub(super) fn open(
        settings: Settings,
        target: Target,
        process: Process,
        waiters: Arc<Waiters>,
        listener: Arc<dyn Listener>,
        release: Release,
    ) -> Result<(Self, One), BackendError> {
        let clock = Clock::of_this_runtime().ok_or_else(errors::outside_runtime)?;
        let place = settings.place();
        let connector = Arc::new(Connector {
            locator: target.locator(),
            settings,
            place,
            clock,
            highest_token: AtomicU64::new(0),
            tokens: FoundTier::unknown(),
        });
        let one = One::new(&connector, listener);
        let shared = Arc::new(Shared {
            connector,
            process,
            waiters,
            servers: target.servers(one.clone()),
            release,
        });
        let replicas = shared.connector.settings.replicas;
        let confirmer = (replicas > 0)
            .then(|| Confirmer::start(&shared, replicas))
            .transpose()?;
        let stopping = CancellationToken::new();
        let lane = Arc::clone(&one.lane);
        let watch = watch::keep_watch(Arc::clone(&shared), lane, stopping.clone());
        let mut tasks = vec![tokio::spawn(watch)];
        if let Some(sentinels) = shared.connector.locator.sentinels() {
            let confirming = confirmer.iter().map(Confirmer::connections);
            let all = std::iter::once(&one.connections).chain(confirming);
            tasks.push(tokio::spawn(follow(
                Arc::clone(sentinels),
                Arc::clone(&shared),
                all.cloned().collect(),
                stopping.clone(),
            )));
        }
        let core = Self {
            hub: Hub::start(&shared, tasks, stopping),
            confirmer,
            shared,
            unknown: UnknownOutcomes::default(),
        };
        Ok((core, one))
    }

    /// What the tokens are worth, by the connection that was made last.
    pub(super) fn tokens(&self) -> TokenTier {
        self.shared.connector.tokens.get()
    }

    /// An operation on a lock, on the runtime of its caller.
    pub(super) fn call(&self, key: &str) -> Result<Call<'_>, BackendError> {
        self.shared.call(Side::Caller, key)
    }

    pub(super) async fn stop(&self) {
        let limit = self.shared.connector.settings.request_timeout;
        self.hub.stop(&self.shared, limit).await;
        match &self.shared.servers {
            Servers::One(one) => one.close(),
            Servers::Voter { connections, .. } => connections.close(),
            Servers::Cluster { topology, .. } => topology.close(),
        }
        if let Some(confirmer) = &self.confirmer {
            confirmer.connections().close();
        }
    }
}
