//! What a test hands in so that it decides on time, chance and tasks.

use std::fmt;
use std::pin::Pin;
use std::time::Instant;

use tokio::runtime::Handle;

/// What a test has in the place of the manager's thread, of chance, and of the clock.
pub trait Simulated: fmt::Debug + Send + Sync {
    /// Where connections are kept.
    fn runtime(&self) -> &Handle;

    /// Runs a task of the manager's.
    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// See [`Time::draw`](crate::store::Time::draw).
    fn draw(&self) -> f64;

    /// Another number each time.
    fn count(&self) -> u64 {
        0
    }

    /// See [`Time::now`](crate::store::Time::now).
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// A timer, which anybody may poll.
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep_until(at.into()))
    }
}
