//! Giving back what a request may have left at the server when its caller has
//! gone, or no longer knows.
//!
//! A command that is under way when its caller goes is answered all the same,
//! and the answer says what is to be given back. Where none comes, the command
//! may be run later than anything that is sent after it: a
//! [ghost](crate::backend::ghost).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::connection::{Added, Owned};
use super::core::Shared;
use super::errors::Failure;
use super::expiry::Expiry;
use crate::backend::BackendErrorKind;
use crate::backend::clock::{Backoff, Deadline};
use crate::backend::ghost::Ghost;
use crate::in_flight::Counted;

/// How long the caller's own connection has to answer before another is used as
/// well. Its runtime may be blocked, or not running at all.
const BEHIND: Duration = Duration::from_millis(250);

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What is to be given back.
pub(super) struct GiveBack {
    pub(super) lock: Owned,
    pub(super) expiry: Expiry,
    /// An `add` that is under way on the runtime of its caller.
    pub(super) behind: Option<JoinHandle<Result<Added, Failure>>>,
    /// When the last `add` was sent that was never answered.
    pub(super) unanswered: Option<Instant>,
}

/// How an `add` has ended whose caller has gone.
enum Ended {
    /// Nothing was taken.
    Nothing,
    Taken,
    InDoubt,
}

impl GiveBack {
    /// Works until nothing of the request can be left. When `stopping`, once
    /// is enough. `unsettled` is kept until the server has been told.
    pub(super) async fn run(
        mut self,
        shared: Arc<Shared>,
        stopping: CancellationToken,
        unsettled: Counted,
    ) {
        let dropped_at = Instant::now();
        let ghost = |since| Ghost::sent(since, dropped_at, self.expiry.at_most());
        let Some(mut behind) = self.behind.take() else {
            let ghost = ghost(self.unanswered);
            return self.repeat(&shared, ghost, &stopping, unsettled).await;
        };
        let clock = &shared.lanes.clock;
        let (ended, late) = match clock.bound(Deadline::after(BEHIND), &mut behind).await {
            Ok(answer) => (ended(&answer), None),
            Err(_) => (Ended::InDoubt, Some(behind)),
        };
        let late = async {
            match late {
                Some(late) => late.await,
                None => std::future::pending().await,
            }
        };
        let doubt = match (ended, self.unanswered) {
            (Ended::Nothing, None) => return,
            (Ended::Nothing | Ended::Taken, unanswered) => unanswered,
            (Ended::InDoubt, _) => Some(dropped_at),
        };
        let ghost = ghost(doubt);
        tokio::select! {
            () = self.repeat(&shared, ghost, &stopping, unsettled) => {}
            // Nothing was taken, and nothing will be.
            Ok(Ok(Added::Held)) = late, if self.unanswered.is_none() => {}
        }
    }

    /// Gives the lock back: once, or if there may be a ghost, as many times as
    /// it takes until that has ended. However long an outage lasts, it is for
    /// those only that were under way when it began.
    async fn repeat(
        &self,
        shared: &Shared,
        mut ghost: Ghost,
        stopping: &CancellationToken,
        unsettled: Counted,
    ) {
        let mut unsettled = Some(unsettled);
        let timeout = shared.lanes.settings.request_timeout;
        let new_backoff = || Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let mut backoff = new_backoff();
        loop {
            let asked = Instant::now();
            let mut call = shared.own_call();
            let answer = call
                .ask(|mut connection| {
                    let lock = self.lock.clone();
                    async move {
                        let deleted = connection.delete(&lock, None).await;
                        (connection, deleted)
                    }
                })
                .await;
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
            let pause = ghost.before_its_end(backoff.pause());
            tokio::select! {
                () = shared.lanes.clock.sleep(pause) => {}
                () = stopping.cancelled(), if !stopping.is_cancelled() => {}
            }
        }
    }
}

fn ended(answer: &Result<Result<Added, Failure>, JoinError>) -> Ended {
    match answer {
        Ok(Ok(Added::Held)) => Ended::Nothing,
        Ok(Ok(Added::Taken(_))) => Ended::Taken,
        Ok(Err(failure)) if !failure.is_in_doubt() => Ended::Nothing,
        // Its runtime has ended with it.
        Ok(Err(_)) | Err(_) => Ended::InDoubt,
    }
}
