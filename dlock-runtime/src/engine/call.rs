//! One operation: its deadline, its attempts, and why they came to nothing.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use super::Running;
use super::time::Backoff;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::store::{Cause, Failure, Next, Store};

/// What seldom happens, boxed: a call need not make room for it.
pub(crate) type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// So many attempts follow each other without a pause: two servers may send a call
/// to each other for a while.
const AT_ONCE: u32 = 4;

/// Makes attempts of an operation until one has succeeded, or there is no other.
macro_rules! attempts {
    ($call:ident, |$deadline:ident, $attempt:ident| $ask:expr) => {
        loop {
            let ($deadline, $attempt) = match $call.begin() {
                Ok(deadline) => (deadline, &mut $call.attempt),
                Err(error) => break Err(error),
            };
            let failure = match $ask.await {
                Ok(answer) => break Ok(answer),
                Err(failure) => failure,
            };
            if let Err(error) = $call.failed(failure).await {
                break Err(error);
            }
        }
    };
}

pub(crate) use attempts;

pub(crate) struct Call<'a, S: Store> {
    running: &'a Running<S>,
    pub(crate) attempt: S::Attempt,
    deadline: Deadline,
    /// Since when there is no answer.
    started: Instant,
    backoff: Backoff,
    /// So many attempts were made without a pause.
    at_once: u32,
    /// So many ties one after the other.
    ties: u32,
    /// Why the last attempt came to nothing.
    cause: Option<Cause>,
}

impl<S: Store> Running<S> {
    /// An operation, for as long as the store may be silent.
    pub(crate) fn call(&self) -> Call<'_, S> {
        self.call_within(self.request_timeout)
    }

    /// An operation that is not the engine's own, of which nothing is left.
    #[cfg(feature = "redis")]
    pub(crate) async fn repeat<T, F>(&self, ask: impl Fn(Deadline) -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut call = self.call();
        attempts!(call, |deadline, _attempt| ask(deadline))
    }

    pub(super) fn call_within(&self, limit: Duration) -> Call<'_, S> {
        let started = self.time.now();
        let (first, longest) = S::PAUSES;
        Call {
            running: self,
            attempt: S::Attempt::default(),
            deadline: Deadline::from(started, limit),
            started,
            backoff: Backoff::new(first, longest),
            at_once: 0,
            ties: 0,
            cause: None,
        }
    }

    /// The first operation.
    pub(crate) async fn check(&self, limit: Duration) -> Result<(), BackendError> {
        let mut call = self.call_within(limit);
        attempts!(call, |deadline, _attempt| self.store.check(deadline))
    }
}

impl<S: Store> Call<'_, S> {
    /// The operation begins only now.
    pub(super) fn start_again(&mut self) {
        self.count_from(self.running.time.now());
    }

    /// After a time of waiting the store is asked again. It has until its silence
    /// has lasted for the request timeout, counted from when it was last heard
    /// of; but long enough for a new connection in any case.
    pub(super) fn give_more_time(&mut self) {
        self.count_from(self.running.events.last_response_at());
        self.was_answered();
    }

    /// The store has answered. To ask it something else there is time for an answer,
    /// however late this one was seen.
    pub(super) fn was_answered(&mut self) {
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

    /// Until when the next attempt may take; an error if there is no time for one.
    pub(crate) fn begin(&mut self) -> Result<Deadline, BackendError> {
        if self.cause.is_some() && self.running.time.has_passed(self.deadline) {
            return Err(self.give_up());
        }
        Ok(self.deadline)
    }

    /// Takes note of an attempt that has failed, and waits before the next one. An
    /// error if there is none.
    pub(crate) fn failed(&mut self, failure: Failure) -> Rare<'_, Result<(), BackendError>> {
        Box::pin(async move {
            // That nothing came in the little time left says less than why there
            // was so little.
            self.cause = Some(match (failure.cause, self.cause.take()) {
                (Cause::Silence | Cause::NotReached(_), Some(earlier)) => earlier,
                (last, _) => last,
            });
            match failure.next {
                Next::Stop => Err(self.give_up()),
                Next::Now if self.at_once < AT_ONCE => {
                    self.at_once += 1;
                    Ok(())
                }
                Next::Now | Next::Pause => self.pause().await,
            }
        })
    }

    /// The store has answered, and others were as quick. A pause, drawn from the
    /// whole of a window that doubles, so that of several who collide one goes
    /// first; and then there is as much time again.
    pub(super) async fn wait_for_others(&mut self) {
        let window = FIRST_WINDOW.saturating_mul(1 << self.ties.min(16));
        let pause = window.min(LAST_WINDOW).mul_f64(self.running.time.draw());
        let ties = self.ties + 1;
        let time = &self.running.time;
        time.sleep(time.after(pause)).await;
        self.start_again();
        self.ties = ties;
    }

    async fn pause(&mut self) -> Result<(), BackendError> {
        self.at_once = 0;
        let time = &self.running.time;
        let pause = self.backoff.pause(time);
        if time.remaining(self.deadline) <= pause {
            return Err(self.give_up());
        }
        time.sleep(time.after(pause)).await;
        Ok(())
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
