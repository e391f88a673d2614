//! A service with jobs, messages and tenants.

pub use std::future::Future;
pub use std::sync::atomic::AtomicUsize;
pub use std::sync::atomic::Ordering::Relaxed;

pub use crate::usual::*;

/// Why a job came to nothing.
#[derive(Debug)]
pub enum JobError {
    /// It did not have the lock.
    Lock(LockError),
    /// The work itself failed.
    Work,
}

impl From<LockError> for JobError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

/// From a queue.
#[derive(Debug)]
pub struct Message {
    /// The same whenever it is delivered.
    pub id: u64,
}

tokio::task_local! {
    static WORK: Work;
}

/// Work whose first attempts fail, shared by copies of a service.
#[derive(Clone, Debug)]
pub struct Work {
    begun: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
    fails: usize,
}

impl Work {
    /// Work that fails so many times.
    #[must_use]
    pub fn that_fails(fails: usize) -> Self {
        Self {
            begun: Arc::default(),
            done: Arc::default(),
            fails,
        }
    }

    /// What it is for these functions.
    pub async fn of<T>(self, copy: impl Future<Output = T>) -> T {
        WORK.scope(self, copy).await
    }

    /// How many attempts have begun.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.begun.load(Relaxed)
    }

    /// How many attempts have come to their end without a failure.
    #[must_use]
    pub fn done(&self) -> usize {
        self.done.load(Relaxed)
    }

    /// One attempt.
    async fn attempt(self) -> Result<(), JobError> {
        let before = self.begun.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if before < self.fails {
            return Err(JobError::Work);
        }
        self.done.fetch_add(1, Relaxed);
        Ok(())
    }
}

macro_rules! work {
    ($($name:ident($($of:ident: $what:ty)?))*) => {$(
        /// Some work.
        ///
        /// # Errors
        ///
        /// Only inside of [`Work::of`] it fails, as often as is said there.
        pub async fn $name($($of: $what)?) -> Result<(), JobError> {
            $(let _ = $of;)?
            match WORK.try_with(Work::clone) {
                Ok(work) => work.attempt().await,
                Err(_) => Ok(()),
            }
        }
    )*};
}

work! {
    write_invoices(night: &str)
    run_migrations(version: u32)
    ship(message: &Message)
    write_export(tenant: &str)
}

/// A job.
///
/// # Errors
///
/// It never fails.
pub async fn one_job() -> Result<(), JobError> {
    Ok(())
}

/// Removes what was uploaded.
pub async fn remove(_: &str) {}

/// The night that the schedule is at.
#[must_use]
pub fn tonight() -> String {
    "2026-11-23".to_owned()
}

/// A part of what a leader does.
pub async fn one_step(_: FencingToken) {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// What a leader does in the end.
pub async fn put_down_the_tools() {}

/// A page of a catalogue.
pub struct Page(Box<dyn FnOnce() + Send>);

impl Page {
    /// One that does this when it is added.
    pub fn new(added: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(added))
    }
}

/// Blocks its thread for a while.
pub fn add_to_index(page: Page) {
    (page.0)();
}
