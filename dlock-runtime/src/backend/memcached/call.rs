//! One operation: its deadline, its connection, and what is done when no
//! answer comes.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::errors::Failure;
use super::lanes::{Lane, Lanes, Ticket};
use crate::backend::BackendError;
use crate::backend::clock::{Backoff, Deadline};

/// Sends the commands of one operation, until there is an answer or its time
/// has passed.
pub(super) struct Call<'a> {
    lanes: &'a Lanes,
    lane: Arc<Lane>,
    started: Instant,
    deadline: Deadline,
    /// How long one answer is waited for, at most.
    patience: Duration,
    backoff: Backoff,
    /// Why the last attempt came to nothing.
    failure: Option<Failure>,
}

/// An answer to [`Call::ask`].
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// When the command was sent that was answered.
    pub(super) sent_at: Instant,
    /// The command was sent before, and that answer was lost.
    pub(super) repeated: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(lanes: &'a Lanes, lane: Arc<Lane>) -> Self {
        Self::one_of_many(lanes, lane, Instant::now())
    }

    /// A part of an operation that was begun before: the parts share its time.
    pub(super) fn one_of_many(lanes: &'a Lanes, lane: Arc<Lane>, started: Instant) -> Self {
        Self {
            lanes,
            lane,
            started,
            deadline: Deadline::from(started, lanes.settings.request_timeout),
            patience: lanes.settings.patience(),
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_millis(250)),
            failure: None,
        }
    }

    /// Waits no longer than this for one answer, and then asks again over a new
    /// connection.
    pub(super) fn patient_for(mut self, limit: Duration) -> Self {
        self.patience = self.patience.min(limit);
        self
    }

    /// Waits for one long answer for as long as there is time.
    pub(super) fn patient_to_the_end(mut self) -> Self {
        self.patience = self.lanes.settings.request_timeout;
        self
    }

    /// Begins anew: the server was heard of just now.
    pub(super) fn restart(&mut self) {
        let patience = self.patience;
        *self = Self::new(self.lanes, Arc::clone(&self.lane)).patient_for(patience);
    }

    /// Until when the answer to a command that is sent now is waited for.
    pub(super) fn answer_by(&self) -> Deadline {
        self.deadline.within(self.patience)
    }

    /// The connection for the next attempt. An error ends the call.
    pub(super) async fn ticket(&mut self) -> Result<Ticket, BackendError> {
        loop {
            let ticket = if self.deadline.has_passed() {
                // Others of its operation have used up the time.
                Err(Failure::Silent)
            } else {
                self.lane.ticket(self.deadline).await
            };
            match ticket {
                Ok(ticket) => return Ok(ticket),
                Err(failure) => self.failed(failure).await?,
            }
        }
    }

    /// Takes note of an attempt that has failed, and waits a little before the
    /// next one. An error if there is none.
    pub(super) async fn failed(&mut self, failure: Failure) -> Result<(), BackendError> {
        let pause = self.backoff.pause();
        if !failure.may_pass() || self.deadline.remaining() <= pause {
            // That nothing came in the little time left says less than why
            // there was so little.
            let told = match (failure, self.failure.take()) {
                (Failure::Silent, Some(earlier)) => earlier,
                (last, _) => last,
            };
            return Err(told.into_error(&self.lanes.settings, self.started.elapsed()));
        }
        self.failure = Some(failure);
        // Seldom, and so not in the room of every call.
        Box::pin(self.lanes.clock.sleep(Deadline::after(pause))).await;
        Ok(())
    }

    /// Sends a command until it is answered. It must do no harm when it is run
    /// twice.
    pub(super) async fn ask<T, F>(
        &mut self,
        command: impl Fn(Connection) -> F,
    ) -> Result<Answer<T>, BackendError>
    where
        T: Send + 'static,
        F: Future<Output = (Connection, Result<T, Failure>)> + Send + 'static,
    {
        let mut repeated = false;
        loop {
            let ticket = self.ticket().await?;
            let sent_at = Instant::now();
            match ticket.send(&command).answer(self.answer_by()).await {
                Ok(value) => {
                    return Ok(Answer {
                        value,
                        sent_at,
                        repeated,
                    });
                }
                Err(failure) => {
                    repeated |= failure.is_in_doubt();
                    self.failed(failure).await?;
                }
            }
        }
    }
}
