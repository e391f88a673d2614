//! Taking a lock: a key for each request, and the lowest create-revision holds.

use std::sync::Arc;

use tokio::time::Instant;

use super::core::{Caller, Core, Granted};
use super::leases::Tenancy;
use super::names::LockName;
use super::places::Name;
use super::settings::Recipe;
use super::standing::{Attempt, Standing, Turn};
use crate::backend::{BackendError, Request};

/// Takes the lock if it is free. Nothing is written if it is not.
pub(super) async fn try_acquire(
    core: Arc<Core>,
    request: Request,
) -> Result<Option<Granted>, BackendError> {
    let lock = core.members.settings.names.lock(&request.key);
    let mut patience = Patience::new(&core);
    loop {
        let tenancy = core.tenancy(&request, &patience).await?;
        let name = match core.members.settings.recipe {
            Recipe::Queue => place(&core, &lock, &request, &patience),
            Recipe::LockService => {
                let key = lock.of_lock_service(tenancy.lease().id());
                Name::given(key, request.owner.to_string())
            }
        };
        let mut standing = Standing::new(&core, tenancy, name);
        match standing.take(&lock, &request, &patience).await? {
            Attempt::Had => {}
            Attempt::Busy => {
                request.is_held_by_somebody();
                return Ok(None);
            }
            Attempt::Lost => {
                patience.next_round();
                continue;
            }
        }
        match standing.granted(&request, &patience).await? {
            Some(granted) => return Ok(Some(granted)),
            None => patience.next_round(),
        }
    }
}

/// Takes the lock, waiting for it. `None` if the caller has left.
pub(super) async fn acquire(
    core: Arc<Core>,
    request: Request,
    mut caller: Caller,
) -> Result<Option<Granted>, BackendError> {
    let lock = core.members.settings.names.lock(&request.key);
    let mut patience = Patience::new(&core);
    // Each round is a place in the queue.
    loop {
        if caller.has_left() {
            return Ok(None);
        }
        let tenancy = core.tenancy(&request, &patience).await?;
        let name = place(&core, &lock, &request, &patience);
        let mut standing = Standing::new(&core, tenancy, name);
        match standing
            .wait_for_turn(&lock, &request, &mut patience, &mut caller)
            .await?
        {
            Turn::Comes => {}
            Turn::Lost => {
                patience.next_round();
                continue;
            }
            Turn::Left => return Ok(None),
        }
        match standing.granted(&request, &patience).await? {
            Some(granted) => return Ok(Some(granted)),
            None => patience.next_round(),
        }
    }
}

/// A name for the request, which writes into it what nobody else does: not even
/// itself in another round.
fn place(core: &Core, lock: &LockName, request: &Request, patience: &Patience) -> Arc<Name> {
    let value = match patience.round() {
        0 => request.owner.to_string(),
        again => format!("{}.{again}", request.owner),
    };
    core.places.take(lock.places(request.mode), value)
}

/// How long a request waits for an answer.
pub(super) struct Patience {
    core: Arc<Core>,
    since: Instant,
    deadline: Instant,
    round: u32,
}

impl Patience {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let since = Instant::now();
        Self {
            since,
            deadline: since + core.members.settings.request_timeout,
            core: Arc::clone(core),
            round: 0,
        }
    }

    pub(super) fn round(&self) -> u32 {
        self.round
    }

    /// The place was lost: another one is asked for.
    pub(super) fn next_round(&mut self) {
        self.round += 1;
        self.renew();
    }

    /// After a time of waiting, the members are asked again. They have until
    /// their silence has lasted for the request timeout, counted from when they
    /// were last heard of; but long enough for another one to answer.
    pub(super) fn renew(&mut self) {
        let timeout = self.core.members.settings.request_timeout;
        self.since = self.core.members.last_heard();
        self.deadline = (self.since + timeout).max(Instant::now() + timeout / 4);
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Core {
    /// A lease for the request.
    async fn tenancy(
        &self,
        request: &Request,
        patience: &Patience,
    ) -> Result<Tenancy, BackendError> {
        let Patience {
            since, deadline, ..
        } = *patience;
        match self.members.settings.recipe {
            Recipe::Queue => self.leases.shared(request.ttl, since, deadline).await,
            Recipe::LockService => self.leases.private(request.ttl, since, deadline).await,
        }
    }
}
