//! A backend that has been started: what its operations share.
//!
//! Every operation runs in a task on the manager's runtime, where the client
//! lives. A caller who leaves does not stop the request that is on its way, and
//! so it is always known what became of it.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use etcd_client::{Client, GetOptions};

use super::errors;
use super::held::Held;
use super::leases::Leases;
use super::members::Members;
use super::places::Places;
use super::settings::Settings;
use super::watches::Watches;
use crate::backend::{BackendError, Grant, Owner};
use crate::in_flight::{Counted, InFlight};

/// A backend between its start and its stop.
pub(super) struct Core {
    pub(super) members: Arc<Members>,
    pub(super) leases: Arc<Leases>,
    pub(super) held: Arc<Held>,
    pub(super) places: Arc<Places>,
    pub(super) watches: Arc<Watches>,
    /// What callers who left have left behind.
    pub(super) returns: InFlight,
    runtime: Handle,
    stopping: CancellationToken,
    tasks: InFlight,
}

impl Core {
    /// Connects, checks that locks can be read, and starts the tasks, all on the
    /// current runtime.
    pub(super) async fn start(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let runtime = Handle::try_current().map_err(|_| errors::not_running())?;
        let members = Arc::new(Members::new(settings));
        let prefix = members.settings.names.prefix().to_owned();
        members
            .call(|mut client: Client| {
                let options = GetOptions::new().with_prefix().with_count_only();
                let prefix = prefix.clone();
                async move { client.get(prefix, Some(options)).await }
            })
            .await?;
        let (returns, tasks) = (InFlight::default(), InFlight::default());
        let held = Arc::new(Held::new(returns.clone()));
        let places = Places::new();
        let stopping = CancellationToken::new();
        let leases = Leases::new(
            Arc::clone(&members),
            Arc::clone(&held),
            Arc::clone(&places),
            stopping.clone(),
            tasks.clone(),
        );
        let (watches, orders) = Watches::new(Arc::clone(&members));
        let core = Arc::new(Self {
            members,
            leases,
            held,
            places,
            watches,
            returns,
            runtime,
            stopping,
            tasks,
        });
        core.until_stopped(Arc::clone(&core.watches).run(orders));
        core.until_stopped(Arc::clone(&core.watches).look_after());
        let held = Arc::clone(&core.held);
        core.until_stopped(async move { held.see_to_ends().await });
        Ok(core)
    }

    fn until_stopped(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (stopping, counted) = (self.stopping.clone(), self.tasks.count());
        self.runtime.spawn(async move {
            let _counted = counted;
            tokio::select! {
                biased;
                () = stopping.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Ends the tasks, and revokes the leases.
    pub(super) async fn stop(&self) {
        self.stopping.cancel();
        let limit = self.members.settings.request_timeout;
        let _ = timeout(limit, self.tasks.wait_idle()).await;
    }

    /// Does the work on the manager's runtime, to its end.
    pub(super) async fn run<T, F>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
        T: Send + 'static,
    {
        let (done, answer) = oneshot::channel();
        let (work, counted) = (work(Arc::clone(self)), self.tasks.count());
        self.runtime.spawn(async move {
            let _counted = counted;
            // Nobody may be there to hear it.
            let _ = done.send(work.await);
        });
        answer.await.unwrap_or_else(|_| Err(errors::not_running()))
    }

    /// The same for a request: the work learns when its caller has left, and a
    /// grant that nobody hears of goes back.
    pub(super) async fn ask<T, F>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>, Caller) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
        T: Claim + Send + 'static,
    {
        let left = Arc::new(OnceLock::new());
        let _leaving = Leaving {
            left: Arc::clone(&left),
            returns: self.returns.clone(),
        };
        let (done, answer) = oneshot::channel();
        let (here, caller) = oneshot::channel();
        let caller = Caller { here: caller };
        let (work, counted) = (work(Arc::clone(self), caller), self.tasks.count());
        self.runtime.spawn(async move {
            let _counted = counted;
            let _left = left;
            let _ = done.send(work.await);
        });
        let answer = answer.await.unwrap_or_else(|_| Err(errors::not_running()));
        drop::<oneshot::Sender<()>>(here);
        answer.map(T::claimed)
    }
}

/// Whoever made a request.
pub(super) struct Caller {
    /// Closed when the caller leaves.
    here: oneshot::Receiver<()>,
}

impl Caller {
    /// Resolves when the caller has left.
    pub(super) async fn left(&mut self) {
        let _ = (&mut self.here).await;
    }

    pub(super) fn has_left(&mut self) -> bool {
        !matches!(
            self.here.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        )
    }
}

/// What a caller leaves behind counts from the moment it leaves.
struct Leaving {
    left: Arc<OnceLock<Counted>>,
    returns: InFlight,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // Without a task any more, there is nobody to end the count but us.
        if Arc::strong_count(&self.left) > 1 {
            let _ = self.left.set(self.returns.count());
        }
    }
}

/// An answer that has to be taken back if nobody hears it.
pub(super) trait Claim {
    /// It has been heard.
    fn claimed(self) -> Self;
}

/// A lock that has been granted. Given back when dropped before it is claimed.
pub(super) struct Granted {
    grant: Grant,
    unclaimed: Option<(Arc<Held>, Owner)>,
}

impl Granted {
    pub(super) fn new(grant: Grant, held: &Arc<Held>, owner: Owner) -> Self {
        Self {
            grant,
            unclaimed: Some((Arc::clone(held), owner)),
        }
    }

    pub(super) fn grant(&self) -> Grant {
        self.grant
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some((held, owner)) = self.unclaimed.take() {
            held.give_back(owner);
        }
    }
}

impl Claim for Granted {
    fn claimed(mut self) -> Self {
        self.unclaimed = None;
        self
    }
}

impl Claim for Option<Granted> {
    fn claimed(self) -> Self {
        self.map(Granted::claimed)
    }
}
