//! Leases: their life from grant to release or loss, seen from this process.
//!
//! The local deadline of a lease is *sent at* + ttl − drift margin on the
//! monotonic clock, counted from the last request that the store confirmed, so
//! that this process stops believing in a lease before the store does.

mod keeper;
mod leases;
mod plan;
mod pulse;
mod release;
mod renewing;
mod take;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use keeper::Keeper;
pub(crate) use leases::Leases;
pub(crate) use plan::Renewals;
pub(crate) use release::LeaseGuard;
pub(crate) use take::{Answer, NotHad};

use plan::{Plan, drift_margin};

use crate::backend::{BackendError, Grant, Renewed, Request};
use crate::error::LossReason;
use crate::observe::{Operation, Renewal, SectionSpan};
use crate::token::FencingToken;

/// One lease that the store gave to this process.
#[derive(Debug)]
pub(crate) struct Lease {
    request: Request,
    token: FencingToken,
    keeper: Arc<Keeper>,
    /// The runtime that took it.
    home: Option<runtime::Handle>,
    state: Mutex<State>,
    /// Told when a renewal that was in flight has been answered.
    answered: Notify,
}

/// A lease is `Held`, then `Lost` or `Released`, and never held again. One that
/// was over before anybody here had it is `TooLate`: nothing was lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Lost(LossReason),
    Released,
    TooLate,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    plan: Plan,
    /// Whom the lease serves, for spans and metrics.
    section: SectionSpan,
    /// Where the keeper's schedule has this lease.
    scheduled: Option<Instant>,
    /// Cancelled on loss. Made when somebody first listens, since most bodies
    /// end before they ever do.
    loss: Option<CancellationToken>,
    /// What comes after the lease in this process. It goes on when the lease is
    /// lost, or when the store has been asked to take it back.
    follower: Option<Following>,
}

/// What comes after a lease.
pub(crate) trait Follower: std::fmt::Debug + Send + Sync {
    /// The lease is on its way back, and the store has not answered yet. May be
    /// said more than once.
    fn lease_returns(&self, now: Instant);

    /// The lease is in nobody's way any more.
    fn goes_on(&self);
}

/// Dropped, the follower goes on.
#[derive(Debug)]
struct Following(Arc<dyn Follower>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.goes_on();
    }
}

impl Lease {
    fn new(request: Request, grant: Grant, keeper: Arc<Keeper>, section: SectionSpan) -> Self {
        let plan = Plan::new(grant.sent_at, request.ttl);
        Self {
            request,
            token: grant.token,
            keeper,
            home: runtime::Handle::try_current().ok(),
            state: Mutex::new(State {
                phase: Phase::Held,
                plan,
                section,
                scheduled: None,
                loss: None,
                follower: None,
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

    /// How the lease was lost, if it was. Looks at the clock itself, so that a
    /// body that blocked its runtime past the deadline learns of it before
    /// anything else runs.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        let now = self.keeper.clock().now();
        let expired = {
            let state = self.state();
            match state.phase {
                Phase::Lost(reason) => return Some(reason),
                Phase::Held => now >= state.plan.deadline(),
                Phase::Released | Phase::TooLate => false,
            }
        };
        if expired {
            self.lose(LossReason::Expired)
        } else {
            None
        }
    }

    /// Ends a lease that is held, and tells everybody who listens.
    fn lose(&self, reason: LossReason) -> Option<LossReason> {
        let (reason, section, listeners, follower) = {
            let mut state = self.state();
            match state.phase {
                Phase::Held if reason == LossReason::Expired => {
                    // A renewal may have been confirmed meanwhile.
                    if self.keeper.clock().now() < state.plan.deadline() {
                        return None;
                    }
                }
                Phase::Held => {}
                Phase::Lost(before) => return Some(before),
                Phase::Released | Phase::TooLate => return None,
            }
            let reason = match (reason, state.plan.renewals()) {
                (LossReason::Expired, Renewals::Never) => LossReason::Overran,
                (LossReason::Expired, Renewals::Until(end)) if end <= state.plan.deadline() => {
                    LossReason::MaxHold
                }
                (reason, _) => reason,
            };
            state.phase = Phase::Lost(reason);
            (
                reason,
                state.section.clone(),
                state.loss.clone(),
                state.follower.take(),
            )
        };
        // Outside of the lock: neither a subscriber's code nor a follower's
        // drop is ours.
        section.lost(&self.request.key, self.request.owner, reason);
        if let Some(listeners) = listeners {
            listeners.cancel();
        }
        drop(follower);
        Some(reason)
    }

    /// Sets what comes after this lease: it goes on at once if that is lost already.
    pub(crate) fn follow_with(&self, follower: Arc<dyn Follower>) {
        let follower = Following(follower);
        let too_late = {
            let mut state = self.state();
            match state.phase {
                Phase::Held => {
                    state.follower = Some(follower);
                    None
                }
                Phase::Lost(_) | Phase::Released | Phase::TooLate => Some(follower),
            }
        };
        drop(too_late);
    }

    /// The store is asked to take the lease back, or is about to be.
    fn returns(&self) {
        let follower = self.state().follower.as_ref().map(|one| Arc::clone(&one.0));
        if let Some(follower) = follower {
            follower.lease_returns(self.keeper.clock().now());
        }
    }

    fn let_follow(&self) {
        let follower = self.state().follower.take();
        drop(follower);
    }

    /// For how long the local deadline has passed, if it has.
    fn late_by(&self, now: Instant) -> Option<Duration> {
        now.checked_duration_since(self.state().plan.deadline())
    }

    /// Nobody has had the lease, and nobody will. The store may have begun to
    /// count just now, so it is given back for as long as a lease lasts.
    fn is_too_late(&self) {
        let until = self.keeper.clock().now() + self.request.ttl;
        {
            let mut state = self.state();
            if state.phase == Phase::Held {
                state.phase = Phase::TooLate;
            }
            state.plan.end_at(until);
        }
        self.keeper.unschedule(self);
    }

    /// Whether the lease is held and its local deadline has not passed.
    pub(crate) fn is_held(&self) -> bool {
        self.remaining().is_some()
    }

    /// The time up to the local deadline of a held lease.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let now = self.keeper.clock().now();
        {
            let state = self.state();
            let deadline = state.plan.deadline();
            match state.phase {
                Phase::Held if now < deadline => return Some(deadline - now),
                Phase::Held => {}
                Phase::Lost(_) | Phase::Released | Phase::TooLate => return None,
            }
        }
        // Ends a lease whose deadline has passed: it must not come back.
        match self.lose(LossReason::Expired) {
            Some(_) => None,
            // It was renewed or released meanwhile.
            None => self.remaining(),
        }
    }

    /// Cancelled when the lease is lost; at once if it has been.
    pub(crate) fn loss_token(&self) -> CancellationToken {
        let mut state = self.state();
        let lost = matches!(state.phase, Phase::Lost(_));
        let token = state.loss.get_or_insert_default().clone();
        drop(state);
        if lost {
            token.cancel();
        }
        token
    }

    /// When the store has ended the lease by itself, unless it was renewed
    /// without our knowing.
    fn expires(&self) -> Instant {
        self.state().plan.deadline() + 2 * drift_margin(self.request.ttl)
    }

    /// From now on the lease serves this critical section, and is renewed as
    /// that says.
    pub(crate) fn serve(self: &Arc<Self>, section: SectionSpan, renewals: Renewals) {
        self.speak_for(section);
        self.set_renewals(renewals);
    }

    /// What happens to the lease is said of this critical section.
    fn speak_for(&self, section: SectionSpan) {
        let before = std::mem::replace(&mut self.state().section, section);
        // Outside of the lock: to close a span is a subscriber's code.
        drop(before);
    }

    /// The lease is over: the critical section that it served ends, also where
    /// somebody still knows the lease.
    fn serve_nobody(&self) {
        let nobody = SectionSpan::of_nobody(self.section().labels());
        self.speak_for(nobody);
    }

    /// Whom the lease serves.
    pub(crate) fn section(&self) -> SectionSpan {
        self.state().section.clone()
    }

    /// Sets how the lease is renewed from now on.
    pub(crate) fn set_renewals(self: &Arc<Self>, renewals: Renewals) {
        let changed = self.state().plan.set_renewals(renewals);
        if changed {
            self.keeper.reschedule(self);
        }
    }

    fn say_renewal(&self, renewal: Renewal) {
        self.section().renewal(&self.request.key, renewal);
    }

    /// The store did not do what it was asked for this lease.
    fn store_failed(&self, operation: Operation, error: &BackendError) {
        let labels = self.section().labels();
        labels.store_error(operation, error.kind());
    }

    /// The store answered a renewal.
    fn renewed(&self, answer: &Renewed) {
        self.say_renewal(match answer {
            Renewed::Extended { .. } => Renewal::Renewed,
            Renewed::Gone => Renewal::Gone,
        });
        match *answer {
            // A late answer brings nothing back, and never shortens the lease.
            Renewed::Extended { sent_at } if self.loss().is_none() => {
                self.state().plan.renewed(sent_at, self.request.ttl);
            }
            Renewed::Extended { .. } => {}
            Renewed::Gone => drop(self.lose(LossReason::Gone)),
        }
    }

    /// Ends renewal for good and waits for the one in flight: what is sent
    /// after this comes after every renewal.
    async fn stop_renewal(self: &Arc<Self>) {
        self.set_released();
        if self.state().plan.is_renewal_in_flight() {
            self.returns();
        }
        self.renewal_answered().await;
    }

    /// Nobody works under the lease any more: its end is no loss.
    fn set_released(&self) {
        {
            let mut state = self.state();
            if state.phase == Phase::Held {
                state.phase = Phase::Released;
            }
        }
        self.keeper.unschedule(self);
    }

    /// The store said that it will end a lease that is kept after its body. It is
    /// given up late, not early.
    fn expires_with(&self, request: &Request, sent_at: Instant) {
        let end = sent_at + request.ttl + drift_margin(request.ttl);
        self.state().plan.end_at(end);
        self.set_released();
    }

    /// Waits for the answer to the renewal in flight, if there is one.
    async fn renewal_answered(&self) {
        loop {
            let answered = self.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if !self.state().plan.is_renewal_in_flight() {
                return;
            }
            answered.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of ours panics while it holds this.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
