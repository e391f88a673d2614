//! How long a process stood still: it was stopped, or its machine had no time for it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::moment::Moment;

const STEP: Duration = Duration::from_millis(10);

/// By so much each sleep may be longer than it should be.
const SLACK: Duration = Duration::from_millis(5);

/// What a thread finds that does nothing but sleep.
#[derive(Debug)]
pub(crate) struct Still {
    /// In microseconds, until its last look.
    so_far: AtomicU64,
    looked: AtomicU64,
}

impl Still {
    /// That of this process.
    pub(crate) fn here() -> &'static Self {
        static HERE: LazyLock<Still> = LazyLock::new(|| {
            thread::spawn(|| Still::here().look());
            Still {
                so_far: AtomicU64::new(0),
                looked: AtomicU64::new(Moment::now().micros()),
            }
        });
        &HERE
    }

    fn look(&self) {
        loop {
            thread::sleep(STEP);
            let now = Moment::now();
            self.so_far.store(micros(self.at(now)), Ordering::Relaxed);
            self.looked.store(now.micros(), Ordering::Relaxed);
        }
    }

    /// How long it stood still until now, since its first look.
    pub(crate) fn so_far(&self) -> Duration {
        self.at(Moment::now())
    }

    /// The thread itself may not have come to see it yet.
    fn at(&self, now: Moment) -> Duration {
        let looked = Moment::from_micros(self.looked.load(Ordering::Relaxed));
        let late = now.since(looked).saturating_sub(STEP + SLACK);
        Duration::from_micros(self.so_far.load(Ordering::Relaxed)) + late
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
