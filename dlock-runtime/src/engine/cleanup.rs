//! Gives back what a request may have left at the store when its caller has gone or does not know
//! what the store has. This is decided here only, for every store.
//!
//! A command that was in flight when the caller left is followed first: on most stores that settles
//! it within a round trip. If no answer comes, the store may run the command later than anything
//! that is sent after it. So the release is repeated for as long as the store says that this may
//! happen ([`Late`]). With [`Late::Until`], at least two releases must be answered: the store has
//! run everything that it had received by the first answer before it gives the second.
//!
//! That period is counted from when the command was sent. If nobody could follow the command, this
//! time is unknown: the command may still be in the queue of a connection whose runtime is blocked.
//! It is sent before its flight ends, so the release is repeated until then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Running;
use super::call::attempts;
use super::time::Backoff;
use super::unsettled::Remains;
use super::waiters::Leaving;
use crate::apart::{apart, outlined};
use crate::backend::{BackendError, BackendErrorKind, Owner, Request};
use crate::deadline::Deadline;
use crate::store::{Abandoned, Ending, Followed, Late, LeftBehind, Next, Store};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What to give back.
struct Cleanup<S: Store> {
    running: Arc<Running<S>>,
    request: Request,
    record: Option<S::Record>,
    left: LeftBehind,
    left_at: Instant,
    /// Makes a shutdown wait until the store was told, or the ttl has passed.
    unsettled: Option<Remains>,
}

impl<S: Store> Running<S> {
    /// A command of this request, sent at `sent_at`, was never answered. The request holds its lock
    /// normally, but the command may still be run, and would lock the key for nobody after the
    /// release. So that release will begin a cleanup.
    pub(crate) fn note_unknown(
        &self,
        request: &Request,
        record: Option<&S::Record>,
        sent_at: Instant,
    ) {
        let late = self.store.late(request, record, sent_at);
        if self.may_still_run(late) {
            // Entries of lost leases stay behind, so expired ones are removed here.
            let has_passed =
                |late: &Late| matches!(late, Late::Until(end) if self.time.has_passed(*end));
            self.unknown.retain(|(_, late)| !has_passed(late));
            self.unknown.insert(request.owner, (sent_at, late));
        }
    }

    /// When the command of this owner that may still be run was sent, if there is one.
    pub(super) fn take_unknown(&self, owner: Owner) -> Option<Instant> {
        let (sent_at, late) = self.unknown.remove(owner)?;
        self.may_still_run(late).then_some(sent_at)
    }

    /// Whether a command that is late in this way may still be run.
    fn may_still_run(&self, late: Late) -> bool {
        match late {
            Late::Never => false,
            Late::Until(end) => !self.time.has_passed(end),
            Late::In(scope) => !self.store.has_ended(scope),
        }
    }

    /// Works in a `Drop`, and outside a runtime. If the backend has stopped, the lease ends by its
    /// ttl.
    pub(super) fn clean_up(
        self: &Arc<Self>,
        request: Request,
        abandoned: Abandoned<S>,
        left: &LeftBehind,
    ) {
        let mut cleanup = Cleanup::new(self, request, abandoned.record, *left);
        cleanup.unsettled = Some(self.unsettled.count(&cleanup.request.key));
        self.spawn(cleanup.run(abandoned.flight));
    }

    /// Gives back what this request holds. Nobody waits for that.
    pub(crate) fn give_back(self: &Arc<Self>, request: &Request) {
        self.events.holders().remove(request.owner);
        let record = self.table.record(request.owner);
        if self.table.remove(request.owner) {
            let left = LeftBehind::unknown(self.take_unknown(request.owner));
            self.clean_up(request.clone(), Abandoned::at_rest(record), &left);
        }
    }

    /// Ends a lease that the store does not end by itself. Nobody has to wait for it: its holder
    /// has been told of the loss, or has given the lease back.
    pub(super) fn end(self: &Arc<Self>, request: Request, record: S::Record) {
        let (running, owner) = (Arc::clone(self), request.owner);
        let left = LeftBehind::unknown(self.take_unknown(owner));
        let cleanup = Cleanup::new(self, request, Some(record), left);
        self.spawn(async move {
            cleanup.run(None).await;
            running.table.remove(owner);
        });
    }
}

impl<S: Store> Cleanup<S> {
    fn new(
        running: &Arc<Running<S>>,
        request: Request,
        record: Option<S::Record>,
        mut left: LeftBehind,
    ) -> Self {
        if let Some(time) = request.done_for() {
            // The cleanup may come before the release that was to leave the mark.
            left.ending = Ending::Done(time);
        }
        Self {
            running: Arc::clone(running),
            request,
            record,
            left,
            left_at: running.time.now(),
            unsettled: None,
        }
    }

    async fn run(mut self, flight: Option<S::Flight>) {
        let running = Arc::clone(&self.running);
        let (store, time) = (&running.store, &running.time);
        let leaving = running.events.waiters().leaves(self.request.owner);
        if let Some(flight) = flight {
            let request = self.request.clone();
            let mut flies = apart(store.follow(flight, &request));
            let limit = Deadline::from(self.left_at, S::FLIGHT_LIMIT);
            let ttl = Deadline::from(self.left_at, request.ttl);
            let mut followed = time.bound(limit.min(ttl), &mut flies).await;
            if followed.is_err() && ttl < limit {
                drop(self.unsettled.take());
                followed = time.bound(limit, &mut flies).await;
            }
            let followed = match followed {
                Ok(followed) => followed,
                Err(_) => tokio::select! {
                    biased;
                    followed = flies => followed,
                    () = outlined(self.repeat(&leaving, None)) => return,
                },
            };
            match followed {
                Followed::Settled if self.left.unknown.is_none() => return,
                Followed::Settled | Followed::Run => {}
                Followed::Unknown => self.left.unknown = Some(time.now()),
            }
        }
        let late = self.left.unknown.map_or(Late::Never, |sent_at| {
            store.late(&self.request, self.record.as_ref(), sent_at)
        });
        outlined(self.repeat(&leaving, Some(late))).await;
    }

    /// Releases over the manager's connection: once, or until no late command can come any more. If
    /// `late` is not known yet, it repeats without a limit. During an outage, this affects only
    /// requests that were in flight when the outage began.
    async fn repeat(&mut self, leaving: &Leaving<'_>, late: Option<Late>) {
        let running = Arc::clone(&self.running);
        let time = &running.time;
        let limit = match late {
            Some(Late::Until(end)) => end,
            _ => Deadline::from(self.left_at, self.request.ttl),
        };
        // By then, whatever a late command has taken has ended too, where locks end by themselves.
        let over = Deadline::from(limit.at().max(time.now()), self.request.ttl);
        let last_pause = match late {
            // The scope may last as long as other locks are held by it.
            Some(Late::In(_)) => (self.request.ttl / 3).max(FIRST_PAUSE),
            _ => LAST_PAUSE,
        };
        let mut backoff = Backoff::new(FIRST_PAUSE, last_pause);
        let mut answered = false;
        loop {
            let scope_end = running.scope_end.notified();
            tokio::pin!(scope_end);
            scope_end.as_mut().enable();
            if self.has_ended(late, answered) {
                return;
            }
            let asked = time.now();
            let (answer, stops) = self.release().await;
            let may_still_run = late.is_none_or(|late| running.may_still_run(late));
            let told = answer.is_ok();
            let enough = match answer {
                Ok(()) => {
                    if let Ending::Done(_) = self.left.ending {
                        // The mark is set, or the lock was lost before. From here on only a late
                        // grant is undone, under which no work was done, so it gets no mark.
                        // Setting the mark again would make it last longer, and on some stores it
                        // would keep alive the session whose end this waits for.
                        self.left.ending = Ending::Left;
                    }
                    let needs_two = matches!(late, Some(Late::Until(_)));
                    let is_second = std::mem::replace(&mut answered, true);
                    !may_still_run && (is_second || !needs_two)
                }
                // The store has refused, and will not allow it later either.
                Err(error) if error.kind() != BackendErrorKind::Unavailable => !may_still_run,
                Err(_) => {
                    let took = time.now().saturating_duration_since(asked);
                    if took >= running.request_timeout / 2 && !stops {
                        // Waiting for an answer was pause enough.
                        backoff.reset();
                    }
                    // A store that goes on refusing would be asked for ever, for each call once
                    // more.
                    stops && S::EXPIRES && !may_still_run && time.has_passed(over)
                }
            };
            // When the engine stops, one release is enough.
            if enough || (told && running.stopping.is_cancelled()) {
                return;
            }
            let has_passed = time.has_passed(limit);
            if told || has_passed {
                drop(self.unsettled.take());
            }
            let pause = time.after(backoff.pause(time));
            let until = if has_passed { pause } else { pause.min(limit) };
            tokio::select! {
                biased;
                () = time.sleep(until) => {}
                // The abandoned request was granted just now.
                () = leaving.granted() => {}
                () = scope_end => {}
                () = running.stopping.cancelled(), if !running.stopping.is_cancelled() => {}
            }
        }
    }

    /// Whether there is nothing to give back because the lease or session has ended.
    fn has_ended(&self, late: Option<Late>, answered: bool) -> bool {
        let has_ended = |scope| self.running.store.has_ended(scope);
        let of_late = match late {
            Some(Late::In(scope)) => answered && has_ended(scope),
            _ => false,
        };
        let scope = self.record.as_ref().and_then(S::scope);
        of_late || scope.is_some_and(has_ended)
    }

    /// Also returns whether the store has said that nothing can be done for now.
    async fn release(&self) -> (Result<(), BackendError>, bool) {
        let (store, record) = (&self.running.store, self.record.as_ref());
        let (mut call, mut stops) = (self.running.call(), false);
        let released = attempts!(
            call,
            |attempt| store.release(&self.request, record, self.left.ending, attempt),
            |failure| stops = matches!(failure.next, Next::Stop)
        );
        (released.map(drop), stops)
    }
}
