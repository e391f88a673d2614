//! Gives leases back, whatever happens to the caller.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Leases;
use super::keeper::Keeper;
use super::plan::{Renewals, drift_margin};
use super::renewing::Renewable;
use super::state::{GivenBackBy, Lease, WayBack};

use crate::apart::outlined;
use crate::backend::{BackendError, Released, Renewed};
use crate::clock::{sleep, sleep_until};
use crate::error::LossReason;
use crate::executor::has_timers_here;

/// The first pause before a failed release is tried again. It doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// A lease with an owner that must give it back. If dropped before the store has taken it back, a
/// background task of the manager releases it. If dropped in that task too, the lock ends with its
/// ttl.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    lease: Arc<Lease>,
    keeper: Arc<Keeper>,
    leases: Arc<Leases>,
}

impl LeaseGuard {
    pub(super) fn new(lease: Lease, leases: Arc<Leases>) -> Self {
        Self {
            lease: Arc::new(lease),
            keeper: leases.keeper(),
            leases,
        }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(crate) fn now(&self) -> Instant {
        self.leases.now()
    }

    /// The lease was granted in time: from now on it is renewed and its end is noticed.
    pub(super) fn accept(&self, now: Instant) {
        self.keeper.reschedule(&self.lease, now);
    }

    /// The lease came too late to be used. The store may have started its ttl only now, so the
    /// release is retried for a whole ttl. The store may also have ended the lease already, so
    /// `asked` keeps that from being reported as a loss.
    pub(super) fn reject_as_late(&self, now: Instant) {
        self.ends_after(self.lease.ttl(), now);
        self.back(|back| back.asked = true);
    }

    pub(crate) fn renewable(&self) -> Renewable {
        Renewable {
            lease: Arc::clone(&self.lease),
            keeper: Arc::clone(&self.keeper),
        }
    }

    /// Sets how the lease is renewed from now on.
    pub(crate) fn set_renewals(&self, renewals: Renewals) {
        let changed = self.lease.state.lock().plan.set_renewals(renewals);
        if changed {
            self.keeper.reschedule(&self.lease, self.now());
        }
    }

    /// Gives the lease back now. If the store does not answer, or the caller is dropped, the
    /// manager keeps trying until the lease has run out. The follower proceeds once the store has
    /// answered; where requests keep their order, once the release is sent. `followed` says that a
    /// task will then ask the store for the same key.
    pub(crate) async fn release(self, followed: bool) -> Result<Released, BackendError> {
        self.count();
        outlined(self.attempt(followed)).await
    }

    /// Keeps the lease until `instant`, then gives it back in the background. The store is told now
    /// to let the lease expire at `instant`, so neither the end of the runtime nor that of the
    /// process frees it sooner. If the store does not answer, or the caller is dropped, that
    /// continues in the background too.
    pub(crate) async fn release_at(self, instant: Instant) -> Result<Released, BackendError> {
        self.back(|back| back.kept_until = Some(instant));
        self.count();
        outlined(self.tell(instant)).await
    }

    /// Keeps the lease until `instant` and then gives it back, all in the background.
    pub(crate) fn abandon_at(self, instant: Instant) {
        self.back(|back| back.kept_until = Some(instant));
    }

    /// Makes a shutdown wait for the release, unless the lease has run out: then its release makes
    /// no difference to those who wait for the lock.
    fn count(&self) {
        let held = self.lease.loss().is_none();
        let counted = held.then(|| self.leases.returns.count());
        self.back(|back| back.counted = counted);
    }

    /// Nothing is left to do or to wait for.
    fn arrived(&self) {
        let counted = self.back(|back| {
            back.by = GivenBackBy::Nobody;
            back.counted.take()
        });
        self.keeper.unschedule(&self.lease);
        drop(counted);
    }

    fn back<T>(&self, change: impl FnOnce(&mut WayBack) -> T) -> T {
        change(&mut self.lease.state.lock().back)
    }

    /// Nobody works under the lease any more, and the store ends it `time` after `from`. The local
    /// deadline errs on the late side here.
    fn ends_after(&self, time: Duration, from: Instant) {
        let end = from + time + drift_margin(time);
        self.lease.state.lock().plan.end_at(end);
        self.lease.mark_released();
        self.keeper.reschedule(&self.lease, self.now());
    }

    /// Ends renewal for good and waits for the renewal in flight, so that the next request reaches
    /// the store after every renewal. The lease stays in the keeper's schedule until it has gone
    /// back: if this future is not polled, the keeper ends it when its ttl is over.
    async fn stop_renewal(&self) {
        self.lease.mark_released();
        if self.lease.state.lock().plan.is_renewal_in_flight() {
            self.lease.returns();
        }
        self.lease.renewal_answered().await;
    }

    /// Sets the expiry of a kept lease in the store and the local deadline to `until`, unless the
    /// store has already confirmed it.
    async fn tell(&self, until: Instant) -> Result<Released, BackendError> {
        if self.back(|back| back.confirmed) {
            return Ok(Released::Released);
        }
        self.set_renewals(Renewals::Never);
        self.lease.renewal_answered().await;
        let left = until.saturating_duration_since(self.now());
        let mut request = self.lease.request.clone();
        request.ttl = left.max(Duration::from_millis(1));
        // Set before the request is sent, here and below: if this future is dropped at the next
        // await, nobody knows whether the store has done it.
        let asked_before = self.back(|back| std::mem::replace(&mut back.asked, true));
        let (lease, backend) = (&self.lease, &self.leases.backend);
        let answers = backend.renew(std::slice::from_ref(&request)).await;
        let Some(answer) = answers.into_iter().next() else {
            return Ok(Released::NotHeld);
        };
        let answer = answer.inspect_err(|error| lease.store_failed("release", error))?;
        self.back(|back| back.confirmed = true);
        Ok(match answer {
            Renewed::Extended { sent_at } => {
                self.ends_after(request.ttl, sent_at);
                Released::Released
            }
            Renewed::Gone => {
                if !asked_before {
                    self.lease.mark_gone();
                }
                self.lease.mark_released();
                Released::NotHeld
            }
        })
    }

    async fn attempt(&self, followed: bool) -> Result<Released, BackendError> {
        let known_lost = self.lease.loss().is_some();
        let wanted = self.lease.done_for();
        // A lost lease leaves no mark, even if the store still has the lease: somebody else may
        // have done the work since, or be doing it.
        let done_for = wanted.filter(|_| !known_lost);
        self.stop_renewal().await;
        let Self { lease, leases, .. } = self;
        let asked_before = self.back(|back| std::mem::replace(&mut back.asked, true));
        let result = {
            // The background has a connection of its own, so its requests are not in order with
            // others.
            let in_order = leases.in_order && self.back(|back| back.by) == GivenBackBy::Holder;
            let mut request = lease.request.clone().done(done_for);
            if in_order && followed {
                request = request.followed();
            }
            let mut release = leases.backend.release(&request);
            poll_fn(|context| {
                let answer = release.as_mut().poll(context);
                // The release is on its way, so the follower's request may be sent after it.
                if in_order || answer.is_ready() {
                    lease.let_follow();
                } else {
                    lease.returns();
                }
                answer
            })
            .await
        };
        let (section, key) = (lease.section(), lease.key());
        // The body ended in time, but the lease may have run out on the way back.
        let ran_out = leases.now() >= lease.deadline();
        match &result {
            Ok(Released::NotHeld) if !(known_lost || asked_before || ran_out) => {
                section.was_gone(key, lease.request.owner);
            }
            Ok(Released::Released | Released::NotHeld) => section.released(key),
            Err(error) => {
                lease.store_failed("release", error);
                if !self.back(|back| std::mem::replace(&mut back.said, true)) {
                    section.release_failed(key, error);
                }
            }
        }
        let is_marked = done_for.is_some() && matches!(result, Ok(Released::Released));
        if wanted.is_some() && result.is_ok() && !is_marked {
            section.not_remembered(key);
        }
        let result = result?;
        lease.clear_section();
        self.arrived();
        Ok(match result {
            // The work was done in time. But a caller that asked for a mark did not get one.
            Released::NotHeld if ran_out && !known_lost && wanted.is_none() => Released::Released,
            told => told,
        })
    }

    /// The background task: tries until the store has answered or has let the lease expire.
    async fn finish(self) {
        if let Some(until) = self.back(|back| back.kept_until) {
            if !self.keep(until).await {
                return;
            }
            self.count();
        }
        let end = match self.lease.loss() {
            None => self.lease.over_at(),
            // A renewal that was not answered may have been applied late.
            Some(_) => self.now() + self.lease.ttl(),
        };
        let mut pause = FIRST_PAUSE;
        while let Err(error) = outlined(self.attempt(false)).await {
            if !has_timers_here() || self.now() + pause >= end {
                let (key, owner) = (self.lease.key(), self.lease.request.owner);
                let section = self.lease.section();
                section.release_given_up(key, owner, &error);
                if self.lease.done_for().is_some() {
                    section.not_remembered(key);
                }
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Keeps the lease until `until`, or until it is lost. Returns `false` if the rest is left to
    /// the store.
    async fn keep(&self, until: Instant) -> bool {
        // There may be no runtime, or one without timers.
        if !has_timers_here() {
            let _ = outlined(self.tell(until)).await;
            return false;
        }
        let lost = self.lease.loss_token();
        let told = tokio::select! {
            biased;
            _ = outlined(self.tell(until)) => true,
            // The store is silent. From now on it is asked to take the lease back.
            () = sleep_until(until) => return true,
            () = lost.cancelled() => false,
        };
        if told {
            if !self.back(|back| back.confirmed) {
                self.set_renewals(Renewals::Always);
            }
            tokio::select! {
                biased;
                () = sleep_until(until) => return true,
                () = lost.cancelled() => {}
                () = self.leases.shut_down.begins() => {
                    let _ = outlined(self.tell(until)).await;
                    self.say_if_not_confirmed();
                    return false;
                }
            }
        }
        // The store may still learn of `until`, or know it by now, and must keep the lock until then.
        // If it does not, it has ended the lease by itself.
        self.say_if_not_confirmed();
        self.lease.loss() == Some(LossReason::Gone)
    }

    fn say_if_not_confirmed(&self) {
        let gone = self.lease.loss() == Some(LossReason::Gone);
        if !gone && !self.back(|back| back.confirmed) {
            let section = self.lease.section();
            section.min_hold_not_confirmed(self.lease.key());
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let lease = &self.lease;
        match self.back(|back| back.by) {
            GivenBackBy::Nobody => return,
            // The runtime has ended, or every attempt has failed.
            GivenBackBy::Background => {
                lease.let_follow();
                lease.clear_section();
                return self.arrived();
            }
            GivenBackBy::Holder => self.back(|back| back.by = GivenBackBy::Background),
        }
        let again = Self {
            lease: Arc::clone(lease),
            keeper: Arc::clone(&self.keeper),
            leases: Arc::clone(&self.leases),
        };
        again.count();
        if again.back(|back| back.kept_until).is_none() {
            // From here on nobody in this process holds the lease, however late the background task
            // starts.
            lease.returns();
        }
        self.leases.executor.spawn_release(again.finish());
    }
}
