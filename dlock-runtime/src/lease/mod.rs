//! Leases: their life from grant to release or loss, seen from this process.
//!
//! The local deadline of a lease is *sent at* + ttl − drift margin on the
//! monotonic clock, counted from the last request that the store confirmed, so
//! that this process stops believing in a lease before the store does.

mod keeper;
mod release;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use keeper::Keeper;
pub(crate) use release::{Leases, OwnedLease};

use crate::backend::{Grant, Renewed, Request};
use crate::error::LossReason;
use crate::token::FencingToken;

/// One lease that the store gave to this process.
#[derive(Debug)]
pub(crate) struct Lease {
    request: Request,
    token: FencingToken,
    keeper: Arc<Keeper>,
    state: Mutex<State>,
    /// Told when a renewal that was in flight has been answered.
    answered: Notify,
}

/// A lease is `Held`, then `Lost` or `Released`, and never held again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Lost(LossReason),
    Released,
}

/// Whether, and until when, a lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewals {
    Always,
    Until(Instant),
    Never,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    deadline: Instant,
    renewals: Renewals,
    renewal_in_flight: bool,
    /// Where the keeper's schedule has this lease.
    scheduled: Option<Instant>,
    /// Cancelled on loss. Made when somebody first listens, since most bodies
    /// end before they ever do.
    loss: Option<CancellationToken>,
}

/// What the clocks of this machine and of the store may drift apart during a
/// ttl, and what their resolution hides: 1% and 2 ms.
fn drift_margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

fn local_deadline(sent_at: Instant, ttl: Duration) -> Instant {
    sent_at + ttl.saturating_sub(drift_margin(ttl))
}

impl Lease {
    fn new(request: Request, grant: Grant, keeper: Arc<Keeper>) -> Self {
        let deadline = local_deadline(grant.sent_at, request.ttl);
        Self {
            request,
            token: grant.token,
            keeper,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline,
                renewals: Renewals::Always,
                renewal_in_flight: false,
                scheduled: None,
                loss: None,
            }),
            answered: Notify::new(),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.request.ttl
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
                Phase::Held => now >= state.deadline,
                Phase::Released => false,
            }
        };
        if expired { self.lose(LossReason::Expired) } else { None }
    }

    /// Ends a lease that is held, and tells everybody who listens.
    fn lose(&self, reason: LossReason) -> Option<LossReason> {
        let listeners = {
            let mut state = self.state();
            match state.phase {
                Phase::Held if reason == LossReason::Expired => {
                    // A renewal may have been confirmed meanwhile.
                    if self.keeper.clock().now() < state.deadline {
                        return None;
                    }
                }
                Phase::Held => {}
                Phase::Lost(before) => return Some(before),
                Phase::Released => return None,
            }
            state.phase = Phase::Lost(reason);
            state.loss.clone()
        };
        // Outside of the lock: a subscriber's code is not ours.
        tracing::warn!(
            target: "dlock::lease",
            key = %self.request.key, owner = %self.request.owner, %reason,
            "lease lost"
        );
        if let Some(listeners) = listeners {
            listeners.cancel();
        }
        Some(reason)
    }

    /// Whether the lease is held and its local deadline has not passed.
    pub(crate) fn is_held(&self) -> bool {
        self.remaining().is_some()
    }

    /// The time up to the local deadline of a held lease.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let state = self.state();
        if state.phase != Phase::Held {
            return None;
        }
        let left = state.deadline.checked_duration_since(self.keeper.clock().now())?;
        (!left.is_zero()).then_some(left)
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

    /// Sets how the lease is renewed from now on.
    pub(crate) fn set_renewals(self: &Arc<Self>, renewals: Renewals) {
        let changed = {
            let mut state = self.state();
            let changed = state.renewals != renewals;
            state.renewals = renewals;
            changed
        };
        if changed {
            self.keeper.reschedule(self);
        }
    }

    /// When the keeper has to look at this lease next: to renew it after a
    /// third of its ttl, give or take a tenth, or to see it end.
    fn next_look(&self, state: &State) -> Instant {
        let ttl = self.request.ttl;
        let renew_at = state.deadline - (ttl * 2 / 3).saturating_sub(drift_margin(ttl));
        if !state.renewals.go_on(renew_at) || state.renewal_in_flight {
            return state.deadline;
        }
        // Leases that were taken together must not be renewed together for ever.
        let jitter = ttl.mul_f64(fastrand::f64() / 15.0);
        renew_at.checked_sub(jitter).unwrap_or(renew_at)
    }

    /// The store answered a renewal.
    fn renewed(&self, answer: &Renewed) {
        match *answer {
            Renewed::Extended { sent_at } => {
                let mut state = self.state();
                // A late answer brings nothing back, and never shortens the lease.
                if state.phase == Phase::Held {
                    let deadline = local_deadline(sent_at, self.request.ttl);
                    state.deadline = state.deadline.max(deadline);
                }
            }
            Renewed::Gone => drop(self.lose(LossReason::Gone)),
        }
    }

    /// Ends renewal for good and waits for the one in flight: what is sent
    /// after this comes after every renewal.
    async fn stop_renewal(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.phase == Phase::Held {
                state.phase = Phase::Released;
            }
        }
        self.keeper.unschedule(self);
        loop {
            let answered = self.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if !self.state().renewal_in_flight {
                return;
            }
            answered.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of ours panics while it holds this.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
