//! One lease, from its grant to its end.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Renewals, Step};
use crate::backend::{BackendError, Grant, Renewed, Request};
use crate::clock;
use crate::clock::Clock;
use crate::error::LossReason;
use crate::in_flight::Counted;
use crate::observe::SectionSpan;
use crate::sync::{Mutex, MutexGuard, found};
use crate::token::FencingToken;

/// One lease that the store gave to this process.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) request: Request,
    clock: Clock,
    pub(super) state: Mutex<State>,
    /// Notified when a renewal in flight has ended, with or without an answer.
    pub(super) answered: Notify,
}

/// A lease is `Held`, then `Lost` or `Released`, and never held again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    Lost(LossReason),
    /// Nobody works under the lease any more, so its end is not a loss.
    Released,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) plan: Plan,
    /// The section that the lease serves, for spans and metrics.
    section: SectionSpan,
    /// The time under which the keeper's schedule lists this lease.
    pub(super) scheduled: Option<Instant>,
    /// The runtime that took the lease, while that runtime runs.
    pub(super) home: Option<runtime::Handle>,
    /// Cancelled on loss. Created by the first listener, since most bodies end before anybody
    /// listens.
    loss: Option<CancellationToken>,
    /// What comes after the lease in this process. It proceeds when the lease is lost, or when the
    /// store has answered the release; on a store that keeps the order of requests, as soon as the
    /// release is sent.
    follower: Option<Following>,
    pub(super) back: WayBack,
}

/// How far the return of a lease has got, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct WayBack {
    /// When the lease began to be given back: nobody works under it since then.
    pub(super) since: Option<Instant>,
    /// The lease is kept until then, though nobody works under it any more.
    pub(super) kept_until: Option<Instant>,
    /// The store has answered the request to let the lease expire at `kept_until`.
    pub(super) confirmed: bool,
    /// A run-once body has ended well under this lease. The release leaves a mark that lasts this
    /// long.
    pub(super) done_for: Option<Duration>,
    /// A request to end the lease was sent and may have taken effect. If the lease is gone later,
    /// that is not a loss to report.
    pub(super) asked: bool,
    /// A failure of the release has been logged.
    pub(super) said: bool,
    pub(super) by: GivenBackBy,
    /// Makes a shutdown wait for the release.
    pub(super) counted: Option<Counted>,
}

/// Who gives a lease back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GivenBackBy {
    /// Its holder.
    #[default]
    Holder,
    /// A background task of the manager.
    Background,
    /// It has gone back, or nobody can give it back any more.
    Nobody,
}

/// What comes after a lease: the queue whose next task asks the store then.
pub(crate) trait Follower: std::fmt::Debug + Send + Sync {
    /// Called when the lease that it follows under this number no longer blocks anybody.
    fn goes_on(self: Arc<Self>, number: u32);
}

/// Tells the follower to proceed when dropped.
#[derive(Debug)]
struct Following(Arc<dyn Follower>, u32);

impl Drop for Following {
    fn drop(&mut self) {
        Arc::clone(&self.0).goes_on(self.1);
    }
}

impl State {
    /// What the keeper has to do about a lease of this ttl. `None`: nothing any more.
    pub(super) fn step(&self, ttl: Duration, now: Instant) -> Option<Step> {
        match self.phase {
            Phase::Held => Some(self.plan.step(now)),
            Phase::Released if self.back.by != GivenBackBy::Nobody => {
                let awaited_since = self.back.since.filter(|_| self.follower.is_some());
                Some(self.plan.return_step(ttl, awaited_since, now))
            }
            Phase::Released | Phase::Lost(_) => None,
        }
    }
}

impl Lease {
    pub(super) fn new(request: Request, grant: Grant, clock: Clock, section: SectionSpan) -> Self {
        let plan = Plan::new(grant.sent_at, request.ttl);
        Self {
            request: request.with_token(grant.token),
            clock,
            state: Mutex::new(State {
                phase: Phase::Held,
                plan,
                section,
                scheduled: None,
                home: runtime::Handle::try_current().ok(),
                loss: None,
                follower: None,
                back: WayBack::default(),
            }),
            answered: Notify::new(),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.request.ttl
    }

    /// The key with its namespace.
    pub(crate) fn key(&self) -> &str {
        &self.request.key
    }

    /// The token of the grant itself. Hand-overs count up from it.
    pub(crate) fn token(&self) -> FencingToken {
        self.request.token()
    }

    /// The phase of the lease now, and the time left until its local deadline. A lease whose
    /// deadline has passed ends here, so that a body that blocked its runtime past the deadline
    /// learns of the loss before anything else runs.
    pub(super) fn look(&self) -> (Phase, Duration) {
        let now = self.clock.now();
        let state = self.state.lock();
        let left = state.plan.deadline().saturating_duration_since(now);
        let phase = match state.phase {
            Phase::Held if left.is_zero() => self.end(state, LossReason::Expired),
            phase => phase,
        };
        (phase, left)
    }

    /// The reason why the lease was lost, if it was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self.look() {
            (Phase::Lost(reason), _) => Some(reason),
            _ => None,
        }
    }

    /// The time until the local deadline, if the lease is held.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        match self.look() {
            (Phase::Held, left) => Some(left),
            _ => None,
        }
    }

    /// Whether the lease is held and its local deadline has not passed.
    pub(crate) fn is_held(&self) -> bool {
        self.remaining().is_some()
    }

    /// Whether somebody works under it and it is renewed, as far as is known without a look at the
    /// clock.
    pub(super) fn is_to_be_renewed(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Held && state.plan.renewals() != Renewals::Never
    }

    /// The store says that the lease has ended.
    pub(super) fn mark_gone(&self) {
        let state = self.state.lock();
        if state.phase == Phase::Held {
            self.end(state, LossReason::Gone);
        }
    }

    /// Ends a lease that is held, and notifies every listener.
    fn end(&self, mut state: MutexGuard<'_, State>, reason: LossReason) -> Phase {
        let reason = match (reason, state.plan.renewals()) {
            (LossReason::Expired, Renewals::Never) => LossReason::Overran,
            (LossReason::Expired, Renewals::Until(end)) if end <= state.plan.deadline() => {
                LossReason::MaxHold
            }
            (reason, _) => reason,
        };
        state.phase = Phase::Lost(reason);
        let (section, loss) = (state.section.clone(), state.loss.clone());
        let follower = state.follower.take();
        // Its body has ended in time, and the store could not be told to keep it any longer.
        let is_only_kept = state.back.kept_until.is_some() && reason != LossReason::Gone;
        // A release that is under way comes too late to make a difference.
        let _counted = state.back.counted.take();
        // A subscriber and a follower's drop run foreign code, so the mutex is released first.
        drop(state);
        if let Some(loss) = loss {
            loss.cancel();
        }
        drop(follower);
        if !is_only_kept {
            section.lost(&self.request.key, self.request.owner, reason);
        }
        Phase::Lost(reason)
    }

    /// Called when the deadline of the lease has passed, or when its release has had no answer for
    /// long. Whoever began that release may not poll it, and then nobody else could see to the next
    /// task, nor to a shutdown that waits.
    pub(super) fn end_if_due(&self) {
        let (Phase::Released, _) = self.look() else {
            return;
        };
        let now = self.clock.now();
        let mut state = self.state.lock();
        let follower = state.follower.take();
        let is_over = now >= state.plan.over_at(self.ttl());
        let counted = state.back.counted.take_if(|_| is_over);
        drop(state);
        drop((follower, counted));
    }

    /// A token that is cancelled when the lease is lost, or at once if it was lost before.
    pub(crate) fn loss_token(&self) -> CancellationToken {
        let mut state = self.state.lock();
        let lost = matches!(state.phase, Phase::Lost(_));
        let token = state.loss.get_or_insert_default().clone();
        drop(state);
        if lost {
            token.cancel();
        }
        token
    }

    /// Resolves when at most `early` is left of the lease, or when the lease is lost. Never
    /// resolves if the lease is given back first. A renewal postpones it.
    pub(crate) async fn lost_within(&self, early: Duration) {
        let loss = self.loss_token();
        loop {
            let (phase, left) = self.look();
            match phase {
                Phase::Held if left > early => {}
                Phase::Held | Phase::Lost(_) => return,
                Phase::Released => return std::future::pending().await,
            }
            // A process that was paused may come here before its timers do.
            let is_due = poll_fn(|_| match self.look() {
                (Phase::Held, left) if left > early => Poll::Pending,
                _ => Poll::Ready(()),
            });
            tokio::select! {
                biased;
                () = is_due => {}
                () = loss.cancelled() => return,
                () = clock::sleep(left.saturating_sub(early)) => {}
            }
        }
    }

    /// Sets what comes after this lease. If the lease is lost already, the follower proceeds at
    /// once.
    pub(crate) fn follow_with(&self, follower: Arc<dyn Follower>, number: u32) {
        let follower = Following(follower, number);
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.follower = Some(follower);
        }
    }

    /// A run-once body has ended, or the body that took the lock without coming to its end.
    /// `done_for` says how long to remember that it ended well; `None` if it did not. The last to
    /// end decides.
    pub(crate) fn body_ended(&self, done_for: Option<Duration>) {
        self.state.lock().back.done_for = done_for;
    }

    /// Remembers what was done under the lease at least until `until`. Returns `false` if there is
    /// nothing to remember.
    pub(crate) fn is_remembered_until(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(self.clock.now());
        let done_for = &mut self.state.lock().back.done_for;
        *done_for = done_for.map(|time| time.max(left));
        done_for.is_some()
    }

    /// How long to remember what was done under the lease.
    pub(crate) fn done_for(&self) -> Option<Duration> {
        self.state.lock().back.done_for
    }

    /// Notes that the store has been asked to take the lease back, or is about to be.
    pub(super) fn returns(&self) {
        let now = self.clock.now();
        self.state.lock().back.since.get_or_insert(now);
    }

    /// Since when the lease has been on its way back.
    pub(crate) fn returns_since(&self) -> Option<Instant> {
        self.state.lock().back.since
    }

    /// Lets the follower proceed, unless it has already.
    pub(super) fn let_follow(&self) {
        let follower = self.state.lock().follower.take();
        drop(follower);
    }

    /// From now on, events of this lease are reported for this critical section.
    pub(crate) fn set_section(&self, section: SectionSpan) {
        let before = std::mem::replace(&mut self.state.lock().section, section);
        // After the mutex is released: closing a span runs a subscriber's code.
        drop(before);
    }

    /// The lease is over: ends the critical section that it served, even if somebody still refers
    /// to the lease.
    pub(super) fn clear_section(&self) {
        self.set_section(SectionSpan::of_nobody(self.section().labels()));
    }

    /// The section that the lease serves.
    pub(crate) fn section(&self) -> SectionSpan {
        self.state.lock().section.clone()
    }

    /// Reports that the store failed an operation on this lease.
    pub(super) fn store_failed(&self, operation: &'static str, error: &BackendError) {
        self.section().labels().store_error(operation, error);
    }

    /// Handles the store's answer to a renewal.
    pub(super) fn renewed(&self, answer: &Renewed) {
        self.extended(answer);
        self.state.lock().plan.renewal_answered(self.ttl());
        self.answered.notify_waiters();
    }

    fn extended(&self, answer: &Renewed) {
        let (section, key) = (self.section(), self.key());
        match *answer {
            Renewed::Gone => {
                section.renewal(key, "gone");
                self.mark_gone();
            }
            Renewed::Extended { sent_at } => {
                section.renewal(key, "renewed");
                // A late answer neither revives a lost lease nor shortens the lease.
                if self.loss().is_none() {
                    let mut state = self.state.lock();
                    state.plan.renewed(sent_at, self.request.ttl);
                }
            }
        }
    }

    /// Waits until no renewal is in flight, and notes the one that is sent now. It must end as
    /// [answered](Self::renewed) or as [failed](Self::renewal_failed).
    pub(super) async fn begin_renewal(&self) {
        let begun = || {
            let plan = &mut self.state.lock().plan;
            (!plan.is_renewal_in_flight()).then(|| plan.renewal_sent())
        };
        found(&self.answered, begun).await;
    }

    /// The renewal in flight has ended without an answer. The next one may be sent at `again_at`.
    pub(super) fn renewal_failed(&self, again_at: Instant) {
        self.state.lock().plan.renewal_unanswered(again_at);
        self.answered.notify_waiters();
    }

    /// Waits until no renewal is in flight.
    pub(super) async fn renewal_answered(&self) {
        let answered = || (!self.state.lock().plan.is_renewal_in_flight()).then_some(());
        found(&self.answered, answered).await;
    }

    /// Nobody works under the lease any more.
    pub(super) fn mark_released(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.phase = Phase::Released;
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.state.lock().plan.deadline()
    }

    /// The store has ended the lease by then, if it takes no more renewals.
    pub(super) fn over_at(&self) -> Instant {
        self.state.lock().plan.over_at(self.ttl())
    }
}
