//! Giving leases back, whatever becomes of the caller.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::leases::Leases;
use super::{Lease, Phase, Renewals};
use crate::backend::{BackendError, Released, Renewed};
use crate::error::LossReason;
use crate::in_flight::Counted;
use crate::observe::{Operation, SectionSpan};

/// The first pause before a failed release is tried again; doubled up to
/// [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// A lease that somebody is responsible for: given back when dropped.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    /// Present until it is given back.
    lease: Option<Arc<Lease>>,
    leases: Arc<Leases>,
}

impl LeaseGuard {
    pub(super) fn new(lease: Arc<Lease>, leases: Arc<Leases>) -> Self {
        Self {
            lease: Some(lease),
            leases,
        }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        // Only what ends `self` takes it out.
        self.lease
            .as_ref()
            .unwrap_or_else(|| unreachable!("a lease is given back once"))
    }

    pub(crate) fn now(&self) -> Instant {
        self.leases.now()
    }

    /// The same, for this critical section.
    pub(super) fn of(self, section: SectionSpan) -> Self {
        self.lease().speak_for(section);
        self
    }

    /// Gives back what nobody had, here and now: what is asked next must not find
    /// the lock held by it.
    pub(super) async fn turn_down(self) -> Result<(), BackendError> {
        self.release(false).await.map(drop)
    }

    /// Gives the lease back, here and now. If the store does not answer, or
    /// the caller is dropped, the manager goes on trying by itself until the
    /// lease has run out. What follows the lease goes on once the store has
    /// been asked; `followed` says that there is a task that will ask it for the
    /// same key then.
    pub(crate) async fn release(mut self, followed: bool) -> Result<Released, BackendError> {
        match self.returns() {
            Some(mut back) => {
                back.followed = followed;
                back.attempt().await
            }
            None => Ok(Released::NotHeld),
        }
    }

    /// Keeps the lease until `instant` and then gives it back, in the
    /// background. The store is told here and now to let it expire at `instant`
    /// by itself: neither the end of the runtime nor that of the process frees
    /// it sooner. If it does not answer, or the caller is dropped, that goes on
    /// in the background too.
    pub(crate) async fn release_at(mut self, instant: Instant) -> Result<Released, BackendError> {
        match self.returns() {
            Some(mut back) => {
                back.kept = Some(Kept::until(instant));
                back.tell().await
            }
            None => Ok(Released::NotHeld),
        }
    }

    /// The same, all of it in the background.
    pub(crate) fn abandon_at(mut self, instant: Instant) {
        if let Some(mut back) = self.returns() {
            back.kept = Some(Kept::until(instant));
        }
    }

    fn returns(&mut self) -> Option<Return> {
        let lease = self.lease.take()?;
        Some(Return::begin(&self.leases, lease))
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        drop(self.returns());
    }
}

/// A lease on its way back. Dropped before it has arrived, it goes on in a
/// task of the manager's own; dropped there, the lock ends with its ttl.
struct Return {
    /// None once it has arrived.
    lease: Option<Arc<Lease>>,
    leases: Arc<Leases>,
    /// It is to stay for a while first.
    kept: Option<Kept>,
    background: bool,
    /// A request before this one asked for its end, and may have been done: that
    /// the lease is gone then is no news.
    asked_before: bool,
    /// That the store did not take it has been said.
    said: bool,
    /// A task waits to ask the store for the same key.
    followed: bool,
    /// `Leases::shutdown` waits for it.
    counted: Option<Counted>,
}

/// A lease that is kept for a while after its body has ended.
#[derive(Clone, Copy)]
struct Kept {
    until: Instant,
    /// The store has answered that it will let it expire by itself then.
    told: bool,
}

impl Kept {
    fn until(until: Instant) -> Self {
        Self { until, told: false }
    }
}

impl Return {
    fn begin(leases: &Arc<Leases>, lease: Arc<Lease>) -> Self {
        // What nobody had may have run out: that is no news either.
        let asked_before = lease.state().phase == Phase::TooLate;
        Self {
            counted: counted(leases, &lease),
            asked_before,
            lease: Some(lease),
            leases: Arc::clone(leases),
            kept: None,
            background: false,
            said: false,
            followed: false,
        }
    }

    /// Sets the store's own expiry to the end of a lease that is kept, and ours.
    async fn tell(&mut self) -> Result<Released, BackendError> {
        let (Some(lease), Some(kept)) = (&self.lease, &mut self.kept) else {
            return Ok(Released::NotHeld);
        };
        lease.set_renewals(Renewals::Never);
        lease.renewal_answered().await;
        let left = kept.until.saturating_duration_since(self.leases.now());
        let mut request = lease.request.clone();
        request.ttl = left.max(Duration::from_millis(1));
        // Before it is sent, here and below: whoever drops this at the next await
        // leaves it open whether the store has done it.
        let asked_before = std::mem::replace(&mut self.asked_before, true);
        let backend = self.leases.backend();
        let answers = backend.renew(std::slice::from_ref(&request)).await;
        let Some(answer) = answers.into_iter().next() else {
            return Ok(Released::NotHeld);
        };
        let answer = answer.inspect_err(|error| lease.store_failed(Operation::Release, error))?;
        kept.told = true;
        Ok(match answer {
            Renewed::Extended { sent_at } => {
                lease.expires_with(&request, sent_at);
                Released::Released
            }
            Renewed::Gone => {
                if asked_before {
                    lease.set_released();
                } else {
                    lease.lose(LossReason::Gone);
                }
                Released::NotHeld
            }
        })
    }

    /// Keeps the lease until its time has come, or it is lost. `false`: the rest is
    /// left to the store.
    async fn keep(&mut self, lease: &Arc<Lease>) -> bool {
        self.tell_once().await;
        // Without a runtime there is nothing to wait on.
        let Some(kept) = self.kept.filter(|_| Handle::try_current().is_ok()) else {
            return false;
        };
        if !kept.told {
            lease.set_renewals(Renewals::Always);
        }
        let lost = lease.loss_token();
        tokio::select! {
            () = tokio::time::sleep_until(kept.until) => return true,
            () = lost.cancelled() => return true,
            () = self.leases.shutdown_token().cancelled() => {}
        }
        self.tell_once().await;
        if self.kept.is_some_and(|kept| !kept.told) {
            lease.section().min_hold_not_told(&lease.request.key);
        }
        false
    }

    async fn tell_once(&mut self) {
        if self.kept.is_some_and(|kept| !kept.told) {
            let _ = self.tell().await;
        }
    }

    async fn attempt(&mut self) -> Result<Released, BackendError> {
        let Some(lease) = &self.lease else {
            return Ok(Released::NotHeld);
        };
        let known_lost = lease.loss().is_some();
        lease.stop_renewal().await;
        let asked_before = std::mem::replace(&mut self.asked_before, true);
        let result = {
            // The background has a connection of its own.
            let in_order = self.leases.in_order() && !self.background;
            let mut request = lease.request.clone();
            if in_order && self.followed {
                request = request.followed();
            }
            let mut release = self.leases.backend().release(&request);
            poll_fn(|context| {
                let answer = release.as_mut().poll(context);
                // It is on its way, and what follows may be sent behind it.
                if in_order || answer.is_ready() {
                    lease.let_follow();
                } else {
                    lease.returns();
                }
                answer
            })
            .await
        };
        let (section, key) = (lease.section(), &lease.request.key);
        // Its body ended in time, and it may have run out on the way back.
        let ran_out = self.leases.now() >= lease.state().plan.deadline();
        match &result {
            Ok(Released::NotHeld) if !(known_lost || asked_before || ran_out) => {
                section.was_gone(key, lease.request.owner);
            }
            Ok(Released::Released | Released::NotHeld) => section.released(key),
            Err(error) => {
                lease.store_failed(Operation::Release, error);
                if !std::mem::replace(&mut self.said, true) {
                    section.release_failed(key, error);
                }
            }
        }
        let result = result?;
        lease.serve_nobody();
        self.lease = None;
        Ok(match result {
            Released::NotHeld if ran_out && !known_lost => Released::Released,
            told => told,
        })
    }

    /// The work of the background: tries until the store has answered, or has let the
    /// lease expire.
    async fn finish(mut self) {
        let Some(lease) = self.lease.clone() else {
            return;
        };
        if self.kept.is_some() {
            if !self.keep(&lease).await {
                return;
            }
            self.counted = counted(&self.leases, &lease);
        }
        let end = match lease.loss() {
            None => lease.expires(),
            // A renewal that was not answered may have been applied late.
            Some(_) => self.leases.now() + lease.request.ttl,
        };
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.attempt().await {
            let no_runtime = Handle::try_current().is_err();
            if no_runtime || self.leases.now() + pause >= end {
                let (key, owner) = (&lease.request.key, lease.request.owner);
                lease.section().release_given_up(key, owner, &error);
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else {
            return;
        };
        // There is nobody left to go on: the runtime has ended, or all was tried.
        if self.background {
            lease.keeper.unschedule(&lease);
            lease.let_follow();
            lease.serve_nobody();
            return;
        }
        let mut again = Self::begin(&self.leases, lease);
        again.kept = self.kept;
        again.background = true;
        again.asked_before |= self.asked_before;
        again.said = self.said;
        self.leases.executor().spawn_release(again.finish());
    }
}

/// Nobody need wait for a lease that has run out: whether its release arrives makes
/// no difference to those who wait for the lock.
fn counted(leases: &Leases, lease: &Lease) -> Option<Counted> {
    lease.loss().is_none().then(|| leases.returns().count())
}
