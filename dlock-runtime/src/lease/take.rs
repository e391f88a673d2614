//! Asks the store for a lease, and asks again if the lease was over before anybody had it.

use std::sync::Arc;
use std::time::Duration;

use super::Leases;
use super::pulse::Pulse;
use super::release::LeaseGuard;
use super::state::Lease;
use crate::apart::apart;
use crate::backend::{BackendError, BackendErrorKind, Request};
use crate::observe::{Labels, SectionSpan};

/// If a request fails more than `timeout / LATE` after its timeout, nobody was there to see the
/// answer.
const LATE: u32 = 20;

/// How long to wait for the cleanup after dropped requests, on a store that names no request
/// timeout: it works on the manager's runtime, and cleans up within a few round trips.
const LEFT: Duration = Duration::from_secs(1);

/// The outcome of a request to the store.
pub(crate) type Answer = Result<LeaseGuard, NotGranted>;

/// Why there is no lease.
#[derive(Clone, Debug)]
pub(crate) enum NotGranted {
    /// Somebody holds the lock.
    Busy,
    /// The work that the lock protects has been done, and is remembered.
    Done,
    /// Somebody has removed the request from the queue.
    TakenOut,
    /// Other tasks would get the same error: it is usually the store's own answer.
    Store(BackendError),
    /// The store granted the lock, but the requester was too late to take it. Other tasks may be in
    /// time.
    TooLate(BackendError),
}

impl From<BackendError> for NotGranted {
    fn from(error: BackendError) -> Self {
        match error.kind() {
            BackendErrorKind::Done => Self::Done,
            BackendErrorKind::TakenOut => Self::TakenOut,
            _ => Self::Store(error),
        }
    }
}

impl Leases {
    /// Asks for a lease, in the store's queue unless `try_only`, and again if the lease was over
    /// before anybody here could take it. The lease serves no section yet, since the task that
    /// asked may have left by now.
    pub(crate) async fn request(
        self: &Arc<Self>,
        request: Request,
        try_only: bool,
        labels: Labels,
    ) -> Answer {
        let asking = Asking {
            leases: self,
            try_only,
            labels,
        };
        let taken = match asking.once(&request).await {
            Ok(taken) => taken,
            // Boxed, here and below: a rare path must not enlarge every call's future.
            Err(error) => apart(asking.retry_unseen(request, error)).await?,
        };
        match taken {
            Taken::InTime(lease) => Ok(lease),
            Taken::Busy => Err(NotGranted::Busy),
            Taken::TooLate(lease, _) => apart(asking.again(lease)).await,
        }
    }

    /// Waits until the remains of dropped requests are removed from the store, for at most half a
    /// request timeout, or for [`LEFT`] where the store does not say how long it may take.
    pub(crate) async fn wait_for_cleanup(&self) {
        tokio::select! {
            biased;
            () = self.backend.settle() => {}
            () = self.executor.sleep(self.a_moment()) => {}
        }
    }

    /// Waits until the calls that a shutdown refuses have left the store, for no longer than what
    /// they leave there: a call that nobody polls does not leave.
    pub(super) async fn wait_for_refused_calls(&self) {
        if self.calls.is_idle() || !self.executor.has_timers() {
            return;
        }
        tokio::select! {
            biased;
            () = self.calls.wait_idle() => {}
            () = self.executor.sleep(self.a_moment()) => {}
        }
    }

    fn a_moment(&self) -> Duration {
        let timeout = self.backend.request_timeout();
        timeout.map_or(LEFT, |timeout| timeout / 2)
    }
}

/// How to ask the store.
#[derive(Clone, Copy)]
struct Asking<'a> {
    leases: &'a Arc<Leases>,
    try_only: bool,
    labels: Labels,
}

/// The outcome of one request.
enum Taken {
    InTime(LeaseGuard),
    /// Somebody holds the lock.
    Busy,
    /// The lock was granted, but its lease was over when the answer was seen: by this much, or, if
    /// `None`, because the store had ended it.
    TooLate(LeaseGuard, Option<Duration>),
}

impl Asking<'_> {
    /// Sends a single request.
    async fn once(self, request: &Request) -> Result<Taken, BackendError> {
        let Self { leases, .. } = self;
        let grant = match self.try_only {
            true => leases.backend.try_acquire(request).await?,
            false => Some(leases.backend.acquire(request).await?),
        };
        let Some(grant) = grant else {
            return Ok(Taken::Busy);
        };
        let mut request = request.clone();
        if let Some(ttl) = grant.ttl {
            request.ttl = request.ttl.min(ttl);
        }
        let section = SectionSpan::of_nobody(self.labels);
        let clock = leases.executor.clock();
        let lease = Lease::new(request, grant, clock, section);
        let owner = lease.request.owner;
        // From here on, dropping the guard gives the lease back.
        let guard = LeaseGuard::new(lease, Arc::clone(leases));
        let now = clock.now();
        let late_by = now.checked_duration_since(guard.lease().deadline());
        if late_by.is_none() {
            guard.accept(now);
            // In this order: a loss that is reported after this check finds the lease in the
            // schedule.
            if !leases.backend.has_ended(owner) {
                return Ok(Taken::InTime(guard));
            }
        }
        guard.reject_as_late(now);
        Ok(Taken::TooLate(guard, late_by))
    }

    /// Asks once more if nobody was there to hear the answer: the request failed later than its
    /// timeout, so the caller's runtime stood still. A grant of the first request is given back
    /// before. A call that does not wait gets its answer within one more request timeout.
    async fn retry_unseen(
        self,
        request: Request,
        error: BackendError,
    ) -> Result<Taken, BackendError> {
        let leases = self.leases;
        let Some(timeout) = leases.backend.request_timeout() else {
            return Err(error);
        };
        let since = |instant| leases.now().saturating_duration_since(instant);
        let progress = request.progress();
        let unheard = progress.asked().map(since);
        let stood_still = unheard.is_some_and(|unheard| unheard > timeout + timeout / LATE);
        if error.kind() != BackendErrorKind::Unavailable
            || progress.heard().is_some()
            || !stood_still
        {
            return Err(error);
        }
        let again = async {
            leases.wait_for_cleanup().await;
            let begun = leases.now();
            loop {
                let taken = self.once(&request.again()?).await?;
                // The grant of the first request may still be on its way back: a store of several
                // nodes does not wait for nodes that look silent.
                let is_early = since(begun) < timeout / 4;
                if !matches!(taken, Taken::Busy) || !is_early {
                    return Ok(taken);
                }
                leases.executor.sleep(timeout / 40).await;
            }
        };
        tokio::select! {
            biased;
            taken = again => taken,
            () = leases.executor.sleep(timeout), if self.try_only => Err(error),
        }
    }

    /// Gives back a grant that came too late, and asks again. The [`Pulse`] of the second request
    /// shows whether the store is slower than the ttl or this process stood still. If the answer
    /// would have been in time without the standstill, it tries again: each attempt takes at least
    /// a ttl.
    async fn again(self, mut late: LeaseGuard) -> Answer {
        loop {
            let request = late.lease().request.again()?;
            // Awaited: the next request must not find the lock held by this lease.
            late.release(false).await?;
            let mut pulse = Pulse::new(&self.leases.executor, request.ttl);
            let (lease, by) = match pulse.of(self.once(&request)).await? {
                Taken::InTime(lease) => return Ok(lease),
                Taken::Busy => return Err(NotGranted::Busy),
                Taken::TooLate(lease, by) => (lease, by),
            };
            let stood_still = pulse.stood_still();
            if self.try_only || by.is_none_or(|by| by >= stood_still) {
                return Err(too_late(lease.lease().ttl(), by, stood_still));
            }
            late = lease;
        }
    }
}

/// Says what to do about a lease that was over before it was taken.
fn too_late(ttl: Duration, late_by: Option<Duration>, stood_still: Duration) -> NotGranted {
    match late_by {
        None => NotGranted::TooLate(BackendError::unavailable(
            "the store granted the lock, and ended its lease before the caller could take it; ask \
             again",
        )),
        // With this ttl, the grant would come too late for anybody.
        Some(by) if by >= stood_still => NotGranted::Store(BackendError::unavailable(format!(
            "the store took longer to grant the lock than its ttl of {ttl:?}; raise the ttl"
        ))),
        Some(_) => NotGranted::TooLate(BackendError::unavailable(format!(
            "the store granted the lock, and the caller's runtime stood still for longer than the \
             ttl of {ttl:?} before it saw that; raise the ttl, or block the runtime for less time"
        ))),
    }
}
