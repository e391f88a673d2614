//! Asking the store for a lease, and again if it was over before anybody had it.

use std::sync::Arc;
use std::time::Duration;

use super::Lease;
use super::leases::Leases;
use super::pulse::Pulse;
use super::release::LeaseGuard;
use crate::backend::{BackendError, BackendErrorKind, Grant, Renewed, Request};
use crate::observe::{Operation, SectionSpan};

/// How late an answer that was waited for in vain shows that it was not waited for,
/// as a part of the request timeout.
const LATE: u32 = 20;

/// What became of a request to the store. `None`: somebody holds the lock.
pub(crate) type Answer = Result<Option<LeaseGuard>, NotHad>;

/// Why there is no lease, though nobody holds the lock as far as is known.
#[derive(Debug)]
pub(crate) enum NotHad {
    /// Others would be told the same: as a rule, it is what the store says.
    Store(BackendError),
    /// The store has granted the lock, and whoever asked came too late for it.
    /// Others may be in time.
    TooLate(BackendError),
}

impl NotHad {
    fn error(&self) -> &BackendError {
        match self {
            Self::Store(error) | Self::TooLate(error) => error,
        }
    }

    pub(crate) fn into_error(self) -> BackendError {
        match self {
            Self::Store(error) | Self::TooLate(error) => error,
        }
    }
}

impl From<BackendError> for NotHad {
    fn from(error: BackendError) -> Self {
        Self::Store(error)
    }
}

impl Leases {
    /// Asks for a lease, in the store's queue unless `try_only`, for whoever will
    /// be there when it answers. The answer goes to [`answered`](Self::answered)
    /// at once.
    pub(crate) async fn request(
        self: &Arc<Self>,
        request: Request,
        try_only: bool,
        section: &SectionSpan,
    ) -> Answer {
        let asking = if try_only {
            Asking::Once
        } else {
            Asking::InQueue
        };
        self.take(asking, request, section).await
    }

    /// Makes the answer to a request that of this critical section.
    pub(crate) fn answered(&self, answer: Answer, section: SectionSpan) -> Answer {
        match answer {
            Ok(lease) => Ok(lease.map(|lease| lease.of(section))),
            Err(not_had) => {
                let labels = section.labels();
                labels.store_error(Operation::Acquire, not_had.error().kind());
                Err(not_had)
            }
        }
    }

    /// Asks for a lease, and again if it was over before anybody here could take
    /// it.
    async fn take(
        self: &Arc<Self>,
        asking: Asking,
        request: Request,
        section: &SectionSpan,
    ) -> Answer {
        let taken = match self.grant(asking, &request).await {
            Ok(grant) => self.taken(request, grant, section),
            // Boxed, here and below: not every call has room for it.
            Err(error) => Box::pin(self.ask_unheard(asking, request, error, section)).await?,
        };
        match taken {
            Taken::Had(lease) => Ok(Some(lease)),
            Taken::Busy => Ok(None),
            Taken::TooLate(lease, _) => Box::pin(self.take_again(asking, lease, section)).await,
        }
    }

    /// Asks once more if nobody was there to hear the answer: as nothing was heard
    /// for longer than the store is waited for, the caller's runtime has stood
    /// still. What the first may have got is given back before. Who does not wait
    /// is told within one more request timeout.
    async fn ask_unheard(
        self: &Arc<Self>,
        asking: Asking,
        request: Request,
        error: BackendError,
        section: &SectionSpan,
    ) -> Result<Taken, BackendError> {
        let Some(timeout) = self.backend().request_timeout() else {
            return Err(error);
        };
        let progress = request.progress();
        let unheard = progress
            .asked()
            .map(|asked| self.now().saturating_duration_since(asked));
        let stood_still = unheard.is_some_and(|unheard| unheard > timeout + timeout / LATE);
        if error.kind() != BackendErrorKind::Unavailable || progress.has_heard() || !stood_still {
            return Err(error);
        }
        let again = async {
            self.what_was_left_is_back().await;
            let begun = self.now();
            loop {
                let taken = self.ask(asking, request.again()?, section).await?;
                // What the first has got may be on its way back still: a store of
                // several nodes does not wait for those that look silent.
                let is_early = self.now().saturating_duration_since(begun) < timeout / 4;
                if !matches!(taken, Taken::Busy) || !is_early {
                    return Ok(taken);
                }
                self.executor().sleep(timeout / 40).await;
            }
        };
        tokio::select! {
            taken = again => taken,
            () = self.executor().sleep(timeout), if asking == Asking::Once => Err(error),
        }
    }

    /// Waits until what dropped requests left in the store is given back: for half of
    /// a request timeout at most.
    pub(crate) async fn what_was_left_is_back(&self) {
        let timeout = self.backend().request_timeout().unwrap_or_default();
        tokio::select! {
            biased;
            () = self.backend().settle() => {}
            () = self.executor().sleep(timeout / 2) => {}
        }
    }

    /// Gives back a grant that came too late, and asks again. Whether the store is
    /// slower than the ttl or this process stood still shows in the second: its
    /// [`Pulse`] is taken. An answer that would have come in time but for that is
    /// no reason to give up; each takes a ttl at least.
    async fn take_again(
        self: &Arc<Self>,
        asking: Asking,
        mut late: LeaseGuard,
        section: &SectionSpan,
    ) -> Answer {
        loop {
            let request = late.lease().request.again()?;
            late.turn_down().await?;
            let mut pulse = Pulse::new(self.executor(), request.ttl);
            let (lease, by) = match pulse.of(self.ask(asking, request, section)).await? {
                Taken::Had(lease) => return Ok(Some(lease)),
                Taken::Busy => return Ok(None),
                Taken::TooLate(lease, by) => (lease, by),
            };
            let stood_still = pulse.stood_still();
            if asking == Asking::Once || by.is_none_or(|by| by > stood_still) {
                return Err(too_late(lease.lease().ttl(), by, stood_still));
            }
            late = lease;
        }
    }

    /// Asks the store a single time.
    async fn ask(
        self: &Arc<Self>,
        asking: Asking,
        request: Request,
        section: &SectionSpan,
    ) -> Result<Taken, BackendError> {
        let grant = self.grant(asking, &request).await?;
        Ok(self.taken(request, grant, section))
    }

    async fn grant(
        &self,
        asking: Asking,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        match asking {
            Asking::Once => self.backend().try_acquire(request).await,
            Asking::InQueue => self.backend().acquire(request).await.map(Some),
        }
    }

    fn taken(
        self: &Arc<Self>,
        request: Request,
        grant: Option<Grant>,
        section: &SectionSpan,
    ) -> Taken {
        match grant {
            Some(grant) => self.own(request, grant, section),
            None => Taken::Busy,
        }
    }

    fn own(self: &Arc<Self>, mut request: Request, grant: Grant, section: &SectionSpan) -> Taken {
        if let Some(ttl) = grant.ttl {
            request.ttl = request.ttl.min(ttl);
        }
        // Nobody's yet: see `LeaseGuard::of`.
        let section = section.without_span();
        let lease = Arc::new(Lease::new(request, grant, self.keeper(), section));
        // From here on, dropping it gives it back.
        let owned = LeaseGuard::new(lease, Arc::clone(self));
        let lease = owned.lease();
        let now = self.now();
        let late_by = lease.late_by(now);
        if late_by.is_none() {
            lease.keeper.reschedule_at(lease, now);
            // In this order: a loss that is told from now on finds the lease.
            if !self.backend().has_ended(lease.request.owner) {
                return Taken::Had(owned);
            }
        }
        lease.is_too_late();
        Taken::TooLate(owned, late_by)
    }

    /// Makes leases last their whole ttl from now on. Whether they still do
    /// shows in each of them.
    pub(crate) async fn renew_now(&self, leases: &[Arc<Lease>]) -> Result<(), BackendError> {
        let requests: Vec<_> = leases.iter().map(|lease| lease.request.clone()).collect();
        let answers = self.backend().renew(&requests).await;
        for (lease, answer) in leases.iter().zip(answers) {
            let answer: Renewed = answer.inspect_err(|error| {
                let labels = lease.section().labels();
                labels.store_error(Operation::Renew, error.kind());
            })?;
            lease.renewed(&answer);
            lease.keeper.reschedule(lease);
        }
        Ok(())
    }
}

/// How the store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Once,
    InQueue,
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
