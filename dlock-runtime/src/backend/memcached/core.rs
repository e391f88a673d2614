//! A backend that has been started: what its operations share.

use std::sync::Arc;
use std::time::Instant;

use super::call::Call;
use super::errors;
use super::hub::Hub;
use super::known::Known;
use super::lanes::{Lane, Lanes};
use super::settings::Settings;
use super::turns::Turns;
use super::watch::Watch;
use crate::backend::BackendError;
use crate::backend::clock::Clock;
use crate::backend::suspects::Suspects;

/// A backend between its start and its stop.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Hub,
    pub(super) suspects: Suspects,
    pub(super) turns: Turns,
}

/// What the operations have in common with the tasks of the backend.
pub(super) struct Shared {
    pub(super) lanes: Arc<Lanes>,
    /// The connections of the manager's own runtime.
    pub(super) own: Arc<Lane>,
    pub(super) known: Known,
    pub(super) watch: Watch,
}

impl Core {
    /// Connects, checks the server, and starts the tasks, all on the current
    /// runtime.
    pub(super) async fn start(settings: Settings) -> Result<Self, BackendError> {
        let clock = Clock::of_this_runtime().ok_or_else(errors::outside_runtime)?;
        let lanes = Lanes::new(settings, clock);
        let shared = Arc::new(Shared {
            own: lanes.here()?,
            lanes,
            known: Known::default(),
            watch: Watch::default(),
        });
        shared.check_server().await?;
        Ok(Self {
            hub: Hub::start(&shared)?,
            suspects: Suspects::default(),
            turns: Turns::default(),
            shared,
        })
    }

    /// An operation on the runtime of its caller.
    pub(super) fn call(&self) -> Result<Call<'_>, BackendError> {
        self.part_of_call(Instant::now())
    }

    /// A part of an operation that was begun before.
    pub(super) fn part_of_call(&self, started: Instant) -> Result<Call<'_>, BackendError> {
        let lanes = &self.shared.lanes;
        Ok(Call::one_of_many(lanes, lanes.here()?, started))
    }

    pub(super) async fn stop(&self) {
        let limit = self.shared.lanes.settings.request_timeout;
        self.hub.stop(&self.shared.lanes.clock, limit).await;
        self.shared.lanes.close();
    }
}

impl Shared {
    /// An operation of the backend's own.
    pub(super) fn own_call(&self) -> Call<'_> {
        self.part_of_own_call(Instant::now())
    }

    /// A part of one that was begun before.
    pub(super) fn part_of_own_call(&self, started: Instant) -> Call<'_> {
        Call::one_of_many(&self.lanes, Arc::clone(&self.own), started)
    }

    /// That it is a server which numbers its items shows when a connection is
    /// made. What is left to see is whether it keeps them.
    async fn check_server(&self) -> Result<(), BackendError> {
        let mut call = self.own_call();
        let evictions = call.ask(|mut connection| async move {
            let evictions = connection.evictions().await;
            (connection, evictions)
        });
        let evictions = evictions.await?.value;
        if evictions > 0 {
            tracing::warn!(
                target: "dlock::store",
                "{} has thrown out {evictions} items to make room since it started: a lock that is \
                 thrown out is free while somebody holds it; use a server of its own for locks, or \
                 give this one more memory",
                self.lanes.settings
            );
        }
        Ok(())
    }
}
