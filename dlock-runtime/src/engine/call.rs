//! One operation: its deadline, its attempts, and why they failed.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use super::Running;
use super::time::Backoff;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::store::{Attempt, Cause, Failure, Next, Store};

/// The future of a rare path, boxed so that it does not enlarge every call.
pub(crate) type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How many attempts may follow each other without a pause: two servers may redirect a call to each
/// other for a while.
const AT_ONCE: u32 = 4;

/// Repeats an operation until an attempt succeeds or no further attempt is allowed. `$note` sees
/// each failure.
macro_rules! attempts {
    ($call:ident, |$attempt:ident| $ask:expr) => {
        attempts!($call, |$attempt| $ask, |_failure| ())
    };
    ($call:ident, |$attempt:ident| $ask:expr, |$failure:pat_param| $note:expr) => {
        loop {
            let $attempt = match $call.begin() {
                Ok(attempt) => attempt,
                Err(error) => break Err(error),
            };
            let failure = match $ask.await {
                Ok(answer) => break Ok(answer),
                Err(failure) => {
                    let $failure = &failure;
                    $note;
                    failure
                }
            };
            if let Err(error) = $call.failed(failure).await {
                break Err(error);
            }
        }
    };
}

pub(crate) use attempts;

/// Asks for part after part until an answer is the last one. Each part gets as much time again.
macro_rules! parts {
    ($call:ident, |$attempt:ident| $ask:expr) => {
        loop {
            match attempts!($call, |$attempt| $ask) {
                Ok(Some(found)) => break Ok(found),
                Ok(None) => $call.start_again(),
                Err(error) => break Err(error),
            }
        }
    };
}

pub(crate) use parts;

pub(crate) struct Call<'a, S: Store> {
    running: &'a Running<S>,
    pub(crate) notes: S::Notes,
    deadline: Deadline,
    /// From when the time limit is counted: the beginning of the call, or the store's last answer.
    started: Instant,
    backoff: Backoff,
    /// Number of attempts made without a pause.
    at_once: u32,
    /// Number of consecutive ties.
    ties: u32,
    /// Why the attempts so far have failed. A timeout does not replace an earlier, more exact
    /// cause.
    cause: Option<Cause>,
}

impl<S: Store> Running<S> {
    /// An operation that may take as long as the store may be silent.
    pub(crate) fn call(&self) -> Call<'_, S> {
        self.call_within(self.request_timeout)
    }

    /// An operation of a store's own, which leaves nothing at the server to clean up.
    pub(crate) async fn repeat<T, F>(&self, ask: impl Fn(Deadline) -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut call = self.call();
        attempts!(call, |attempt| ask(attempt.deadline))
    }

    pub(super) fn call_within(&self, limit: Duration) -> Call<'_, S> {
        let started = self.time.now();
        let (first, longest) = S::PAUSES;
        Call {
            running: self,
            notes: S::Notes::default(),
            deadline: Deadline::from(started, limit),
            started,
            backoff: Backoff::new(first, longest),
            at_once: 0,
            ties: 0,
            cause: None,
        }
    }

    /// Checks the store, as the first operation.
    pub(crate) async fn check(&self, limit: Duration) -> Result<(), BackendError> {
        let mut call = self.call_within(limit);
        attempts!(call, |attempt| self.store.check(attempt.deadline))
    }
}

impl<S: Store> Call<'_, S> {
    /// Counts the time limit from now on.
    pub(crate) fn start_again(&mut self) {
        self.count_from(self.running.time.now());
    }

    /// Gives the call time to ask again after it has waited. The request timeout is counted from
    /// when the store was last heard of, but the call has time for a new connection in any case.
    pub(super) fn give_more_time(&mut self) {
        self.count_from(self.running.events.last_response_at());
        self.extend_for_next_question();
    }

    /// The store has answered. The next question has time for an answer, however late this answer
    /// was seen.
    pub(super) fn extend_for_next_question(&mut self) {
        let least = self.running.time.after(self.running.request_timeout / 4);
        self.deadline = self.deadline.max(least);
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    fn count_from(&mut self, start: Instant) {
        self.deadline = Deadline::from(start, self.running.request_timeout);
        self.started = start;
        self.backoff.reset();
        self.ties = 0;
        self.cause = None;
    }

    /// The next attempt. An error if an attempt has failed and the time is over.
    pub(crate) fn begin(&mut self) -> Result<Attempt<'_, S>, BackendError> {
        if self.cause.is_some() && self.running.time.has_passed(self.deadline) {
            return Err(self.give_up());
        }
        Ok(Attempt::new(self.deadline, &mut self.notes))
    }

    /// Records a failed attempt, and waits before the next one. An error if no other attempt is
    /// allowed.
    pub(crate) fn failed(&mut self, failure: Failure) -> Rare<'_, Result<(), BackendError>> {
        Box::pin(async move {
            // A timeout within the little time that was left says less than the earlier failure
            // that used up the time.
            self.cause = Some(match (failure.cause, self.cause.take()) {
                (Cause::Silence | Cause::NotReached(_), Some(earlier)) => earlier,
                (last, _) => last,
            });
            match self.goes_on(failure.next).await {
                true => Ok(()),
                false => Err(self.give_up()),
            }
        })
    }

    /// What the store gave had ended by the time of its answer, and so had what it gave before.
    /// Waits before the next attempt, and gets no more time for it: a store that does this again and
    /// again is not asked for ever.
    pub(super) fn lost_again(&mut self) -> Rare<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let in_time = !self.running.time.has_passed(self.deadline);
            match in_time && self.goes_on(Next::Now).await {
                true => Ok(()),
                false if self.cause.is_some() => Err(self.give_up()),
                false => Err(BackendError::lost_at_once()),
            }
        })
    }

    /// Waits before the next attempt. `false` if no other attempt is allowed.
    async fn goes_on(&mut self, next: Next) -> bool {
        match next {
            Next::Stop => false,
            Next::Now if self.at_once < AT_ONCE => {
                self.at_once += 1;
                true
            }
            Next::Now | Next::Pause => self.pause().await,
        }
    }

    /// The store has answered, but others asked at the same time. Pauses for a random part of a
    /// window that doubles with each tie, so that one of the colliding callers goes first. Then the
    /// time limit starts again.
    pub(super) async fn wait_for_others(&mut self) {
        let window = FIRST_WINDOW.saturating_mul(1 << self.ties.min(16));
        let pause = window.min(LAST_WINDOW).mul_f64(self.running.time.draw());
        let ties = self.ties + 1;
        let time = &self.running.time;
        time.sleep(time.after(pause)).await;
        self.start_again();
        self.ties = ties;
    }

    async fn pause(&mut self) -> bool {
        self.at_once = 0;
        let time = &self.running.time;
        let until = time.after(self.backoff.pause(time));
        if until >= self.deadline {
            return false;
        }
        time.sleep(until).await;
        true
    }

    fn give_up(&mut self) -> BackendError {
        match self.cause.take() {
            Some(Cause::Error(error) | Cause::NotReached(error)) => error,
            Some(Cause::Silence) | None => {
                let now = self.running.time.now();
                let for_long = now.saturating_duration_since(self.started);
                self.running.store.silent(for_long)
            }
        }
    }
}

/// The window from which the pause after a tie is drawn.
const FIRST_WINDOW: Duration = Duration::from_millis(3);
const LAST_WINDOW: Duration = Duration::from_millis(250);
