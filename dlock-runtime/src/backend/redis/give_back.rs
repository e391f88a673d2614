//! Giving back what a request may have left at the server when its caller has
//! gone, or no longer knows.
//!
//! A command whose answer was lost may be run later than anything that is sent
//! after it over another connection, and would then lock the key, or queue for
//! it, for nobody: a ghost. What was sent over one connection is run in order.
//! So if the connection still works, one release behind the last command is the
//! end of it. If not, the release is repeated until the ghost's ttl has passed,
//! and from then on until the server has answered twice: what it had received
//! when it answered the first time, it has run before the second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, ServerError, Value};
use tokio_util::sync::CancellationToken;

use super::call::Answer;
use super::connection::Connection;
use super::errors::{Remedy, remedy};
use super::lost::Lost;
use super::scripts::Form;
use super::server_connections::Side;
use super::shared::{Release, Shared};
use super::waiters::Waiters;
use crate::backend::clock::{Backoff, Deadline};
use crate::backend::ghost::Ghost;
use crate::backend::{BackendError, BackendErrorKind, Owner, Request};
use crate::in_flight::Counted;

/// How long the caller's own connection has to answer before another is used as
/// well. Its runtime may be blocked, or not running at all.
const BEHIND: Duration = Duration::from_millis(250);

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What is to be given back.
pub(super) struct GiveBack {
    pub(super) request: Request,
    /// The connection over which commands are in flight.
    pub(super) behind: Option<Connection>,
    /// When commands were last sent that were never answered.
    pub(super) unanswered: Option<Instant>,
    pub(super) release: Release,
}

impl GiveBack {
    /// Works until nothing of the request can be left. When `stopping`, once
    /// is enough. `unsettled` is kept until the server has been told.
    pub(super) async fn run(
        self,
        shared: Arc<Shared>,
        stopping: CancellationToken,
        unsettled: Counted,
    ) {
        let leaving = Leaving::new(&shared.waiters, self.request.owner);
        let dropped_at = Instant::now();
        let Some(connection) = &self.behind else {
            let ghost = Ghost::sent(self.unanswered, dropped_at, self.request.ttl);
            return self
                .repeat(&shared, ghost, &leaving, &stopping, unsettled)
                .await;
        };
        let behind = self.release_behind(connection, &shared);
        tokio::pin!(behind);
        let clock = &shared.connector.clock;
        let first = clock.bound(Deadline::after(BEHIND), &mut behind).await;
        let (doubt, may_answer) = match first {
            Ok(Ok(())) if self.unanswered.is_none() => return,
            Ok(Ok(())) => (self.unanswered, false),
            // Nothing of it was run before the slot moved, or all of it.
            Ok(Err(Lost::Broken(error))) if is_redirection(&error) => (self.unanswered, false),
            Ok(Err(_)) => {
                connection.discard();
                (Some(dropped_at), false)
            }
            Err(_) => (Some(dropped_at), self.unanswered.is_none()),
        };
        let ghost = Ghost::sent(doubt, dropped_at, self.request.ttl);
        tokio::select! {
            () = self.repeat(&shared, ghost, &leaving, &stopping, unsettled) => {}
            Ok(()) = behind, if may_answer => {}
        }
    }

    /// Sends a release over the connection on which the request's other
    /// commands were sent.
    async fn release_behind(&self, connection: &Connection, shared: &Shared) -> Result<(), Lost> {
        for form in [Form::Digest, Form::Source] {
            let command = (self.release)(shared.space(), form, &self.request, Some(shared.process));
            match connection.run_behind(command).await? {
                Value::ServerError(error) if remedy(&error) == Remedy::SendScript => {}
                Value::ServerError(error) => return Err(Lost::Broken(error.into())),
                _ => break,
            }
        }
        Ok(())
    }

    async fn release(&self, shared: &Shared) -> Result<Answer, BackendError> {
        let key = &self.request.key;
        let mut call = shared.call(Side::Manager, key)?;
        let process = Some(shared.process);
        call.ask(key, |form| {
            (self.release)(shared.space(), form, &self.request, process)
        })
        .await
    }

    /// Sends releases over the manager's connection: one, or if there may be a
    /// ghost, as many as it takes until that has ended. However long an outage
    /// lasts, it is for those only that were in flight when it began.
    async fn repeat(
        &self,
        shared: &Shared,
        mut ghost: Ghost,
        leaving: &Leaving<'_>,
        stopping: &CancellationToken,
        unsettled: Counted,
    ) {
        let mut unsettled = Some(unsettled);
        let clock = &shared.connector.clock;
        let timeout = shared.connector.settings.request_timeout;
        let new_backoff = || Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let mut backoff = new_backoff();
        loop {
            let asked = Instant::now();
            let answer = self.release(shared).await;
            let told = answer.is_ok();
            let enough = match answer {
                Ok(_) => ghost.is_gone() || stopping.is_cancelled(),
                // It will not be allowed later either.
                Err(error) if error.kind() != BackendErrorKind::Unavailable => ghost.has_ended(),
                Err(_) => {
                    if asked.elapsed() >= timeout / 2 {
                        // Waiting for an answer was pause enough.
                        backoff = new_backoff();
                    }
                    false
                }
            };
            if enough {
                return;
            }
            if told || ghost.has_ended() {
                drop(unsettled.take());
            }
            tokio::select! {
                () = clock.sleep(ghost.before_its_end(backoff.pause())) => {}
                // It was granted just now.
                () = leaving.granted() => {}
                () = stopping.cancelled(), if !stopping.is_cancelled() => {}
            }
        }
    }
}

/// Whether another node of a cluster has the slot now.
fn is_redirection(error: &RedisError) -> bool {
    ServerError::try_from(error.clone()).is_ok_and(|error| {
        matches!(
            remedy(&error),
            Remedy::Moved | Remedy::Ask | Remedy::Cluster | Remedy::Retry
        )
    })
}

/// Listens for grants to an owner who has left.
struct Leaving<'a> {
    waiters: &'a Waiters,
    owner: Owner,
    granted: Arc<tokio::sync::Notify>,
}

impl<'a> Leaving<'a> {
    fn new(waiters: &'a Waiters, owner: Owner) -> Self {
        Self {
            waiters,
            owner,
            granted: waiters.leaves(owner),
        }
    }

    async fn granted(&self) {
        self.granted.notified().await;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.waiters.left(self.owner);
    }
}
