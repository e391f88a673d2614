//! Where a manager's own work runs: renewal, wake-ups and late releases.
//!
//! A store elsewhere gets a thread with a small runtime of its own, so that an
//! overloaded or blocked executor of the caller does not lose its leases
//! (Kafka moved its heartbeats to a thread for this reason: KIP-62) and so that
//! a manager outlives the runtime that connected it. The `memory:` store has
//! no thread: it runs where it was connected, so that paused time drives it.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::error::LockError;

#[derive(Debug)]
pub(crate) enum Executor {
    Thread(Thread),
    Ambient(Handle),
}

/// The manager's own thread, which ends when this is dropped and the work that
/// it was given is done.
#[derive(Debug)]
pub(crate) struct Thread {
    handle: Handle,
    /// Each piece of work holds a clone, so that the thread outlives it.
    alive: mpsc::Sender<()>,
}

impl Executor {
    /// A thread of the manager's own.
    pub(crate) fn thread(store: &str) -> Result<Self, LockError> {
        let failed = |error: std::io::Error| LockError::Config {
            setting: "runtime".to_owned(),
            reason: format!("the thread that renews leases could not be started: {error}"),
            source: Some(std::sync::Arc::new(error)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (alive, mut idle) = mpsc::channel::<()>(1);
        std::thread::Builder::new()
            .name(format!("dlock-{store}"))
            .spawn(move || {
                runtime.block_on(async move { while idle.recv().await.is_some() {} });
                runtime.shutdown_timeout(Duration::from_secs(1));
            })
            .map_err(failed)?;
        Ok(Self::Thread(Thread { handle, alive }))
    }

    /// The runtime that this is called on.
    pub(crate) fn ambient() -> Result<Self, LockError> {
        Ok(Self::Ambient(current_runtime("connect")?))
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::Thread(_) => Clock::Real,
            Self::Ambient(_) => Clock::Tokio,
        }
    }

    /// Runs a future to its end on the manager's runtime, and waits for it.
    pub(crate) async fn run<F>(&self, work: F) -> Option<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match self {
            Self::Ambient(_) => Some(work.await),
            Self::Thread(thread) => {
                let (done, result) = oneshot::channel();
                thread.handle.spawn(async move {
                    let _ = done.send(work.await);
                });
                result.await.ok()
            }
        }
    }

    /// The runtime that renews the leases taken by the caller.
    pub(crate) fn keeper_runtime(&self) -> Handle {
        match self {
            Self::Thread(thread) => thread.handle.clone(),
            Self::Ambient(connected) => {
                Handle::try_current().unwrap_or_else(|_| connected.clone())
            }
        }
    }

    /// Hands over a release that its caller can no longer wait for. Works from
    /// a `Drop` and outside a runtime.
    pub(crate) fn spawn_release(&self, release: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Thread(thread) => {
                let alive = thread.alive.clone();
                thread.handle.spawn(async move {
                    release.await;
                    drop(alive);
                });
            }
            Self::Ambient(connected) => {
                let handle = Handle::try_current().unwrap_or_else(|_| connected.clone());
                let _entered = handle.enter();
                // Memory answers at once unless a test delays it: no task, and
                // no need for a runtime that is still running.
                let mut release = Box::pin(release);
                let mut context = Context::from_waker(Waker::noop());
                if let Poll::Pending = release.as_mut().poll(&mut context) {
                    drop(handle.spawn(release));
                }
            }
        }
    }
}

/// The runtime of the caller, or an error that says where to call from.
pub(crate) fn current_runtime(key: &str) -> Result<Handle, LockError> {
    Handle::try_current().map_err(|_| LockError::Unsupported {
        key: key.to_owned(),
        reason: "called outside a tokio runtime; call it from a task of one, for example \
                 under `#[tokio::main]`"
            .to_owned(),
    })
}

