//! Taking leases from the store and giving them back, whatever becomes of the
//! caller.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Keeper, Lease, Renewals};
use crate::backend::{Backend, BackendError, Grant, Owner, Released, Request};
use crate::executor::Executor;

/// The first pause before a failed release is tried again; doubled up to
/// [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// All leases of one manager.
#[derive(Debug)]
pub(crate) struct Leases {
    backend: Arc<dyn Backend>,
    executor: Executor,
    /// One keeper; for the `memory:` store, one for each runtime that takes
    /// leases, since there every runtime has a clock of its own.
    keepers: Mutex<HashMap<runtime::Id, Arc<Keeper>>>,
    /// The keeper of a store elsewhere, without the detour through the map.
    own_keeper: once_cell::sync::OnceCell<Arc<Keeper>>,
    returns: Returns,
    shutdown: CancellationToken,
}

/// Counts the leases that are on their way back.
#[derive(Debug, Default)]
struct Returns {
    under_way: AtomicUsize,
    none_left: Notify,
}

impl Leases {
    pub(crate) fn new(backend: Arc<dyn Backend>, executor: Executor) -> Self {
        Self {
            backend,
            executor,
            keepers: Mutex::default(),
            own_keeper: once_cell::sync::OnceCell::new(),
            returns: Returns::default(),
            shutdown: CancellationToken::new(),
        }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) fn now(&self) -> Instant {
        self.executor.clock().now()
    }

    /// Takes a lease if the key is free.
    pub(crate) async fn try_acquire(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<Option<OwnedLease>, BackendError> {
        match self.backend.try_acquire(&request).await? {
            Some(grant) => self.own(request, grant).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a lease, waiting in the store's queue.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<OwnedLease, BackendError> {
        let grant = self.backend.acquire(&request).await?;
        self.own(request, grant)
    }

    fn own(self: &Arc<Self>, request: Request, grant: Grant) -> Result<OwnedLease, BackendError> {
        let lease = Arc::new(Lease::new(request, grant, self.keeper()));
        // From here on, dropping it gives it back.
        let owned = OwnedLease { lease: Some(lease), leases: Arc::clone(self) };
        if owned.lease().is_held() {
            owned.keep();
            return Ok(owned);
        }
        Err(BackendError::unavailable(format!(
            "the store took longer to grant the lock than its ttl of {:?}; raise the ttl",
            owned.lease().request.ttl
        )))
    }

    /// The keeper for leases taken by the caller, at work.
    fn keeper(self: &Arc<Self>) -> Arc<Keeper> {
        if let Some(keeper) = self.own_keeper.get() {
            return Arc::clone(keeper);
        }
        let runtime = self.executor.keeper_runtime();
        let mut keepers = self.keepers();
        if let Some(keeper) = keepers.get(&runtime.id()) {
            return Arc::clone(keeper);
        }
        let keeper = Arc::new(Keeper::new(self.executor.clock()));
        keepers.insert(runtime.id(), Arc::clone(&keeper));
        drop(keepers);
        if matches!(self.executor, Executor::Thread(_)) {
            // Whoever came first has it; a second one has no leases.
            let _ = self.own_keeper.set(Arc::clone(&keeper));
        }
        let leaving = ForgetKeeper { leases: Arc::downgrade(self), runtime: runtime.id() };
        let work = Arc::clone(&keeper).work(Arc::clone(&self.backend), Arc::downgrade(self));
        runtime.spawn(async move {
            let _leaving = leaving;
            work.await;
        });
        keeper
    }

    /// Ends the leases that the store says are gone.
    pub(super) fn taken_away(&self, owners: &HashSet<Owner>) {
        let keepers: Vec<_> = self.keepers().values().cloned().collect();
        for keeper in keepers {
            keeper.taken_away(owners);
        }
    }

    /// Waits until every lease on its way back has arrived or run out.
    /// Leases held back by `min_hold` are left to the store to expire.
    pub(crate) async fn shutdown(&self) {
        self.shutdown.cancel();
        loop {
            let none_left = self.returns.none_left.notified();
            tokio::pin!(none_left);
            none_left.as_mut().enable();
            if self.returns.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            none_left.await;
        }
    }

    fn keepers(&self) -> MutexGuard<'_, HashMap<runtime::Id, Arc<Keeper>>> {
        // No code of ours panics while it holds this.
        self.keepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        for keeper in self.keepers().values() {
            keeper.close();
        }
        let backend = Arc::clone(&self.backend);
        self.executor.spawn_release(async move { backend.stop().await });
    }
}

/// Forgets a keeper whose runtime has ended, so that the next runtime to have
/// its number, or the next call on a new one, gets a living one.
struct ForgetKeeper {
    leases: std::sync::Weak<Leases>,
    runtime: runtime::Id,
}

impl Drop for ForgetKeeper {
    fn drop(&mut self) {
        if let Some(leases) = self.leases.upgrade() {
            leases.keepers().remove(&self.runtime);
        }
    }
}

/// A lease that somebody is responsible for: given back when dropped.
#[derive(Debug)]
pub(crate) struct OwnedLease {
    /// Present until it is given back.
    lease: Option<Arc<Lease>>,
    leases: Arc<Leases>,
}

impl OwnedLease {
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        // Only `release`, `release_later` and `drop` take it out, and they end `self`.
        self.lease.as_ref().unwrap_or_else(|| unreachable!("a lease is given back once"))
    }

    pub(crate) fn now(&self) -> Instant {
        self.leases.now()
    }

    fn keep(&self) {
        let lease = self.lease();
        lease.keeper.reschedule(lease);
    }

    /// Gives the lease back, here and now. If the store does not answer, or
    /// the caller is dropped, the manager goes on trying by itself until the
    /// lease has run out. `follower` is dropped once the store has been asked:
    /// what comes after the release in this process.
    pub(crate) async fn release<T: Send + 'static>(
        mut self,
        follower: T,
    ) -> Result<Released, BackendError> {
        let Some(lease) = self.lease.take() else {
            unreachable!("a lease is given back once")
        };
        let mut going = Return::begin(&self.leases, lease, Some(follower));
        going.attempt().await
    }

    /// Gives the lease back in the background.
    pub(crate) fn release_later<T: Send + 'static>(mut self, follower: T) {
        if let Some(lease) = self.lease.take() {
            drop(Return::begin(&self.leases, lease, Some(follower)));
        }
    }

    /// Does `then` with the lease at `instant`, renewing it until then; at a
    /// shutdown before that, leaves it to the store to expire at `instant`.
    pub(crate) fn hold_until<T: Send + 'static>(
        self,
        instant: Instant,
        follower: T,
        then: impl FnOnce(Self, T) + Send + 'static,
    ) {
        self.lease().set_renewals(Renewals::Always);
        let leases = Arc::clone(&self.leases);
        let counted = CountedReturn::new(&leases);
        leases.executor.spawn_release(async move {
            let shutdown = self.leases.shutdown.clone();
            tokio::select! {
                () = tokio::time::sleep_until(instant) => then(self, follower),
                () = shutdown.cancelled() => self.leave_until(instant).await,
            }
            drop(counted);
        });
    }

    /// Sets the store's own expiry to `instant` and stops renewing.
    async fn leave_until(mut self, instant: Instant) {
        let Some(lease) = self.lease.take() else { return };
        lease.stop_renewal().await;
        let left = instant.saturating_duration_since(self.leases.now());
        let mut request = lease.request.clone();
        request.ttl = left.max(Duration::from_millis(1));
        for answer in self.leases.backend.renew(&[request]).await {
            if let Err(error) = answer {
                tracing::warn!(
                    target: "dlock::lease", key = %lease.request.key, %error,
                    "could not set the end of min_hold at shutdown; the lock stays for its ttl"
                );
            }
        }
    }
}

impl Drop for OwnedLease {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            drop(Return::<()>::begin(&self.leases, lease, None));
        }
    }
}

/// A lease on its way back. Dropped before it has arrived, it goes on in a
/// task of the manager's own.
struct Return<T: Send + 'static> {
    lease: Option<Arc<Lease>>,
    follower: Option<T>,
    background: bool,
    counted: CountedReturn,
}

impl<T: Send + 'static> Return<T> {
    fn begin(leases: &Arc<Leases>, lease: Arc<Lease>, follower: Option<T>) -> Self {
        Self {
            lease: Some(lease),
            follower,
            background: false,
            counted: CountedReturn::new(leases),
        }
    }

    async fn attempt(&mut self) -> Result<Released, BackendError> {
        let Some(lease) = &self.lease else { return Ok(Released::NotHeld) };
        lease.stop_renewal().await;
        let result = self.counted.leases.backend.release(&lease.request).await;
        if result.is_ok() {
            self.lease = None;
        }
        self.follower = None;
        result
    }

    /// Tries until the store has answered, or has let the lease expire.
    async fn finish(mut self) {
        let Some(lease) = self.lease.clone() else { return };
        let end = self.counted.leases.now() + lease.request.ttl;
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.attempt().await {
            if self.counted.leases.now() + pause >= end {
                tracing::warn!(
                    target: "dlock::lease",
                    key = %lease.request.key, owner = %lease.request.owner, %error,
                    "release failed; the lock stays until its ttl has passed"
                );
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        self.lease = None;
    }
}

impl<T: Send + 'static> Drop for Return<T> {
    fn drop(&mut self) {
        // In the background there is nobody left to go on: the runtime has
        // ended, and the lock with its ttl.
        if self.background {
            return;
        }
        if let Some(lease) = self.lease.take() {
            let leases = Arc::clone(&self.counted.leases);
            let mut again = Return::begin(&leases, lease, self.follower.take());
            again.background = true;
            leases.executor.spawn_release(again.finish());
        }
    }
}

/// A return that counts for [`Leases::shutdown`].
struct CountedReturn {
    leases: Arc<Leases>,
}

impl CountedReturn {
    fn new(leases: &Arc<Leases>) -> Self {
        leases.returns.under_way.fetch_add(1, Ordering::AcqRel);
        Self { leases: Arc::clone(leases) }
    }
}

impl Drop for CountedReturn {
    fn drop(&mut self) {
        if self.leases.returns.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leases.returns.none_left.notify_waiters();
        }
    }
}
