//! Asking the store for a lease, and again if it was over before anybody had it.

use std::sync::Arc;
use std::time::Duration;

use super::Leases;
use super::pulse::Pulse;
use super::release::LeaseGuard;
use super::state::Lease;
use crate::backend::{BackendError, BackendErrorKind, Request};
use crate::observe::{Labels, SectionSpan};

/// How late an answer that was waited for in vain shows that it was not waited for,
/// as a part of the request timeout.
const LATE: u32 = 20;

/// What became of a request to the store.
pub(crate) type Answer = Result<LeaseGuard, NotHad>;

/// Why there is no lease.
#[derive(Clone, Debug)]
pub(crate) enum NotHad {
    /// Somebody holds the lock.
    Busy,
    /// What it protects has been done, and is remembered.
    Done,
    /// Somebody has taken the request out of the queue.
    TakenOut,
    /// Others would be told the same: as a rule, it is what the store says.
    Store(BackendError),
    /// The store has granted the lock, and whoever asked came too late for it.
    /// Others may be in time.
    TooLate(BackendError),
}

impl From<BackendError> for NotHad {
    fn from(error: BackendError) -> Self {
        match error.kind() {
            BackendErrorKind::Done => Self::Done,
            BackendErrorKind::TakenOut => Self::TakenOut,
            _ => Self::Store(error),
        }
    }
}

impl Leases {
    /// Asks for a lease, in the store's queue unless `try_only`, and again if it was
    /// over before anybody here could take it. It serves nobody yet: whoever asked
    /// may have left by now.
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
            // Boxed, here and below: not every call has room for it.
            Err(error) => Box::pin(asking.unheard(request, error)).await?,
        };
        match taken {
            Taken::Had(lease) => Ok(lease),
            Taken::Busy => Err(NotHad::Busy),
            Taken::TooLate(lease, _) => Box::pin(asking.again(lease)).await,
        }
    }

    /// Waits until what dropped requests left in the store is given back: for half of
    /// a request timeout at most.
    pub(crate) async fn what_was_left_is_back(&self) {
        let timeout = self.backend.request_timeout().unwrap_or_default();
        tokio::select! {
            biased;
            () = self.backend.settle() => {}
            () = self.executor.sleep(timeout / 2) => {}
        }
    }

    /// Makes leases last their whole ttl from now on. Whether they still do
    /// shows in each of them.
    pub(crate) async fn renew_now(&self, leases: &[Arc<Lease>]) -> Result<(), BackendError> {
        let requests: Vec<_> = leases.iter().map(|lease| lease.request.clone()).collect();
        let answers = self.backend.renew(&requests).await;
        for (lease, answer) in leases.iter().zip(answers) {
            let answer = answer.inspect_err(|error| lease.store_failed("renew", error))?;
            // The keeper looks at it too early, which does no harm.
            lease.renewed(&answer);
        }
        Ok(())
    }
}

/// How the store is asked.
#[derive(Clone, Copy)]
struct Asking<'a> {
    leases: &'a Arc<Leases>,
    try_only: bool,
    labels: Labels,
}

/// What came of asking the store.
enum Taken {
    Had(LeaseGuard),
    /// Somebody holds the lock.
    Busy,
    /// It was had, and its lease over when the answer was seen: by so much, or
    /// since the store had ended it.
    TooLate(LeaseGuard, Option<Duration>),
}

impl Asking<'_> {
    /// Asks a single time.
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
        // From here on, dropping it gives it back.
        let guard = LeaseGuard::new(lease, Arc::clone(leases));
        let now = clock.now();
        let late_by = now.checked_duration_since(guard.lease().deadline());
        if late_by.is_none() {
            guard.is_taken(now);
            // In this order: a loss that is told from now on finds the lease.
            if !leases.backend.has_ended(owner) {
                return Ok(Taken::Had(guard));
            }
        }
        guard.is_too_late(now);
        Ok(Taken::TooLate(guard, late_by))
    }

    /// Asks once more if nobody was there to hear the answer: as nothing was heard
    /// for longer than the store is waited for, the caller's runtime has stood
    /// still. What the first may have got is given back before. Who does not wait
    /// is told within one more request timeout.
    async fn unheard(self, request: Request, error: BackendError) -> Result<Taken, BackendError> {
        let leases = self.leases;
        let Some(timeout) = leases.backend.request_timeout() else {
            return Err(error);
        };
        let since = |instant| leases.now().saturating_duration_since(instant);
        let progress = request.progress();
        let unheard = progress.asked().map(since);
        let stood_still = unheard.is_some_and(|unheard| unheard > timeout + timeout / LATE);
        if error.kind() != BackendErrorKind::Unavailable || progress.has_heard() || !stood_still {
            return Err(error);
        }
        let again = async {
            leases.what_was_left_is_back().await;
            let begun = leases.now();
            loop {
                let taken = self.once(&request.again()?).await?;
                // What the first has got may be on its way back still: a store of
                // several nodes does not wait for those that look silent.
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

    /// Gives back a grant that came too late, and asks again. Whether the store is
    /// slower than the ttl or this process stood still shows in the second: its
    /// [`Pulse`] is taken. An answer that would have come in time but for that is
    /// no reason to give up; each takes a ttl at least.
    async fn again(self, mut late: LeaseGuard) -> Answer {
        loop {
            let request = late.lease().request.again()?;
            // Here and now: what is asked next must not find the lock held by it.
            late.release(false).await?;
            let mut pulse = Pulse::new(&self.leases.executor, request.ttl);
            let (lease, by) = match pulse.of(self.once(&request)).await? {
                Taken::Had(lease) => return Ok(lease),
                Taken::Busy => return Err(NotHad::Busy),
                Taken::TooLate(lease, by) => (lease, by),
            };
            let stood_still = pulse.stood_still();
            if self.try_only || by.is_none_or(|by| by > stood_still) {
                return Err(too_late(lease.lease().ttl(), by, stood_still));
            }
            late = lease;
        }
    }
}

/// Says what to do about a lease that was over before it was had.
fn too_late(ttl: Duration, late_by: Option<Duration>, stood_still: Duration) -> NotHad {
    match late_by {
        None => NotHad::TooLate(BackendError::unavailable(
            "the store granted the lock, and ended its lease before the caller could take it; ask \
             again",
        )),
        // For as long a ttl, it would grant it too late to anybody.
        Some(by) if by > stood_still => NotHad::Store(BackendError::unavailable(format!(
            "the store took longer to grant the lock than its ttl of {ttl:?}; raise the ttl"
        ))),
        Some(_) => NotHad::TooLate(BackendError::unavailable(format!(
            "the store granted the lock, and the caller's runtime stood still for longer than the \
             ttl of {ttl:?} before it saw that; raise the ttl, or block the runtime for less time"
        ))),
    }
}
