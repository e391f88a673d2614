//! The only source of time, of chance, and of tasks on the manager's runtime.
//!
//! In a runtime whose time a test has paused, tokio's timers fire as soon as the runtime only waits
//! for the network. A store on another machine does not share that paused time, so deadlines in
//! such a runtime use the timers of the manager's runtime.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::apart::apart;
use crate::clock::time_is_real;
use crate::deadline::{Deadline, Elapsed};
use crate::executor::{has_timers_here, spawn, spawn_boxed};
use crate::simulated::Simulated;

/// The clock, the random numbers and the tasks of an engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Time(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The machine's, with the manager's runtime, whose time nobody pauses.
    Machine(Handle),
    /// The time of a simulation.
    Simulated(Arc<dyn Simulated>),
}

impl Time {
    /// The time of the machine, with `manager` as the manager's runtime.
    pub(crate) fn of_the_machine(manager: Handle) -> Self {
        Self(Source::Machine(manager))
    }

    /// The time of a simulation.
    #[doc(hidden)]
    pub fn simulated(by: Arc<dyn Simulated>) -> Self {
        Self(Source::Simulated(by))
    }

    /// The time that leases count by.
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::Machine(_) => Instant::now(),
            Source::Simulated(by) => by.now(),
        }
    }

    /// The instant `wait` later than now.
    pub fn after(&self, wait: Duration) -> Deadline {
        Deadline::from(self.now(), wait)
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self, deadline: Deadline) -> bool {
        deadline.at() <= self.now()
    }

    /// How much time is left.
    pub fn remaining(&self, deadline: Deadline) -> Duration {
        deadline.at().saturating_duration_since(self.now())
    }

    /// A random number from 0 up to, but not including, 1.
    pub fn draw(&self) -> f64 {
        match &self.0 {
            Source::Machine(_) => fastrand::f64(),
            Source::Simulated(by) => by.draw(),
        }
    }

    /// This pause, up to a quarter shorter or longer, so that callers that begin together do not
    /// continue together.
    pub fn jitter(&self, pause: Duration) -> Duration {
        pause.mul_f64(0.75 + self.draw() / 2.0)
    }

    /// The manager's runtime.
    pub(crate) fn manager(&self) -> &Handle {
        match &self.0 {
            Source::Machine(manager) => manager,
            Source::Simulated(by) => by.runtime(),
        }
    }

    /// Spawns a task of the manager. Works in a `Drop`, and outside a runtime.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(apart(work));
    }

    /// Spawns a task of the manager that ends early if `stopped` is cancelled.
    pub(crate) fn spawn_until(&self, stopped: CancellationToken, work: BoxFuture<'static, ()>) {
        self.spawn(async move {
            let _ = stopped.run_until_cancelled(work).await;
        });
    }

    /// Boxed, as tokio's part of a task is compiled again for each type of future.
    fn spawn_boxed(&self, work: BoxFuture<'static, ()>) {
        match &self.0 {
            Source::Machine(manager) => drop(spawn_boxed(manager, work)),
            Source::Simulated(by) => by.spawn(work),
        }
    }

    /// Sleeps by the manager's timers, so that the caller's runtime needs none.
    pub async fn sleep(&self, until: Deadline) {
        struct AbortOnDrop(JoinHandle<()>);
        impl Drop for AbortOnDrop {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        match &self.0 {
            Source::Machine(manager) => {
                let timer = async move { tokio::time::sleep_until(until.at().into()).await };
                let mut sleep = AbortOnDrop(spawn(manager, timer));
                // An error means that the manager's runtime has ended, and then there is nothing to
                // wait for.
                let _ = (&mut sleep.0).await;
            }
            Source::Simulated(by) => by.sleep_until(until.at()).await,
        }
    }

    /// Sleeps until `at`, by the manager's timers; for ever without a time.
    pub(crate) async fn sleep_until(&self, at: Option<Instant>) {
        match at {
            Some(at) => self.sleep(Deadline::from(at, Duration::ZERO)).await,
            None => std::future::pending().await,
        }
    }

    /// The output of `future`, if it is ready before the deadline.
    ///
    /// # Errors
    ///
    /// The deadline has passed.
    pub async fn bound<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        if self.is_of_this_runtime() {
            return tokio::time::timeout_at(deadline.at().into(), future)
                .await
                .map_err(|_| Elapsed);
        }
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = Box::pin(self.sleep(deadline)) => Err(Elapsed),
        }
    }

    /// Whether this is called on a runtime whose timers follow the same time.
    fn is_of_this_runtime(&self) -> bool {
        match &self.0 {
            Source::Machine(_) => has_timers_here() && time_is_real(Instant::now()),
            Source::Simulated(_) => false,
        }
    }
}

/// The pauses between attempts. They double up to a bound, and differ between callers, so that
/// callers that failed together do not return together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// With this first pause and this longest pause, before the random part.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            next: first,
            longest,
        }
    }

    /// Begins with the first pause again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// The next pause.
    pub fn pause(&mut self, time: &Time) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        time.jitter(pause)
    }

    /// Sleeps for the next pause.
    pub async fn wait(&mut self, time: &Time) {
        let pause = self.pause(time);
        time.sleep(time.after(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::runtime::Builder;

    use super::*;

    /// The holder of a lock may give it back from anywhere.
    #[test]
    fn a_deadline_is_kept_where_there_are_no_timers() {
        let mut builder = Builder::new_multi_thread();
        let manager = builder.worker_threads(1).enable_all().build();
        let manager = manager.expect("a runtime");
        let time = Time::of_the_machine(manager.handle().clone());
        let soon = time.after(Duration::from_millis(5));
        let without = Builder::new_current_thread().build().expect("a runtime");
        let ended = without.block_on(time.bound(soon, pending::<()>()));
        assert!(ended.is_err() && time.has_passed(soon));
        // Outside of any runtime.
        let answered = pin!(time.bound(soon, ready(())));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(matches!(answered.poll(context), Poll::Ready(Ok(()))));
    }

    /// The thread of the manager does not run, so it cannot say that the time has passed.
    #[tokio::test]
    async fn a_deadline_is_kept_while_the_manager_stands_still() {
        let manager = Builder::new_current_thread().enable_all().build();
        let manager = manager.expect("a runtime");
        let time = Time::of_the_machine(manager.handle().clone());
        let bound = time.bound(time.after(Duration::ZERO), pending::<()>());
        let ended = tokio::time::timeout(Duration::from_secs(10), bound).await;
        manager.shutdown_background();
        assert!(ended.expect("by its own timer").is_err());
    }

    /// Most timers are dropped long before their time.
    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_dropped_leaves_no_task() {
        let time = Time::of_the_machine(Handle::current());
        {
            let mut sleep = pin!(time.sleep(time.after(Duration::from_secs(3600))));
            let context = &mut Context::from_waker(Waker::noop());
            assert!(sleep.as_mut().poll(context).is_pending());
            assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
        }
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[tokio::test]
    async fn a_deadline_ends_a_future() {
        let time = Time::of_the_machine(Handle::current());
        let soon = time.after(Duration::from_millis(5));
        assert!(time.bound(soon, pending::<()>()).await.is_err());
        assert!(time.has_passed(soon));
        let answered = time.bound(soon, async {}).await;
        assert!(answered.is_ok(), "an answer that is there counts");
    }
}
