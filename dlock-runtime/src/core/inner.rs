//! The inside of a manager: the store it is connected to, and what its locks go through. Many
//! handles share one. The store stays connected until the last handle, and the last lock held
//! through it, are gone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::requirements::ShortTtl;
use super::requirements::{check_fenced, check_ttl};
use crate::apart::apart;
use crate::backend::numbers::PermitNumbers;
use crate::backend::origin::{self, Origin};
use crate::backend::{Backend, BackendError, Capabilities, Owner};
use crate::clock::Clock;
use crate::error::LockError;
use crate::executor::Executor;
use crate::gate::Gate;
use crate::key::Shown;
use crate::lease::Leases;
use crate::lock_order::LockOrder;
use crate::observe::{self, Labels};
use crate::options::{Options, Patience};
use crate::reach::Reach;

/// Tells managers apart: a lock held through one is not re-entered through another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManagerId(u64);

/// Settings that apply to all locks of a manager.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) namespace: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) patience: Patience,
    pub(crate) handoff: u32,
    /// Requires strict tokens for all locks.
    pub(crate) fenced: bool,
    pub(crate) detect_lock_order: bool,
    /// All tokens must be greater than this. 0 sets no floor.
    pub(crate) token_floor: u64,
    /// How long the store may be silent, if it is set here rather than by the backend.
    pub(crate) request_timeout: Option<Duration>,
    /// How this process names itself in its locks. `None` means the name of the program.
    pub(crate) label: Option<Arc<str>>,
}

/// A connected store, and what is held in it.
pub(crate) struct Inner {
    pub(crate) id: ManagerId,
    pub(crate) settings: Settings,
    /// What the store could promise when the connection was made. Everything in it stays valid
    /// except the guarantee for tokens.
    pub(crate) at_start: Capabilities,
    pub(crate) leases: Arc<Leases>,
    pub(crate) gate: Gate,
    /// `None` if detection is off.
    pub(crate) lock_order: Option<LockOrder>,
    pub(crate) permits: Arc<PermitNumbers>,
    pub(crate) short_ttl: ShortTtl,
}

impl Inner {
    /// Connects to the store, and checks that it answers and can do what the
    /// settings ask.
    pub(crate) fn connect(
        backend: Arc<dyn Backend>,
        settings: Settings,
    ) -> BoxFuture<'static, Result<Self, LockError>> {
        apart(Self::connected(backend, settings))
    }

    async fn connected(backend: Arc<dyn Backend>, settings: Settings) -> Result<Self, LockError> {
        static IDS: AtomicU64 = AtomicU64::new(0);

        // `local` decides where to start the backend. Other capabilities may be known only once the
        // store has answered.
        let Capabilities { name, local, .. } = backend.capabilities();
        let connecting = |error| LockError::of_store("connecting".to_owned(), name, error);
        let label = settings.label.clone();
        let label = label.unwrap_or_else(|| origin::program().into());
        let origin = Origin::here(&label);
        Owner::draw(origin).map_err(connecting)?;
        observe::describe();
        let executor = match local {
            true => Executor::ambient()?,
            false => Executor::thread(name)?,
        };
        backend.call_yourself(&label);
        let reach = Reach::new(&backend, executor.runtime());
        let started = {
            let (backend, reach) = (Arc::clone(&backend), reach.clone());
            executor
                .run(async move { reach.while_starting(backend.start()).await })
                .await
        };
        finished(started).map_err(connecting)?;
        let at_start = backend.capabilities();
        let request_timeout = settings.request_timeout.or(backend.request_timeout());
        let short_ttl = ShortTtl::new(request_timeout.filter(|_| !local), settings.ttl);
        // From here on, dropping `leases` stops the backend.
        let leases = Arc::new(Leases::new(backend, executor, reach));
        check_ttl(settings.ttl, &at_start)?;
        short_ttl.look_at_default();
        if settings.fenced {
            check_fenced(&at_start, || "connecting".to_owned())?;
        }
        if settings.token_floor > 0 {
            let (backend, floor) = (Arc::clone(&leases.backend), settings.token_floor);
            let raising = async move { backend.raise_tokens(floor).await };
            finished(leases.executor.run(raising).await).map_err(connecting)?;
        }
        tracing::info!(
            target: "dlock",
            store = name,
            tokens = ?at_start.tokens,
            holder = %origin,
            "dlock is connected; its locks show who holds them as host, process and label"
        );
        let permits = PermitNumbers::new(Arc::clone(&settings.namespace));
        let permits = Arc::new(permits);
        Ok(Self {
            id: ManagerId(IDS.fetch_add(1, Ordering::Relaxed)),
            at_start,
            lock_order: settings.detect_lock_order.then(LockOrder::default),
            gate: Gate::new(&leases, settings.handoff, origin, &permits),
            permits,
            short_ttl,
            settings,
            leases,
        })
    }

    /// What the store can promise now. The guarantee for its tokens may change at run time, with
    /// the settings of its server.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.leases.backend.capabilities()
    }

    pub(crate) fn labels(&self, options: &Options) -> Labels {
        Labels::of_call(options.template, self.at_start.name, options.mode)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.leases.executor.clock()
    }

    pub(crate) fn now(&self) -> Instant {
        self.leases.now()
    }

    /// The error for callers after the store failed. If the store did not answer, this first checks
    /// whether its servers can be reached, to explain why. Boxed: a rare path must not enlarge
    /// every call's future.
    pub(crate) async fn store_failed(&self, subject: String, error: BackendError) -> LockError {
        let error = apart(self.leases.reach.explained(error)).await;
        self.store_error(subject, error)
    }

    /// The error for callers after the store failed, without that check.
    pub(crate) fn store_error(&self, subject: String, error: BackendError) -> LockError {
        LockError::of_store(subject, self.at_start.name, error)
    }
}

/// The result of work on the executor of the backend, or an error if that has ended before.
fn finished(done: Option<Result<(), BackendError>>) -> Result<(), BackendError> {
    done.unwrap_or_else(|| Err(BackendError::unavailable("its thread has ended")))
}

/// Users see it under the name of the handle type.
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.at_start.name)
            .field(
                "namespace",
                &format_args!("{}", Shown(&self.settings.namespace)),
            )
            .field("ttl", &self.settings.ttl)
            .finish_non_exhaustive()
    }
}
