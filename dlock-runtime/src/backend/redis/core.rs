//! A backend that has been started: what its operations share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use redis::Cmd;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::clock::Clock;
use super::cluster::{Ears, Side, Topology};
use super::commands;
use super::confirm::Confirmer;
use super::connections::{Connections, Lane};
use super::connector::{Connector, Listener};
use super::errors;
use super::hub::Hub;
use super::names::{Keyspace, Process};
use super::scripts::Form;
use super::sentinel::follow;
use super::settings::Settings;
use super::waiters::{Waiters, WakeUps};
use super::watch;
use crate::backend::suspects::Suspects;
use crate::backend::tier::FoundTier;
use crate::backend::{BackendError, Request, TokenTier};

/// A backend between its start and its stop.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Hub,
    pub(super) confirmer: Option<Confirmer>,
    pub(super) suspects: Suspects,
}

/// What the operations have in common with the tasks of the backend.
pub(super) struct Shared {
    pub(super) connector: Arc<Connector>,
    pub(super) process: Process,
    pub(super) waiters: Arc<Waiters>,
    pub(super) servers: Servers,
    pub(super) release: Release,
}

/// Where the locks are.
pub(super) enum Servers {
    One(One),
    /// Each slot has a node.
    Cluster {
        topology: Arc<Topology>,
        ears: Arc<Ears>,
    },
}

impl Servers {
    /// The masters of a cluster, as far as they are known.
    pub(super) fn masters(&self) -> Vec<String> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Cluster { topology, .. } => {
                let masters = topology.masters().into_iter();
                masters.map(|node| node.address.to_string()).collect()
            }
        }
    }
}

/// The ways to one server.
#[derive(Clone)]
pub(super) struct One {
    pub(super) connections: Arc<Connections>,
    /// The connection of the manager's own runtime.
    pub(super) lane: Arc<Lane>,
    /// The connection over which messages come. It is the same one, unless the
    /// server is a node of a cluster.
    pub(super) ear: Arc<Lane>,
    ears: Arc<Connections>,
}

/// The command that gives a lease back. With a process, the owner may be in the
/// queue of that instead, or as well.
pub(super) type Release = fn(&Keyspace, Form, &Request, Option<Process>) -> Cmd;

impl One {
    pub(super) fn new(connector: &Arc<Connector>, listener: Arc<dyn Listener>) -> Self {
        let connections = Connections::new(Arc::clone(connector));
        if connector.settings.space == Keyspace::Server {
            let lane = connections.of_manager(Some(listener));
            return Self {
                ears: Arc::clone(&connections),
                connections,
                ear: Arc::clone(&lane),
                lane,
            };
        }
        let ears = Connections::new(Arc::clone(connector));
        Self {
            lane: connections.of_manager(None),
            connections,
            ear: ears.of_manager(Some(listener)),
            ears,
        }
    }

    pub(super) fn close(&self) {
        self.connections.close();
        self.ears.close();
    }
}

impl Core {
    /// Connects, checks what the server promises, and starts the tasks, all on
    /// the current runtime.
    pub(super) async fn start(settings: Settings) -> Result<Self, BackendError> {
        let process = Process::unique();
        let waiters = Waiters::new();
        let listener = WakeUps {
            process,
            waiters: Arc::clone(&waiters),
        };
        let (core, one) = Self::open(
            settings,
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
        process: Process,
        waiters: Arc<Waiters>,
        listener: Arc<dyn Listener>,
        release: Release,
    ) -> Result<(Self, One), BackendError> {
        let clock = Clock::of_this_runtime().ok_or_else(errors::outside_runtime)?;
        let place = settings.place();
        let connector = Arc::new(Connector {
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
            servers: Servers::One(one.clone()),
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
        if let Some(sentinels) = shared.connector.settings.sentinels() {
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
            suspects: Suspects::default(),
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
            Servers::Cluster { topology, .. } => topology.close(),
        }
        if let Some(confirmer) = &self.confirmer {
            confirmer.connections().close();
        }
    }
}

impl Shared {
    /// An operation on a lock, on either side.
    pub(super) fn call(&self, side: Side, key: &str) -> Result<Call<'_>, BackendError> {
        match &self.servers {
            Servers::One(one) => {
                let lane = match side {
                    Side::Caller => one.connections.here()?,
                    Side::Manager => Arc::clone(&one.lane),
                };
                Ok(Call::new(&self.connector, lane))
            }
            Servers::Cluster { topology, .. } => {
                let slot = self.space().slot(key);
                Ok(Call::on_way(&self.connector, topology.way(slot, side)))
            }
        }
    }

    pub(super) fn space(&self) -> &Keyspace {
        &self.connector.settings.space
    }

    /// Whether the server can be worked with.
    pub(super) async fn check_server(&self, lane: &Arc<Lane>) -> Result<(), BackendError> {
        let Connector {
            settings, place, ..
        } = &*self.connector;
        let names = ["maxmemory", "maxmemory-policy"];
        let mut call = Call::new(&self.connector, Arc::clone(lane));
        let build = |index: usize, _| match index.checked_sub(1) {
            None => match &settings.space {
                Keyspace::Server => commands::test_message(self.process),
                space => commands::test_message_in(space, self.process, ""),
            },
            Some(setting) => commands::setting(names[setting]),
        };
        let answers = call.ask_all(1 + names.len(), |_| "", build, None).await;
        let mut answers = answers.into_iter();
        answers.next().transpose()?;
        // Servers that are rented out refuse `CONFIG`.
        let found: HashMap<String, String> = answers
            .filter_map(|answer| redis::from_redis_value::<HashMap<_, _>>(answer.ok()?.value).ok())
            .flatten()
            .collect();
        let is = |name: &str, value: &str| found.get(name).is_some_and(|found| found == value);
        if let Some(policy) = found.get("maxmemory-policy")
            && policy != "noeviction"
            && !is("maxmemory", "0")
        {
            tracing::warn!(
                target: "dlock::store",
                "{place} has maxmemory-policy {policy}: when its memory is full it drops locks \
                 that are held; set noeviction, or use a server of its own for locks"
            );
        }
        if let Some(sentinels) = settings.sentinels() {
            sentinels.warn_of_their_number();
            if settings.replicas > 0 {
                let role = call.ask("", |_| commands::role()).await?;
                sentinels.warn_of_replicas(&role.value, settings.replicas);
            }
        }
        Ok(())
    }
}
