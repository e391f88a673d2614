//! Giving back what a request may have left at the store when its caller has
//! gone, or no longer knows. The one place where that is decided, for every
//! store.
//!
//! What was on its way when the caller left is followed first: on most stores
//! that is the end of it, within a round trip. Where no answer comes, the command
//! may be run later than anything that is sent after it. So the release is
//! repeated for as long as the store says that it may ([`Late`]), and from then
//! on until the store has answered: what it had received when it answered the
//! first time, it has run before the second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Running;
use super::call::{Call, attempts};
use super::time::Backoff;
use super::waiters::Leaving;
use crate::backend::{BackendError, BackendErrorKind, Request};
use crate::deadline::Deadline;
use crate::in_flight::Counted;
use crate::store::{Abandoned, Ending, Followed, Late, LeftBehind, Store};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What is to be given back.
struct Cleanup<S: Store> {
    running: Arc<Running<S>>,
    request: Request,
    record: Option<S::Record>,
    ending: Ending,
}

impl<S: Store> Running<S> {
    /// A command of this request, sent then, was never answered. The release of its
    /// lease will see to that.
    pub(crate) fn note_unknown(
        &self,
        request: &Request,
        record: Option<&S::Record>,
        sent_at: Instant,
    ) {
        let until = match self.store.late(request, record, sent_at) {
            Late::Never => return,
            Late::Until(end) => Some(end.at()),
            Late::In(_) => None,
        };
        let now = self.time.now();
        self.unknown.add(request.owner, sent_at, until, now);
    }

    /// Works from a `Drop`, and outside a runtime. If the backend has stopped,
    /// the lease ends by its ttl.
    pub(super) fn clean_up(
        self: &Arc<Self>,
        request: Request,
        abandoned: Abandoned<S>,
        left: &LeftBehind,
    ) {
        let counted = self.unsettled.count();
        let dropped_at = self.time.now();
        let cleanup = Cleanup {
            running: Arc::clone(self),
            request,
            record: abandoned.record,
            ending: left.ending,
        };
        let work = cleanup.run(abandoned.flight, left.unknown, dropped_at, counted);
        self.spawn(work);
    }

    /// Ends a lease that the store does not. Nobody has to wait for it: its holder
    /// has been told, or has given it back.
    pub(super) fn end(self: &Arc<Self>, request: Request, record: S::Record) {
        let (running, owner) = (Arc::clone(self), request.owner);
        let cleanup = Cleanup {
            running: Arc::clone(self),
            request,
            record: Some(record),
            ending: Ending::Left,
        };
        self.spawn(async move {
            let leaving = running.events.waiters().leaves(owner);
            let now = running.time.now();
            let unknown = running.unknown.take(owner, || now);
            cleanup.repeat(unknown, now, &leaving, &mut None).await;
            running.table.remove(owner);
        });
    }
}

impl<S: Store> Cleanup<S> {
    async fn run(
        self,
        flight: Option<S::Flight>,
        unknown: Option<Instant>,
        dropped_at: Instant,
        unsettled: Counted,
    ) {
        let mut unsettled = Some(unsettled);
        let running = Arc::clone(&self.running);
        let leaving = running.events.waiters().leaves(self.request.owner);
        let Some(flight) = flight else {
            return self
                .repeat(unknown, dropped_at, &leaving, &mut unsettled)
                .await;
        };
        let followed = running.store.follow(flight, &self.request);
        tokio::pin!(followed);
        let limit = Deadline::from(dropped_at, S::FLIES_FOR);
        let (doubt, flies) = match running.time.bound(limit, &mut followed).await {
            Ok(Followed::Settled) if unknown.is_none() => return,
            Ok(Followed::Settled | Followed::Run) => (unknown, false),
            Ok(Followed::Unknown) => (Some(dropped_at), false),
            Err(_) => (Some(dropped_at), true),
        };
        let lands = async {
            match followed.await {
                Followed::Settled if unknown.is_none() => return,
                // Just now: it is given back at once.
                Followed::Run => running.events.wake(self.request.owner, &self.request.key),
                Followed::Settled | Followed::Unknown => {}
            }
            std::future::pending().await
        };
        tokio::select! {
            () = self.repeat(doubt, dropped_at, &leaving, &mut unsettled) => {}
            () = lands, if flies => {}
        }
    }

    /// Releases over the manager's connection: one, or as many as it takes until
    /// nothing can come any more. However long an outage lasts, that is for those
    /// only that were under way when it began.
    ///
    /// A shutdown waits until the store was told, or the ttl has passed.
    async fn repeat(
        &self,
        doubt: Option<Instant>,
        dropped_at: Instant,
        leaving: &Leaving<'_>,
        unsettled: &mut Option<Counted>,
    ) {
        let running = &self.running;
        let late = doubt.map(|sent_at| {
            let store = &running.store;
            store.late(&self.request, self.record.as_ref(), sent_at)
        });
        let limit = match late {
            Some(Late::Until(end)) => end,
            None | Some(Late::Never | Late::In(_)) => Deadline::from(dropped_at, self.request.ttl),
        };
        let mut answered_before = false;
        let last_pause = match late {
            // It may take as long as others hold locks by the same.
            Some(Late::In(_)) => (self.request.ttl / 3).max(FIRST_PAUSE),
            _ => LAST_PAUSE,
        };
        let mut backoff = Backoff::new(FIRST_PAUSE, last_pause);
        loop {
            let scope_end = running.scope_end.notified();
            tokio::pin!(scope_end);
            scope_end.as_mut().enable();
            if self.is_over(late, answered_before) {
                return;
            }
            let asked = running.time.now();
            let answer = self.release().await;
            let has_passed = running.time.has_passed(limit);
            let told = answer.is_ok();
            let enough = match answer {
                Ok(()) => {
                    let before = std::mem::replace(&mut answered_before, true);
                    match late {
                        None | Some(Late::Never) => true,
                        Some(Late::Until(_)) => before && has_passed,
                        // Until that has ended.
                        Some(Late::In(_)) => false,
                    }
                }
                // It will not be allowed later either.
                Err(error) if error.kind() != BackendErrorKind::Unavailable => match late {
                    None | Some(Late::Never) => true,
                    Some(Late::Until(_)) => has_passed,
                    Some(Late::In(_)) => false,
                },
                Err(_) => {
                    let took = running.time.now().saturating_duration_since(asked);
                    if took >= running.request_timeout / 2 {
                        // Waiting for an answer was pause enough.
                        backoff = Backoff::new(FIRST_PAUSE, last_pause);
                    }
                    false
                }
            };
            // When the engine stops, once is enough.
            if enough || (told && running.stopping.is_cancelled()) {
                return;
            }
            if told || has_passed {
                drop(unsettled.take());
            }
            let pause = running.time.after(backoff.pause(&running.time));
            let until = if has_passed { pause } else { pause.min(limit) };
            tokio::select! {
                () = running.time.sleep(until) => {}
                // It was granted just now.
                () = leaving.granted() => {}
                () = scope_end => {}
                () = running.stopping.cancelled(), if !running.stopping.is_cancelled() => {}
            }
        }
    }

    /// There is nothing to give back: a lease or session has ended.
    fn is_over(&self, late: Option<Late>, answered: bool) -> bool {
        let has_ended = |scope| self.running.store.has_ended(scope);
        let comes_late = match late {
            Some(Late::In(scope)) => !(answered && has_ended(scope)),
            _ => true,
        };
        let scope = self.record.as_ref().and_then(S::scope);
        !comes_late || scope.is_some_and(has_ended)
    }

    async fn release(&self) -> Result<(), BackendError> {
        let (store, record) = (&self.running.store, self.record.as_ref());
        let mut call = Call::new(&self.running);
        let released = attempts!(call, |deadline, attempt| {
            store.release(&self.request, record, self.ending, deadline, attempt)
        });
        released.map(drop)
    }
}
