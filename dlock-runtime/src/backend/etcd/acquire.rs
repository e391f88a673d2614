//! Taking a lock: a key for each request, and the lowest create-revision holds.

use std::sync::Arc;

use super::core::{Caller, Core, Granted};
use super::leases::Tenancy;
use super::names::LockName;
use super::patience::Patience;
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

impl Core {
    /// A lease for the request.
    async fn tenancy(
        &self,
        request: &Request,
        patience: &Patience,
    ) -> Result<Tenancy, BackendError> {
        let (since, deadline) = (patience.since(), patience.deadline());
        match self.members.settings.recipe {
            Recipe::Queue => self.leases.shared(request.ttl, since, deadline).await,
            Recipe::LockService => self.leases.private(request.ttl, since, deadline).await,
        }
    }
}
