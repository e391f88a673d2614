//! The one source of time, and of tasks on the manager's runtime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deadline::{Deadline, Elapsed, ManagerClock};

/// The clock and the tasks of an engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Time(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The machine's, whatever a test does to the caller's runtime.
    Machine(ManagerClock),
    /// Tokio's, which a test may pause.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "what the engine's tests run on")
    )]
    Tokio(Arc<dyn Spawn>),
}

/// Who runs the manager's own work.
pub(crate) trait Spawn: fmt::Debug + Send + Sync {
    /// That of the machine.
    #[cfg(feature = "redis")]
    fn clock(&self) -> ManagerClock;

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>);
}

impl Time {
    pub(crate) fn of_the_machine(clock: ManagerClock) -> Self {
        Self(Source::Machine(clock))
    }

    #[cfg(test)]
    pub(super) fn of_tokio(manager: Arc<dyn Spawn>) -> Self {
        Self(Source::Tokio(manager))
    }

    /// The time that leases count by.
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::Machine(_) => Instant::now(),
            Source::Tokio(_) => tokio::time::Instant::now().into_std(),
        }
    }

    /// So much later than now.
    pub fn after(&self, wait: Duration) -> Deadline {
        Deadline::from(self.now(), wait)
    }

    /// Whether that is past.
    pub fn has_passed(&self, deadline: Deadline) -> bool {
        deadline.at() <= self.now()
    }

    /// How much time is left.
    pub fn remaining(&self, deadline: Deadline) -> Duration {
        deadline.at().saturating_duration_since(self.now())
    }

    /// The machine's clock: a store that is elsewhere knows of no other.
    #[cfg(feature = "redis")]
    pub(crate) fn clock(&self) -> ManagerClock {
        match &self.0 {
            Source::Machine(clock) => clock.clone(),
            Source::Tokio(manager) => manager.clock(),
        }
    }

    /// A task of the manager's. Works from a `Drop`, and outside a runtime.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match &self.0 {
            Source::Machine(clock) => drop(clock.manager().spawn(work)),
            Source::Tokio(manager) => manager.spawn(Box::pin(work)),
        }
    }

    /// By the manager's timers, so that the caller's runtime needs none.
    pub async fn sleep(&self, until: Deadline) {
        match &self.0 {
            Source::Machine(clock) => clock.sleep(until).await,
            Source::Tokio(_) => tokio::time::sleep_until(until.at().into()).await,
        }
    }

    /// What comes of `future`, if that is before the deadline.
    ///
    /// # Errors
    ///
    /// The deadline has passed.
    pub async fn bound<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        match &self.0 {
            Source::Machine(clock) => clock.bound(deadline, future).await,
            Source::Tokio(_) => tokio::time::timeout_at(deadline.at().into(), future)
                .await
                .map_err(|_| Elapsed),
        }
    }
}
