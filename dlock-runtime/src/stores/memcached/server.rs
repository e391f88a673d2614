//! One command and its answer.

use std::sync::Arc;
use std::time::Instant;

use super::connection::Connection;
use super::errors::Failure as Failed;
use super::lanes::{Lanes, Ticket};
use super::settings::Settings;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::{Applied, Cause, Context, Failure, Next};

/// The server, as it is reached from any runtime.
pub(super) struct Server {
    lanes: Arc<Lanes>,
    pub(super) time: Time,
}

impl Server {
    pub(super) fn new(settings: Settings, context: &Context) -> Self {
        Self {
            lanes: Lanes::new(settings, context),
            time: context.time.clone(),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.lanes.settings
    }

    pub(super) fn close(&self) {
        self.lanes.close();
    }

    /// A connection of the runtime that this is called on. Nothing has been sent
    /// when it fails.
    pub(super) async fn ticket(&self, deadline: Deadline) -> Result<Ticket, Failure> {
        let lane = self.lanes.here().map_err(Failure::refused)?;
        let not_had = |failed: Failed| Failure {
            applied: Applied::No,
            ..self.failure(failed, self.time.now())
        };
        lane.ticket(deadline).await.map_err(not_had)
    }

    /// Until when the answer to a command that is sent now is waited for.
    pub(super) fn patience(&self, deadline: Deadline) -> Deadline {
        deadline.min(self.time.after(self.lanes.patience))
    }

    /// Sends a command, and says when.
    pub(super) async fn exchange<T, F>(
        &self,
        deadline: Deadline,
        command: impl FnOnce(Connection) -> F,
    ) -> Result<(T, Instant), Failure>
    where
        T: Send + 'static,
        F: Future<Output = (Connection, Result<T, Failed>)> + Send + 'static,
    {
        let ticket = self.ticket(deadline).await?;
        self.send(ticket, self.patience(deadline), command).await
    }

    pub(super) async fn send<T, F>(
        &self,
        ticket: Ticket,
        by: Deadline,
        command: impl FnOnce(Connection) -> F,
    ) -> Result<(T, Instant), Failure>
    where
        T: Send + 'static,
        F: Future<Output = (Connection, Result<T, Failed>)> + Send + 'static,
    {
        let sent_at = self.time.now();
        match ticket.send(command).answer(by).await {
            Ok(value) => Ok((value, sent_at)),
            Err(failed) => Err(self.failure(failed, sent_at)),
        }
    }

    /// What a command that was sent then has failed with.
    pub(super) fn failure(&self, failed: Failed, sent_at: Instant) -> Failure {
        let applied = match failed.is_in_doubt() {
            true => Applied::Unknown { sent_at },
            false => Applied::No,
        };
        let (next, cause) = match failed {
            Failed::Silent => (Next::Pause, Cause::Silence),
            said => {
                let (next, error) = said.told(&self.lanes.settings);
                (next, Cause::Error(error))
            }
        };
        Failure {
            cause,
            next,
            applied,
        }
    }
}
