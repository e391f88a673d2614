//! One lease, from its grant to its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Renewals};
use crate::backend::{BackendError, Grant, Renewed, Request};
use crate::clock::Clock;
use crate::error::LossReason;
use crate::in_flight::Counted;
use crate::observe::SectionSpan;
use crate::sync::{Mutex, MutexGuard, found};
use crate::timer;
use crate::token::FencingToken;

/// One lease that the store gave to this process.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) request: Request,
    token: FencingToken,
    clock: Clock,
    pub(super) state: Mutex<State>,
    /// Told when a renewal that was in flight has been answered.
    pub(super) answered: Notify,
}

/// A lease is `Held`, then `Lost` or `Released`, and never held again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    Lost(LossReason),
    /// Nobody works under it any more: its end is no loss.
    Released,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) plan: Plan,
    /// Whom the lease serves, for spans and metrics.
    section: SectionSpan,
    /// Where the keeper's schedule has this lease.
    pub(super) scheduled: Option<Instant>,
    /// The runtime that took it, while that runs.
    pub(super) home: Option<runtime::Handle>,
    /// Cancelled on loss. Made when somebody first listens, since most bodies
    /// end before they ever do.
    loss: Option<CancellationToken>,
    /// What comes after the lease in this process. It goes on when the lease is
    /// lost, or when the store has been asked to take it back.
    follower: Option<Following>,
    pub(super) back: WayBack,
}

/// How far a lease is on its way back, as its guard knows.
#[derive(Debug, Default)]
pub(super) struct WayBack {
    /// Since when nobody works under it, and the store is asked to take it back.
    pub(super) since: Option<Instant>,
    /// It stays until then, though nobody works under it any more.
    pub(super) kept_until: Option<Instant>,
    /// The store has answered that it will let it expire by itself then.
    pub(super) confirmed: bool,
    /// A body has ended well under it that was to run once: it ends with a mark that
    /// lasts for so long.
    pub(super) done_for: Option<Duration>,
    /// A request asked for its end, and may have been done: that the lease is gone
    /// then is no news.
    pub(super) asked: bool,
    /// That the store did not take it has been said.
    pub(super) said: bool,
    /// In a task of the manager's own.
    pub(super) background: bool,
    pub(super) arrived: bool,
    /// A shutdown waits for it.
    pub(super) counted: Option<Counted>,
}

/// What comes after a lease.
pub(crate) trait Follower: std::fmt::Debug + Send + Sync {
    /// The lease that it follows under this number is in nobody's way any more.
    fn goes_on(self: Arc<Self>, number: u32);
}

/// Dropped, the follower goes on.
#[derive(Debug)]
struct Following(Arc<dyn Follower>, u32);

impl Drop for Following {
    fn drop(&mut self) {
        Arc::clone(&self.0).goes_on(self.1);
    }
}

impl Lease {
    pub(super) fn new(request: Request, grant: Grant, clock: Clock, section: SectionSpan) -> Self {
        let plan = Plan::new(grant.sent_at, request.ttl);
        Self {
            request,
            token: grant.token,
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

    /// The token of the grant itself; hand-overs count up from it.
    pub(crate) fn token(&self) -> FencingToken {
        self.token
    }

    /// What the lease is at this moment, and the time up to its local deadline. One
    /// whose deadline has passed ends here, so that a body that blocked its runtime
    /// past it learns of it before anything else runs.
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

    /// How the lease was lost, if it was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self.look() {
            (Phase::Lost(reason), _) => Some(reason),
            _ => None,
        }
    }

    /// The time up to the local deadline of a held lease.
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

    /// The store says that the lease has ended.
    pub(super) fn is_gone(&self) {
        let state = self.state.lock();
        if state.phase == Phase::Held {
            self.end(state, LossReason::Gone);
        }
    }

    /// Ends a lease that is held, and tells everybody who listens.
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
        // Neither a subscriber's code nor a follower's drop is ours.
        drop(state);
        section.lost(&self.request.key, self.request.owner, reason);
        if let Some(loss) = loss {
            loss.cancel();
        }
        drop(follower);
        Phase::Lost(reason)
    }

    /// Cancelled when the lease is lost; at once if it has been.
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

    /// Resolves when there is no more than `early` left of the lease, or it is lost; never
    /// if it is given back first. A renewal puts it off.
    pub(crate) async fn lost_within(&self, early: Duration) {
        let loss = self.loss_token();
        loop {
            let (phase, left) = self.look();
            match phase {
                Phase::Held if left > early => {}
                Phase::Held | Phase::Lost(_) => return,
                Phase::Released => return std::future::pending().await,
            }
            tokio::select! {
                biased;
                () = loss.cancelled() => return,
                () = timer::sleep(left.saturating_sub(early)) => {}
            }
        }
    }

    /// Sets what comes after this lease: it goes on at once if that is lost already.
    pub(crate) fn follow_with(&self, follower: Arc<dyn Follower>, number: u32) {
        let follower = Following(follower, number);
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.follower = Some(follower);
        }
    }

    /// A body that was to run once has ended: well, and is to be remembered for so long, or
    /// not, however it has ended. The last of them decides.
    pub(crate) fn body_ended(&self, done_for: Option<Duration>) {
        self.state.lock().back.done_for = done_for;
    }

    /// What was done under it is remembered until then, or for longer. `false`: there is
    /// nothing to remember.
    pub(crate) fn is_remembered_until(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(self.clock.now());
        let done_for = &mut self.state.lock().back.done_for;
        *done_for = done_for.map(|time| time.max(left));
        done_for.is_some()
    }

    /// For how long is to be remembered what was done under it.
    pub(crate) fn done_for(&self) -> Option<Duration> {
        self.state.lock().back.done_for
    }

    /// The store is asked to take the lease back, or is about to be.
    pub(super) fn returns(&self) {
        let now = self.clock.now();
        self.state.lock().back.since.get_or_insert(now);
    }

    /// Since when the lease is on its way back.
    pub(crate) fn returns_since(&self) -> Option<Instant> {
        self.state.lock().back.since
    }

    /// What comes after the lease goes on, if it has not.
    pub(super) fn let_follow(&self) {
        let follower = self.state.lock().follower.take();
        drop(follower);
    }

    /// What happens to the lease is said of this critical section.
    pub(crate) fn speak_for(&self, section: SectionSpan) {
        let before = std::mem::replace(&mut self.state.lock().section, section);
        // Outside of the lock: to close a span is a subscriber's code.
        drop(before);
    }

    /// The lease is over: the critical section that it served ends, also where
    /// somebody still knows the lease.
    pub(super) fn serve_nobody(&self) {
        self.speak_for(SectionSpan::of_nobody(self.section().labels()));
    }

    /// Whom the lease serves.
    pub(crate) fn section(&self) -> SectionSpan {
        self.state.lock().section.clone()
    }

    /// The store did not do what it was asked for this lease.
    pub(super) fn store_failed(&self, operation: &'static str, error: &BackendError) {
        self.section().labels().store_error(operation, error);
    }

    /// The store answered a renewal.
    pub(super) fn renewed(&self, answer: &Renewed) {
        let (section, key) = (self.section(), self.key());
        match *answer {
            Renewed::Gone => {
                section.renewal(key, "gone");
                self.is_gone();
            }
            Renewed::Extended { sent_at } => {
                section.renewal(key, "renewed");
                // A late answer brings nothing back, and never shortens the lease.
                if self.loss().is_none() {
                    let mut state = self.state.lock();
                    state.plan.renewed(sent_at, self.request.ttl);
                }
            }
        }
    }

    /// Waits for the answer to the renewal in flight, if there is one.
    pub(super) async fn renewal_answered(&self) {
        let answered = || (!self.state.lock().plan.is_renewal_in_flight()).then_some(());
        found(&self.answered, answered).await;
    }

    /// Nobody works under the lease any more.
    pub(super) fn is_released(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.phase = Phase::Released;
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.state.lock().plan.deadline()
    }
}
