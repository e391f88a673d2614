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
    pub(super) async fn turn_down(mut self) -> Result<(), BackendError> {
        if let Some(lease) = self.lease.take() {
            Return::begin(&self.leases, lease).attempt().await?;
        }
        Ok(())
    }

    /// Gives the lease back, here and now. If the store does not answer, or
    /// the caller is dropped, the manager goes on trying by itself until the
    /// lease has run out. What follows the lease goes on once the store has
    /// been asked; `followed` says that there is a task that will ask it for the
    /// same key then.
    pub(crate) async fn release(mut self, followed: bool) -> Result<Released, BackendError> {
        match self.lease.take() {
            Some(lease) => {
                let mut back = Return::begin(&self.leases, lease);
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
        match self.lease.take() {
            Some(lease) => Kept::begin(&self.leases, lease, instant).tell().await,
            None => Ok(Released::NotHeld),
        }
    }

    /// The same, all of it in the background.
    pub(crate) fn abandon_at(mut self, instant: Instant) {
        if let Some(lease) = self.lease.take() {
            drop(Kept::begin(&self.leases, lease, instant));
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            drop(Return::begin(&self.leases, lease));
        }
    }
}

/// A lease that is kept for a while after its body has ended. Dropped, the rest
/// is done in a task of the manager's own; dropped there, it is left to the
/// store to expire.
struct Kept {
    lease: Arc<Lease>,
    until: Instant,
    /// The store has been asked to let it expire by itself, and may do so: that
    /// it has is no news then.
    asked: bool,
    /// The store has answered that it will.
    told: bool,
    background: bool,
    counted: CountedReturn,
}

impl Kept {
    fn begin(leases: &Arc<Leases>, lease: Arc<Lease>, until: Instant) -> Self {
        Self {
            lease,
            until,
            asked: false,
            told: false,
            background: false,
            counted: CountedReturn::new(leases),
        }
    }

    /// Sets the store's own expiry to the end, and ours.
    async fn tell(&mut self) -> Result<Released, BackendError> {
        let leases = &self.counted.leases;
        self.lease.set_renewals(Renewals::Never);
        self.lease.renewal_answered().await;
        let left = self.until.saturating_duration_since(leases.now());
        let mut request = self.lease.request.clone();
        request.ttl = left.max(Duration::from_millis(1));
        let asked_before = std::mem::replace(&mut self.asked, true);
        let answers = leases.backend().renew(std::slice::from_ref(&request)).await;
        let answer = match answers.into_iter().next() {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                let labels = self.lease.section().labels();
                labels.store_error(Operation::Release, error.kind());
                return Err(error);
            }
            None => return Ok(Released::NotHeld),
        };
        match answer {
            Renewed::Extended { sent_at } => self.lease.expires_with(&request, sent_at),
            Renewed::Gone if asked_before => self.lease.set_released(),
            Renewed::Gone => drop(self.lease.lose(LossReason::Gone)),
        }
        self.told = true;
        Ok(match answer {
            Renewed::Extended { .. } => Released::Released,
            Renewed::Gone => Released::NotHeld,
        })
    }

    /// The work of the background.
    async fn finish(mut self) {
        let leases = Arc::clone(&self.counted.leases);
        if !self.told {
            let _ = self.tell().await;
        }
        // Without a runtime there is nothing to wait on.
        if Handle::try_current().is_err() {
            self.lease.serve_nobody();
            return;
        }
        if !self.told {
            self.lease.set_renewals(Renewals::Always);
        }
        let lost = self.lease.loss_token();
        tokio::select! {
            () = tokio::time::sleep_until(self.until) => {}
            () = lost.cancelled() => {}
            () = leases.shutdown_token().cancelled() => {
                if !self.told {
                    let _ = self.tell().await;
                }
                if !self.told {
                    let section = self.lease.section();
                    section.min_hold_not_told(&self.lease.request.key);
                }
                self.lease.serve_nobody();
                return;
            }
        }
        let mut again = Return::begin(&leases, Arc::clone(&self.lease));
        // It ends at this very moment by itself: that it is gone is no news.
        again.asked_before = self.asked;
        drop(self);
        again.in_background().finish().await;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.background {
            self.lease.keeper.unschedule(&self.lease);
            self.lease.let_follow();
            return;
        }
        let leases = Arc::clone(&self.counted.leases);
        let mut again = Self::begin(&leases, Arc::clone(&self.lease), self.until);
        again.asked = self.asked;
        again.told = self.told;
        again.background = true;
        leases.executor().spawn_release(again.finish());
    }
}

/// A lease on its way back. Dropped before it has arrived, it goes on in a
/// task of the manager's own.
struct Return {
    lease: Option<Arc<Lease>>,
    background: bool,
    /// A request before this one asked for the same, and may have been done: that
    /// the lease is gone then is no news.
    asked_before: bool,
    /// That the store did not take it has been said.
    said: bool,
    /// A task waits to ask the store for the same key.
    followed: bool,
    counted: CountedReturn,
}

impl Return {
    fn begin(leases: &Arc<Leases>, lease: Arc<Lease>) -> Self {
        // Nobody need wait for a lease that has run out: whether its release
        // arrives makes no difference to those who wait for the lock.
        let counted = match lease.loss() {
            None => CountedReturn::new(leases),
            Some(_) => CountedReturn::uncounted(leases),
        };
        // What nobody had may have run out: that is no news either.
        let asked_before = lease.state().phase == Phase::TooLate;
        Self {
            lease: Some(lease),
            background: false,
            asked_before,
            said: false,
            followed: false,
            counted,
        }
    }

    fn in_background(mut self) -> Self {
        self.background = true;
        self
    }

    async fn attempt(&mut self) -> Result<Released, BackendError> {
        let Some(lease) = &self.lease else {
            return Ok(Released::NotHeld);
        };
        let known_lost = lease.loss().is_some();
        lease.stop_renewal().await;
        let leases = &self.counted.leases;
        // Before it is sent: whoever drops this at the next await leaves it open
        // whether the store has done it.
        let asked_before = std::mem::replace(&mut self.asked_before, true);
        let result = {
            // The background has a connection of its own.
            let in_order = leases.in_order() && !self.background;
            let mut request = lease.request.clone();
            if in_order && self.followed {
                request = request.followed();
            }
            let mut release = leases.backend().release(&request);
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
        let ran_out = leases.now() >= lease.state().plan.deadline();
        match &result {
            Ok(Released::NotHeld) if !(known_lost || asked_before || ran_out) => {
                section.was_gone(key, lease.request.owner);
            }
            Ok(Released::Released | Released::NotHeld) => section.released(key),
            Err(error) => {
                let labels = section.labels();
                labels.store_error(Operation::Release, error.kind());
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

    /// Tries until the store has answered, or has let the lease expire.
    async fn finish(mut self) {
        let Some(lease) = self.lease.clone() else {
            return;
        };
        let leases = Arc::clone(&self.counted.leases);
        let end = match lease.loss() {
            None => lease.expires(),
            // A renewal that was not answered may have been applied late.
            Some(_) => leases.now() + lease.request.ttl,
        };
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.attempt().await {
            let no_runtime = Handle::try_current().is_err();
            if no_runtime || leases.now() + pause >= end {
                let (key, owner) = (&lease.request.key, lease.request.owner);
                lease.section().release_given_up(key, owner, &error);
                lease.serve_nobody();
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        self.lease = None;
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else {
            return;
        };
        // In the background there is nobody left to go on: the runtime has
        // ended, and the lock ends with its ttl.
        if self.background {
            lease.let_follow();
            lease.serve_nobody();
            return;
        }
        let leases = Arc::clone(&self.counted.leases);
        let mut again = Self::begin(&leases, lease).in_background();
        again.asked_before |= self.asked_before;
        again.said = self.said;
        leases.executor().spawn_release(again.finish());
    }
}

/// A return that `Leases::shutdown` waits for, as a rule.
struct CountedReturn {
    leases: Arc<Leases>,
    _counted: Option<Counted>,
}

impl CountedReturn {
    fn new(leases: &Arc<Leases>) -> Self {
        Self {
            leases: Arc::clone(leases),
            _counted: Some(leases.returns().count()),
        }
    }

    fn uncounted(leases: &Arc<Leases>) -> Self {
        Self {
            leases: Arc::clone(leases),
            _counted: None,
        }
    }
}
