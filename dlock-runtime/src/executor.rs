//! Where a manager's own work runs: renewal, wake-ups and late releases.
//!
//! For a store on another machine, it runs on a thread with a small runtime of its own. So an
//! overloaded or blocked executor of the caller does not lose its leases (Kafka moved its
//! heartbeats to a thread for this reason: KIP-62), and a manager outlives the runtime that
//! connected it. The `memory:` store has no thread: it runs where it was connected, so that paused
//! time drives it.

use std::cell::Cell;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::{Arc, Once, Weak};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, Id, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::apart::apart;
use crate::clock;
use crate::clock::{Clock, time_is_real};
use crate::error::LockError;

/// A caller that was polled late has at least this much time after `half_way`, or half of its limit
/// if that is less.
const LAST_LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Executor {
    Thread(Thread),
    Ambient(Ambient),
    /// The second executor of a simulated process, which can stand still alone.
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn crate::simulated::Simulated>),
}

/// The runtime on which a `memory:` manager was connected.
#[derive(Debug)]
pub(crate) struct Ambient {
    handle: Handle,
    /// Held by a task of that runtime for as long as the runtime lives.
    running: Weak<()>,
    task: AbortHandle,
}

/// The manager's own thread. It ends when this is dropped and the work that it was given is done.
#[derive(Debug)]
pub(crate) struct Thread {
    handle: Handle,
    /// Each piece of work holds a clone, so that the thread outlives it.
    alive: mpsc::Sender<()>,
}

/// A runtime for a thread that may not start. Then it is dropped where the manager is connected,
/// usually on another runtime, where its ordinary drop would panic.
struct InBackground(Option<Runtime>);

impl InBackground {
    fn into_inner(mut self) -> Option<Runtime> {
        self.0.take()
    }
}

impl Drop for InBackground {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Executor {
    /// Starts a thread for the manager.
    pub(crate) fn thread(store: &str) -> Result<Self, LockError> {
        #[cfg(feature = "simulation")]
        if let Some(process) = crate::simulation::running() {
            return Ok(Self::Simulated(process));
        }
        Self::on(thread::Builder::new().name(format!("dlock-{store}")))
    }

    fn on(thread: thread::Builder) -> Result<Self, LockError> {
        let failed = |error: std::io::Error| LockError::Config {
            setting: "runtime".to_owned(),
            reason: format!("the thread that renews leases could not be started: {error}"),
            cause: Some(crate::error::ErrorCause::in_message(error)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (alive, mut idle) = mpsc::channel::<()>(1);
        let runtime = InBackground(Some(runtime));
        let run = move || {
            let Some(runtime) = runtime.into_inner() else {
                return;
            };
            runtime.block_on(async move { while idle.recv().await.is_some() {} });
            runtime.shutdown_timeout(Duration::from_secs(1));
        };
        thread.spawn(run).map_err(failed)?;
        Ok(Self::Thread(Thread { handle, alive }))
    }

    /// Uses the current runtime.
    pub(crate) fn ambient() -> Result<Self, LockError> {
        let handle = current_runtime(|| "connecting".to_owned())?;
        let running = Arc::new(());
        let held = Arc::downgrade(&running);
        let task = spawn(&handle, async move {
            let _running = running;
            std::future::pending::<()>().await;
        });
        Ok(Self::Ambient(Ambient {
            handle,
            running: held,
            task: task.abort_handle(),
        }))
    }

    /// The runtime of the manager's own work.
    pub(crate) fn runtime(&self) -> &Handle {
        match self {
            Self::Thread(thread) => &thread.handle,
            Self::Ambient(ambient) => &ambient.handle,
            #[cfg(feature = "simulation")]
            Self::Simulated(process) => process.runtime(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::Thread(_) => Clock::Real,
            Self::Ambient(_) => Clock::Tokio,
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => Clock::Simulated,
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
            _ => {
                let (done, result) = oneshot::channel();
                self.spawn_on(self.runtime(), async move {
                    let _ = done.send(work.await);
                });
                result.await.ok()
            }
        }
    }

    /// The runtime that renews the leases taken by the caller. For `memory:` that is where it was
    /// connected, which a body that blocks another runtime does not affect. It is the caller's own
    /// if that one has ended, or if the caller's time is paused, since no other runtime follows
    /// paused time.
    pub(crate) fn keeper_runtime(&self) -> Handle {
        match self {
            Self::Thread(thread) => thread.handle.clone(),
            Self::Ambient(ambient) => match (ambient.if_running(), Handle::try_current()) {
                (Some(connected), _) if time_is_real(Instant::now()) => connected,
                (_, Ok(current)) => current,
                (_, Err(_)) => ambient.handle.clone(),
            },
            #[cfg(feature = "simulation")]
            Self::Simulated(process) => process.runtime().clone(),
        }
    }

    /// Spawns a task that the caller waits for. It must not depend on a runtime that the caller does
    /// not depend on.
    pub(crate) fn spawn_for_caller(&self, work: impl Future<Output = ()> + Send + 'static) {
        match (self, Handle::try_current()) {
            (Self::Ambient(_), Ok(current)) => self.spawn_on(&current, work),
            _ => self.spawn(work),
        }
    }

    /// Spawns a task on the runtime that keeps leases.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(&self.keeper_runtime(), work);
    }

    /// Spawns a task of the manager on this runtime.
    pub(crate) fn spawn_on(
        &self,
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let work = apart(work);
        match self {
            #[cfg(feature = "simulation")]
            Self::Simulated(process) => process.spawn(work),
            _ => drop(spawn_boxed(runtime, work)),
        }
    }

    /// Takes over a release that its caller can no longer wait for. Works in a `Drop` and outside a
    /// runtime.
    pub(crate) fn spawn_release(&self, release: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Thread(thread) => {
                let alive = thread.alive.clone();
                spawn(&thread.handle, async move {
                    release.await;
                    drop(alive);
                });
            }
            Self::Ambient(ambient) => {
                let handle = ambient.for_release();
                // A thread that is ending has no thread-locals any more, so it cannot enter a
                // runtime.
                let enters =
                    !matches!(Handle::try_current(), Err(e) if e.is_thread_local_destroyed());
                let _entered = handle.as_ref().filter(|_| enters).map(Handle::enter);
                // Memory answers at once unless a test delays it. Then neither a task nor a running
                // runtime is needed.
                let mut release = apart(release);
                let mut context = Context::from_waker(Waker::noop());
                let pending = release.as_mut().poll(&mut context).is_pending();
                if let (true, Some(handle)) = (pending, &handle) {
                    drop(spawn_boxed(handle, release));
                }
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(process) => process.spawn(apart(release)),
        }
    }

    /// Whether [`sleep`](Self::sleep) may be called here.
    pub(crate) fn has_timers(&self) -> bool {
        match self {
            Self::Thread(_) => true,
            _ => has_timers_here(),
        }
    }

    /// A timer that any task may poll. For a store on another machine it follows the machine's
    /// clock, even if a test has paused the time of the caller's runtime.
    pub(crate) fn sleep(&self, duration: Duration) -> clock::Sleep {
        let _entered = match self {
            // A timer belongs to the runtime in which it was created.
            Self::Thread(thread) => Some(thread.handle.enter()),
            _ => None,
        };
        clock::sleep(duration)
    }

    /// Ends `work` after `limit`. If nobody has polled this for that long, ends it soon after the
    /// next poll. `half_way` is called after half of the time. `why` is called at the end, while
    /// `work` is still as it was, with the time since `half_way`. If it returns `Continue`, there
    /// is one more round before the end.
    pub(crate) async fn timeout<F: Future, E>(
        &self,
        limit: Duration,
        work: F,
        half_way: impl Fn(),
        why: impl Fn(Duration) -> ControlFlow<E, E>,
    ) -> Result<F::Output, E> {
        let timer = self.sleep(limit / 2);
        tokio::pin!(work, timer);
        tokio::select! {
            biased;
            output = &mut work => return Ok(output),
            () = &mut timer => {}
        }
        // If no clock can represent the limit, half of it has not passed either.
        let (half_time, rest) = (timer.deadline(), limit - limit / 2);
        let mut end = half_time.checked_add(rest).unwrap_or(half_time);
        let mut is_last = false;
        loop {
            half_way();
            // If nobody has polled this for longer, an answer may lie there unread, and what
            // `half_way` has started may take a while.
            let now = self.clock().now();
            end = end.max(now + rest.min(LAST_LOOK));
            timer.as_mut().reset(end);
            tokio::select! {
                biased;
                output = &mut work => return Ok(output),
                () = &mut timer => {}
            }
            match why(rest.min(end - now)) {
                ControlFlow::Continue(_) if !is_last => is_last = true,
                ControlFlow::Continue(why) | ControlFlow::Break(why) => return Err(why),
            }
        }
    }
}

impl Ambient {
    /// The runtime that takes over a release: the current one, whose time may be paused, if it can
    /// wait; else the one where the store was connected.
    fn for_release(&self) -> Option<Handle> {
        // Tokio shows only by a panic that a runtime has no timers. If panics abort the program, it
        // is not asked: the release may need no timer.
        let has_timers = || cfg!(not(panic = "unwind")) || has_timers_here();
        match (Handle::try_current().ok(), self.if_running()) {
            (Some(current), Some(connected)) if current.id() != connected.id() && !has_timers() => {
                Some(connected)
            }
            (current, connected) => current.or(connected),
        }
    }

    fn if_running(&self) -> Option<Handle> {
        (self.running.strong_count() > 0).then(|| self.handle.clone())
    }
}

impl Drop for Ambient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Spawns a task on this runtime. Boxed, as tokio's part of a task is compiled again for each type
/// of future, and for each of tokio's two schedulers.
pub(crate) fn spawn(
    runtime: &Handle,
    work: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    spawn_boxed(runtime, apart(work))
}

pub(crate) fn spawn_boxed(runtime: &Handle, work: BoxFuture<'static, ()>) -> JoinHandle<()> {
    runtime.spawn(work)
}

/// Runs a future to its end on this runtime, and waits for it. `None`: the runtime has ended.
pub(crate) async fn run_on<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (done, result) = oneshot::channel();
    spawn(runtime, async move {
        let _ = done.send(work.await);
    });
    result.await.ok()
}

/// Spawns a task on the current runtime that ends with the set.
pub(crate) fn spawn_into(tasks: &mut JoinSet<()>, work: impl Future<Output = ()> + Send + 'static) {
    let work = apart(work);
    #[cfg(feature = "simulation")]
    if let Some(process) = crate::simulation::running() {
        return process.spawn(work);
    }
    tasks.spawn(work);
}

/// Refuses a caller outside a runtime, or in one without timers. Each thread remembers its last
/// runtime with timers, which is cheaper than reading the clock.
pub(crate) fn check_runtime(subject: impl FnOnce() -> String + Copy) -> Result<(), LockError> {
    thread_local! {
        static WITH_TIMERS: Cell<Option<Id>> = const { Cell::new(None) };
    }
    let here = current_runtime(subject)?.id();
    if WITH_TIMERS.get() == Some(here) {
        return Ok(());
    }
    if !has_timers() {
        return Err(LockError::Unsupported {
            subject: subject(),
            reason: "this tokio runtime has no timers; build it with `enable_time` or \
                     `enable_all`"
                .to_owned(),
        });
    }
    WITH_TIMERS.set(Some(here));
    Ok(())
}

/// Whether this is called on a runtime that has timers.
pub(crate) fn has_timers_here() -> bool {
    check_runtime(String::new).is_ok()
}

/// Whether the current runtime has timers. Tokio reveals this only by a panic.
///
/// That panic is not printed: the panic hook is wrapped once, at the first question, and passes on
/// every panic except the answer to this question. The program's own hook stays in place behind the
/// wrapper, and a hook that is set later replaces it. If panics abort the program, asking is
/// impossible, and tokio's message is the only one: it is printed.
fn has_timers() -> bool {
    thread_local! {
        static ASKING: Cell<bool> = const { Cell::new(false) };
    }
    static QUIET: Once = Once::new();
    if cfg!(panic = "unwind") && !std::thread::panicking() {
        QUIET.call_once(|| {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if !ASKING.get() {
                    hook(panic);
                }
            }));
        });
    }
    ASKING.set(true);
    let asked = std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO)));
    ASKING.set(false);
    asked.is_ok()
}

/// The runtime of the caller, or an error that says where to call from.
pub(crate) fn current_runtime(subject: impl FnOnce() -> String) -> Result<Handle, LockError> {
    Handle::try_current().map_err(|_| LockError::Unsupported {
        subject: subject(),
        reason: "called outside a tokio runtime; call it from a task of one, for example \
                 under `#[tokio::main]`"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As when the process may have no more threads. The runtime that was made for the thread must
    /// not be dropped as runtimes usually are: inside another one that is a panic.
    #[tokio::test]
    async fn a_thread_that_cannot_be_started_is_an_error() {
        // More than there is in any address space.
        let thread = thread::Builder::new().stack_size(isize::MAX.unsigned_abs() / 2);
        let error = Executor::on(thread).expect_err("there is no room for its stack");
        let text = error.to_string();
        assert!(
            text.contains("the thread that renews leases could not be started"),
            "{text}"
        );
    }
}
