//! Taking a lock.
//!
//! A free lock that nobody waits for is taken by a script of its own,
//! `take.sql`. Everything else is one script, `acquire.sql`, which is asked until
//! it grants: to wait is to ask once more whenever there is cause. Either may be
//! asked twice for one owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Asked, Core};
use super::driver::{Answer, Column};
use super::script::{Args, Asks, patience};
use crate::backend::{BackendError, Grant, Mode, Request};
use crate::token::FencingToken;

impl Core {
    pub(super) async fn try_acquire(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut acquisition = Acquisition::new(self, request);
        // For all that it asks.
        let deadline = self.deadline();
        if request.mode == Mode::Write
            && let Some(grant) = acquisition.take(deadline).await?
        {
            return Ok(Some(grant));
        }
        acquisition.ask(Asks::Try, deadline).await
    }

    pub(super) async fn acquire(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Grant, BackendError> {
        let mut acquisition = Acquisition::new(self, request);
        // Who does not wait costs no signs of life, looks and farewells.
        let at_once = match request.mode {
            Mode::Write => acquisition.take(self.deadline()).await?,
            Mode::Read => acquisition.ask(Asks::Try, self.deadline()).await?,
        };
        if let Some(grant) = at_once {
            return Ok(grant);
        }
        let waiting = self.waiters.enter(&request.key, &acquisition.owner);
        loop {
            let asks = if self.is_known() {
                Asks::Queue
            } else {
                Asks::QueueAndBeat
            };
            if let Some(grant) = acquisition.ask(asks, self.deadline()).await? {
                return Ok(grant);
            }
            waiting.is_queued();
            waiting.woken().await;
        }
    }
}

/// A request on its way to a grant. Dropped before that, it gives back what it
/// may have left in the database.
struct Acquisition<'a> {
    core: &'a Arc<Core>,
    request: &'a Request,
    owner: Arc<str>,
    /// A script that is being run.
    in_flight: Option<Asked>,
    /// It may have a place in the queue, or the lock.
    left: bool,
    /// A script that was sent then was not answered, and may be run yet.
    unanswered: Option<Instant>,
}

impl<'a> Acquisition<'a> {
    fn new(core: &'a Arc<Core>, request: &'a Request) -> Self {
        core.is_used();
        Self {
            core,
            request,
            owner: request.owner.to_string().into(),
            in_flight: None,
            left: false,
            unanswered: None,
        }
    }

    /// Takes the lock if it is free and nobody waits. `None` says nothing.
    async fn take(&mut self, deadline: Instant) -> Result<Option<Grant>, BackendError> {
        let script = self.core.scripts.take(&self.args());
        let columns = &[Column::Int, Column::Int];
        let answer = self.run(script, columns, deadline).await?;
        Ok(answer.rows.last().map(|row| {
            self.core.durability.found(row.int(1) == 1);
            self.granted(row.int(0), answer.sent_at)
        }))
    }

    /// Asks for the lock, or for a place in its queue.
    async fn ask(&mut self, asks: Asks, deadline: Instant) -> Result<Option<Grant>, BackendError> {
        let columns = &[Column::Int, Column::Int, Column::Int, Column::Int];
        let script = self
            .core
            .scripts
            .acquire(self.request.mode, asks, &self.args());
        let answer = self.run(script, columns, deadline).await?;
        if asks == Asks::QueueAndBeat && self.core.beats(answer.sent_at) {
            self.core.waiters.wake_all();
        }
        let Some(row) = answer.rows.first() else {
            return Err(BackendError::unavailable(
                "it gave no answer to a script; is there something between that changes them?",
            ));
        };
        if row.int(0) == 1 {
            self.core.durability.found(row.int(3) == 1);
            return Ok(Some(self.granted(row.int(1), answer.sent_at)));
        }
        self.left = asks != Asks::Try;
        self.request.is_held_by_somebody();
        Ok(None)
    }

    async fn run(
        &mut self,
        script: String,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Result<Answer, BackendError> {
        let asked = self.core.begin(script, columns, deadline);
        let asked = self.in_flight.insert(asked);
        let answer = asked.answer().await;
        if !self.core.is_over(&answer) {
            self.unanswered = Some(asked.begun);
        }
        if answer.is_ok() {
            self.in_flight = None;
        }
        answer
    }

    fn granted(&mut self, token: i64, sent_at: Instant) -> Grant {
        self.left = false;
        if let Some(unanswered) = self.unanswered.take() {
            let until = unanswered.checked_add(self.core.may_run_within());
            let owner = self.request.owner;
            self.core
                .unknown
                .add(owner, unanswered, until, Instant::now());
        }
        let token = FencingToken::from(token.unsigned_abs());
        Grant::new(token, tokio::time::Instant::from_std(sent_at))
    }

    fn args(&self) -> Args<'_> {
        Args {
            key: &self.request.key,
            owner: &self.owner,
            ttl: self.request.ttl,
            ..self.core.args()
        }
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let in_flight = self.in_flight.take();
        if in_flight.is_some() || self.left || self.unanswered.is_some() {
            self.core
                .give_back(self.request, in_flight, self.unanswered);
        }
    }
}

/// A pause between two attempts to give something back.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

impl Core {
    /// A database that did not answer may run a script later: one that was sent
    /// within the request timeout, for as long as it has patience.
    fn may_run_within(&self) -> Duration {
        self.request_timeout + patience(self.request_timeout)
    }

    /// Gives back what a request may have left in the database, behind a script
    /// that is being run for it. Works from a `Drop`, and outside a runtime.
    pub(super) fn give_back(
        self: &Arc<Self>,
        request: &Request,
        in_flight: Option<Asked>,
        mut unanswered: Option<Instant>,
    ) {
        let core = Arc::clone(self);
        let request = request.clone();
        let dropped_at = Instant::now();
        self.run_behind(|unsettled| async move {
            let mut unsettled = Some(unsettled);
            if let Some(asked) = in_flight {
                // The caller may have left before it was known.
                unanswered = asked.unanswered().await.or(unanswered);
            }
            let owner = request.owner.to_string();
            // It gives a lock the ttl.
            let ghost = core.may_run_within();
            let ghost_until = unanswered.map(|sent| sent + ghost);
            let give_up = dropped_at + request.ttl.max(ghost);
            let mut pause = FIRST_PAUSE;
            loop {
                let script = core.scripts.leave(&Args {
                    key: &request.key,
                    owner: &owner,
                    ..core.args()
                });
                let told = core.run(&script, &[Column::Int]).await.is_ok();
                let now = Instant::now();
                let is_gone = ghost_until.is_none_or(|until| until <= now);
                if (told && (is_gone || core.stopping.is_cancelled())) || now >= give_up {
                    return;
                }
                if told || now >= dropped_at + request.ttl {
                    // What may come yet is nothing to wait for: most often nothing
                    // does.
                    drop(unsettled.take());
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = core.stopping.cancelled(), if !core.stopping.is_cancelled() => {}
                }
                pause = (2 * pause).min(LAST_PAUSE);
            }
        });
    }
}
