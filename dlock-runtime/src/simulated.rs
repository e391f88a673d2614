//! The interface through which a test decides on time, chance and tasks.

use std::fmt;
use std::pin::Pin;
use std::time::Instant;

use tokio::runtime::Handle;

/// A test's replacement for the manager's thread, random numbers and the clock.
pub trait Simulated: fmt::Debug + Send + Sync {
    /// The runtime where connections are kept.
    fn runtime(&self) -> &Handle;

    /// Runs a task of the manager.
    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// See [`Time::draw`](crate::store::Time::draw).
    fn draw(&self) -> f64;

    /// A different number each time.
    fn count(&self) -> u64 {
        0
    }

    /// See [`Time::now`](crate::store::Time::now).
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// A timer that any task may poll.
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep_until(at.into()))
    }
}
