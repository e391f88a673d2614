//! A backend that has been started: what its operations share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use redis::Cmd;

use super::call::Call;
use super::clock::Clock;
use super::commands;
use super::confirm::Confirmer;
use super::connections::{Connections, Lane};
use super::connector::{Connector, Listener};
use super::errors;
use super::hub::Hub;
use super::names::Process;
use super::scripts::Form;
use super::settings::Settings;
use super::waiters::{Waiters, WakeUps};
use crate::backend::suspects::Suspects;
use crate::backend::{BackendError, Request, TokenTier};

/// A backend between its start and its stop.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) connections: Arc<Connections>,
    pub(super) hub: Hub,
    pub(super) confirmer: Option<Confirmer>,
    pub(super) suspects: Suspects,
    pub(super) tokens: TokenTier,
}

/// What the operations have in common with the tasks of the backend.
pub(super) struct Shared {
    pub(super) connector: Arc<Connector>,
    pub(super) process: Process,
    pub(super) waiters: Arc<Waiters>,
    /// The connection of the manager's own runtime, with the messages.
    pub(super) lane: Arc<Lane>,
    pub(super) release: Release,
}

/// The command that gives a lease back. With a process, the owner may be in the
/// queue of that instead, or as well.
pub(super) type Release = fn(Form, &Request, Option<Process>) -> Cmd;

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
        let mut core = Self::open(
            settings,
            process,
            waiters,
            Arc::new(listener),
            commands::release,
        )?;
        core.tokens = core.shared.check_server().await?;
        Ok(core)
    }

    /// Starts the tasks on the current runtime. Nothing is connected yet.
    pub(super) fn open(
        settings: Settings,
        process: Process,
        waiters: Arc<Waiters>,
        listener: Arc<dyn Listener>,
        release: Release,
    ) -> Result<Self, BackendError> {
        let clock = Clock::of_this_runtime().ok_or_else(errors::outside_runtime)?;
        let place = settings.place();
        let connector = Arc::new(Connector {
            settings,
            place,
            clock,
            highest_token: AtomicU64::new(0),
        });
        let connections = Connections::new(Arc::clone(&connector));
        let lane = connections.with_messages(listener)?;
        let shared = Arc::new(Shared {
            connector,
            process,
            waiters,
            lane,
            release,
        });
        let replicas = shared.connector.settings.replicas;
        let confirmer = (replicas > 0)
            .then(|| Confirmer::start(&shared, replicas))
            .transpose()?;
        let confirming = confirmer.iter().map(Confirmer::connections);
        let all = std::iter::once(&connections)
            .chain(confirming)
            .cloned()
            .collect();
        Ok(Self {
            hub: Hub::start(&shared, all),
            confirmer,
            shared,
            connections,
            suspects: Suspects::default(),
            tokens: TokenTier::BestEffort,
        })
    }

    /// An operation on the runtime of its caller.
    pub(super) fn call(&self) -> Result<Call<'_>, BackendError> {
        Ok(Call::new(&self.shared.connector, self.connections.here()?))
    }

    pub(super) async fn stop(&self) {
        let limit = self.shared.connector.settings.request_timeout;
        self.hub.stop(&self.shared, limit).await;
        self.connections.close();
        if let Some(confirmer) = &self.confirmer {
            confirmer.connections().close();
        }
    }
}

impl Shared {
    /// Whether the server can be worked with, and what its tokens are worth.
    pub(super) async fn check_server(&self) -> Result<TokenTier, BackendError> {
        let Connector {
            settings, place, ..
        } = &*self.connector;
        let names = ["appendonly", "appendfsync", "maxmemory", "maxmemory-policy"];
        let mut call = Call::new(&self.connector, Arc::clone(&self.lane));
        let build = |index: usize, _| match index.checked_sub(1) {
            None => commands::test_message(self.process),
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
            // A master is followed by a replica that may not have it all.
            return Ok(TokenTier::BestEffort);
        }
        Ok(if is("appendonly", "yes") && is("appendfsync", "always") {
            TokenTier::Strict
        } else {
            TokenTier::BestEffort
        })
    }
}
