//! One engine for all stores: it makes a [`Backend`] of a [`Store`].

mod acquire;
#[doc(hidden)]
pub mod bare;
pub(crate) mod call;
mod cleanup;
pub(crate) mod events;
mod lease;
mod lease_table;
mod on_manager;
mod recheck;
pub(crate) mod time;
mod unsettled;
pub(crate) mod waiters;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::events::{Events, Listener};
use self::lease_table::{LeaseTable, MostlyEmptyTable};
use self::time::Time;
use self::unsettled::Unsettled;
use crate::apart::apart;
use crate::backend::losses::Losses;
use crate::backend::{
    Backend, BackendError, BackendErrorKind, Capabilities, Finding, Grant, HolderInfo, Listed,
    LockInfo, Owner, Released, Renewed, Request, Servers, WaiterInfo,
};
use crate::deadline::Deadline;
use crate::in_flight::InFlight;
use crate::limits::{self, DEFAULT_REQUEST_TIMEOUT};
use crate::store::{Break, Context, Late, LeftBehind, Scope, Store, Whose};

/// A backend over a [`Store`](crate::store::Store): it waits, retries, gives back what callers
/// leave behind, and tells an outage from a lock that is held. The store provides only primitives.
/// The layer above decides when a lease is renewed.
///
/// For [`Config::with_backend`](crate::Config::with_backend). This interface is young: what a store
/// has to provide may change with any minor version.
///
/// A clone is another backend with the same settings, not yet started.
pub struct Engine<S: Store> {
    /// Read at the start.
    pub(crate) config: S::Config,
    request_timeout: Duration,
    label: OnceLock<Arc<str>>,
    running: OnceLock<Arc<Running<S>>>,
}

/// An engine between its start and its stop.
pub(crate) struct Running<S: Store> {
    pub(crate) store: S,
    name: &'static str,
    pub(crate) time: Time,
    pub(crate) request_timeout: Duration,
    pub(crate) events: Events,
    table: LeaseTable<S::Record>,
    /// Holders that have an earlier command which may still be run: when it was sent, and how late
    /// it may be run.
    unknown: MostlyEmptyTable<(Instant, Late)>,
    losses: Losses,
    /// Notified when a lease or session has ended.
    scope_end: Notify,
    /// Counts what the store must still be told.
    unsettled: Unsettled,
    tasks: InFlight,
    /// Cancelled to make the tasks finish what they have begun and end.
    stopping: CancellationToken,
    stopped: CancellationToken,
}

impl<S: Store> Engine<S> {
    /// A backend for the store with these settings. It opens nothing before its start, which
    /// [`LockManager::connect`](crate::LockManager::connect) does.
    pub fn new(config: S::Config) -> Self {
        Self {
            config,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            label: OnceLock::new(),
            running: OnceLock::new(),
        }
    }

    /// How long an operation waits for the store in total, 5 seconds by default. An outage is
    /// reported after this time. From a millisecond to 24 hours; other values are refused at the
    /// start.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Formats the settings of a backend of this name.
    pub(crate) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("config", &self.config)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }

    pub(crate) fn running(&self) -> Result<&Arc<Running<S>>, BackendError> {
        let running = self.running.get();
        running
            .filter(|running| !running.stopping.is_cancelled())
            .ok_or_else(|| self.misused("is not running; use it between its start and its stop"))
    }

    fn misused(&self, how: &str) -> BackendError {
        let name = S::capabilities(&self.config).name;
        BackendError::new(
            BackendErrorKind::Unsupported,
            format!("the {name} backend {how}"),
        )
    }

    /// The time of the current runtime.
    fn time_here(&self) -> Result<Time, BackendError> {
        #[cfg(feature = "simulation")]
        if let Some(process) = crate::simulation::running() {
            return Ok(Time::simulated(process));
        }
        let manager = Handle::try_current();
        let outside = |_| self.misused("was started outside a tokio runtime");
        Ok(Time::of_the_machine(manager.map_err(outside)?))
    }

    async fn open(&self, time: Time) -> Result<(), BackendError> {
        if self.running.get().is_some() {
            return Err(self.misused("was started twice"));
        }
        let request_timeout = self.request_timeout;
        limits::REQUEST_TIMEOUT.check_in_backend(request_timeout)?;
        let config = S::complete(self.config.clone(), request_timeout).await?;
        let running = Running::open(config, time, request_timeout, self.label.get());
        running
            .check(request_timeout)
            .await
            .inspect_err(|_| running.close())?;
        running.events.set_listener(Arc::downgrade(&running));
        running.spawn(Arc::clone(&running).look_after_waiters());
        if !S::EXPIRES {
            running.spawn_until_stop(Arc::clone(&running).end_leases());
        }
        self.running
            .set(running)
            .map_err(|_| self.misused("was started twice"))
    }
}

/// A clone is another backend with the same settings, not yet started.
impl<S: Store> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self::new(self.config.clone()).request_timeout(self.request_timeout)
    }
}

impl<S: Store> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe("Engine", f)
    }
}

/// Ends the engine's tasks.
impl<S: Store> Drop for Engine<S> {
    fn drop(&mut self) {
        if let Some(running) = self.running.get() {
            running.halt();
        }
    }
}

impl<S: Store> Running<S> {
    /// Opens the store. This asks it nothing yet, and nothing looks after leases or waiters.
    pub(crate) fn open(
        config: S::Config,
        time: Time,
        request_timeout: Duration,
        label: Option<&Arc<str>>,
    ) -> Arc<Self> {
        let name = S::capabilities(&config).name;
        let events = Events::new(time.clone(), S::DEAD_AFTER);
        let stopped = CancellationToken::new();
        let context = Context {
            time: time.clone(),
            events: events.clone(),
            request_timeout,
            label: label.cloned(),
            stopped: stopped.clone(),
        };
        Arc::new(Self {
            store: S::open(config, context),
            name,
            time,
            request_timeout,
            events,
            table: LeaseTable::new(),
            unknown: MostlyEmptyTable::default(),
            losses: Losses::default(),
            scope_end: Notify::new(),
            unsettled: Unsettled::default(),
            tasks: InFlight::default(),
            stopping: CancellationToken::new(),
            stopped,
        })
    }

    /// Cleans up what a caller that has left may have at the store.
    pub(crate) fn leave_behind(
        self: &Arc<Self>,
        request: &Request,
        notes: S::Notes,
        left: &LeftBehind,
    ) {
        let abandoned = self.store.abandon(request, notes, left);
        // A caller that still waits for a connection has sent nothing.
        if abandoned.flight.is_some()
            || abandoned.record.is_some()
            || left.unknown.is_some()
            || left.there
        {
            self.clean_up(request.clone(), abandoned, left);
        }
    }

    /// Runs a task until it ends or the engine has stopped.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(apart(work));
    }

    fn spawn_boxed(&self, work: BoxFuture<'static, ()>) {
        let (counted, stopped) = (self.tasks.count(), self.stopped.clone());
        self.time.spawn(async move {
            let _counted = counted;
            let _ = stopped.run_until_cancelled(work).await;
        });
    }

    /// Runs a task until it ends or the engine is told to stop.
    pub(crate) fn spawn_until_stop(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (stopping, work) = (self.stopping.clone(), apart(work));
        self.spawn(async move {
            let _ = stopping.run_until_cancelled(work).await;
        });
    }

    fn has_stopped(&self) -> BackendError {
        BackendError::unavailable(format!("the {} backend has stopped", self.name))
    }

    /// Waits until the store was told what requests have left of this lock until now. `None`:
    /// nothing.
    pub(crate) fn remains(&self, key: &str) -> Option<BoxFuture<'_, ()>> {
        match (self.unsettled.of(key), self.store.remains(key)) {
            (Some(here), Some(there)) => Some(Box::pin(async move {
                here.await;
                there.await;
            })),
            (here, there) => here.or(there),
        }
    }

    /// Waits until the store has been told what was left behind, and has settled itself.
    pub(crate) async fn settle(&self) {
        self.unsettled.wait_idle().await;
        self.store.settle().await;
    }

    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        let limit = self.time.after(self.request_timeout);
        let _ = self.time.bound(limit, self.tasks.wait_idle()).await;
        self.stopped.cancel();
        let held = self.table.clear();
        let limit = self.time.after(self.request_timeout);
        self.store.shut_down(held, limit).await;
        self.close();
    }

    pub(crate) async fn examine(&self, limit: Deadline) -> Vec<Finding> {
        let looking = self.store.examine(limit);
        self.time.bound(limit, looking).await.unwrap_or_default()
    }

    /// Ends the engine's tasks at once.
    pub(crate) fn halt(&self) {
        self.stopping.cancel();
        self.stopped.cancel();
    }

    pub(crate) fn close(&self) {
        self.halt();
        self.store.close();
    }
}

impl<S: Store> Listener for Weak<Running<S>> {
    fn ended(&self, scope: Scope) -> usize {
        let Some(running) = self.upgrade() else {
            return 0;
        };
        let ended = running
            .table
            .ended(|record| S::scope(record) == Some(scope));
        for &(owner, _) in &ended {
            // No late command of this owner can take effect any more.
            running.unknown.remove(owner);
        }
        let lost = ended.into_iter().filter(|&(_, held)| held);
        let lost: Vec<_> = lost.map(|(owner, _)| owner).collect();
        let number = lost.len();
        running.losses.tell(lost);
        running.scope_end.notify_waiters();
        number
    }

    fn granted(&self, key: &str, place: &str, holder: Option<Request>) {
        if let Some(running) = self.upgrade()
            && let Some(claim) = S::CLAIM.filter(|_| !running.stopping.is_cancelled())
        {
            let this = Arc::clone(&running);
            match holder {
                Some(holder) => running.spawn(this.answer(holder, claim)),
                None => running.spawn(this.disown(key.into(), place.to_owned(), claim)),
            }
        }
    }
}

/// A backend that an engine drives: the public type that carries its documentation and settings.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a `Backend`")]
pub(crate) trait Driven: fmt::Debug + Send + Sync + 'static {
    type Store: Store;

    fn engine(&self) -> &Engine<Self::Store>;
}

impl<S: Store> Driven for Engine<S> {
    type Store = S;

    fn engine(&self) -> &Self {
        self
    }
}

/// Asks on the caller's runtime or on the manager's.
macro_rules! here_or_on_manager {
    ($running:expr, $ask:ident($what:expr $(, $number:expr)?)) => {{
        let running = $running;
        if D::Store::ON_MANAGER {
            let (there, what) = (Arc::clone(running), $what.to_owned());
            let asked = async move { there.$ask(&what $(, $number)?).await };
            running.on_manager(asked).await?
        } else {
            running.$ask($what $(, $number)?).await
        }
    }};
}

#[async_trait]
impl<D: Driven> Backend for D {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = D::Store::capabilities(&self.engine().config);
        let running = self.engine().running.get();
        if let Some(tokens) = running.and_then(|running| running.store.tokens()) {
            capabilities.tokens = tokens;
        }
        if let Some(remembers) = running.and_then(|running| running.store.remembers()) {
            capabilities.once = remembers;
        }
        capabilities
    }

    fn request_timeout(&self) -> Option<Duration> {
        // With `ON_MANAGER`, the answers arrive on the manager's runtime, so a late answer does not
        // mean that the caller's runtime stood still.
        (!D::Store::ON_MANAGER).then(|| self.engine().request_timeout)
    }

    fn servers(&self) -> Option<Servers> {
        let running = self.engine().running.get();
        let located = running.and_then(|running| running.store.located());
        located.or_else(|| D::Store::servers(&self.engine().config))
    }

    fn call_yourself(&self, label: &str) {
        // Only the first label counts.
        let _ = self.engine().label.set(label.into());
    }

    async fn start(&self) -> Result<(), BackendError> {
        let engine = self.engine();
        engine.open(engine.time_here()?).await
    }

    async fn stop(&self) {
        let engine = self.engine();
        if let Ok(running) = engine.running() {
            running.stop().await;
        }
    }

    async fn settle(&self) {
        if let Ok(running) = self.engine().running() {
            running.settle().await;
        }
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        let running = self.engine().running()?;
        if !D::Store::ON_MANAGER {
            return running.try_acquire(request).await;
        }
        let (there, asked) = (Arc::clone(running), request.clone());
        let trying = async move { there.try_acquire(&asked).await };
        running.ask_on_manager(request, trying).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let running = self.engine().running()?;
        if !D::Store::ON_MANAGER {
            return running.acquire(request).await;
        }
        let (there, asked) = (Arc::clone(running), request.clone());
        let acquiring = async move { there.acquire(&asked).await };
        running.ask_on_manager(request, acquiring).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let renewed = async {
            Ok(here_or_on_manager!(
                self.engine().running()?,
                renew(requests)
            ))
        };
        let all = |error: BackendError| requests.iter().map(|_| Err(error.clone())).collect();
        let renewed: Vec<_> = renewed.await.unwrap_or_else(all);
        if let Ok(running) = self.engine().running() {
            running.forget_lost(requests, &renewed);
        }
        renewed
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        here_or_on_manager!(self.engine().running()?, release(request))
    }

    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        here_or_on_manager!(self.engine().running()?, forget(key))
    }

    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        let running = self.engine().running()?;
        let there = Arc::clone(running);
        let raised = running.on_manager(async move { there.raise_tokens(floor).await });
        raised.await?
    }

    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        let (key, whose) = (Arc::from(key), Whose::Holder(holder.clone()));
        let broken = &Break { key, whose };
        here_or_on_manager!(self.engine().running()?, break_off(broken))
    }

    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        let (key, whose) = (Arc::from(key), Whose::Waiter(waiter.clone()));
        let broken = &Break { key, whose };
        here_or_on_manager!(self.engine().running()?, break_off(broken))
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        here_or_on_manager!(self.engine().running()?, inspect(key))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        here_or_on_manager!(self.engine().running()?, list(prefix))
    }

    async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, BackendError> {
        here_or_on_manager!(self.engine().running()?, list_some(prefix, most))
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.engine().running() {
            Ok(running) => {
                let limit = running.time.after(running.request_timeout);
                running.examine(limit).await
            }
            Err(_) => Vec::new(),
        }
    }

    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        D::Store::is_owner(holder, owner)
    }

    async fn next_losses(&self) -> Vec<Owner> {
        match self.engine().running() {
            Ok(running) => running.losses.next().await,
            Err(_) => std::future::pending().await,
        }
    }

    fn has_ended(&self, owner: Owner) -> bool {
        let has_none = |running: &Arc<Running<D::Store>>| running.table.record(owner).is_none();
        D::Store::forgotten().is_none() && self.engine().running().is_ok_and(has_none)
    }
}

/// The context for a test of a part of a store.
#[cfg(test)]
pub(crate) fn context() -> Context {
    let time = Time::of_the_machine(Handle::current());
    let events = Events::new(time.clone(), Duration::from_secs(8));
    Context {
        time,
        events,
        request_timeout: DEFAULT_REQUEST_TIMEOUT,
        label: None,
        stopped: CancellationToken::new(),
    }
}

#[cfg(test)]
impl<S: Store> Running<S> {
    /// The store must be told something of this lock, until the answer is dropped.
    pub(crate) fn leave(&self, key: &str) -> impl Drop + use<S> {
        self.unsettled.count(&Arc::from(key))
    }
}

#[cfg(test)]
#[path = "../../tests/engine/mod.rs"]
mod tests;
