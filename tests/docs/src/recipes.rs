//! A service with jobs, messages and tenants.

pub use std::future::Future;
pub use std::io;
pub use std::sync::atomic::AtomicUsize;
pub use std::sync::atomic::Ordering::Relaxed;

pub use crate::usual::*;

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
    async fn attempt(self) -> io::Result<()> {
        let before = self.begun.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if before < self.fails {
            return Err(io::Error::other("it fails"));
        }
        self.done.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Some work, whose error becomes that of the recipe.
async fn work<E: From<io::Error>>() -> Result<(), E> {
    match WORK.try_with(Work::clone) {
        Ok(work) => Ok(work.attempt().await?),
        Err(_) => Ok(()),
    }
}

macro_rules! work {
    ($($name:ident($of:ty))*) => {$(
        /// Some work.
        ///
        /// # Errors
        ///
        /// Only inside of [`Work::of`] it fails, as often as is said there.
        pub async fn $name<E: From<io::Error>>(_: $of) -> Result<(), E> {
            work().await
        }
    )*};
}

work! {
    write_invoices(&str)
    run_migrations(u32)
    write_export(&str)
    take_from_shelf(&str)
}

/// Sends what a message asks for.
///
/// # Errors
///
/// As the work above.
pub async fn ship<M, E: From<io::Error>>(_: &M) -> Result<(), E> {
    work().await
}

/// A job.
///
/// # Errors
///
/// It never fails.
pub async fn one_job() -> io::Result<()> {
    Ok(())
}

/// What the recipe needs of the crate of this name.
pub mod tonic {
    /// What a call came to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Code {
        /// It was stopped, and may be called again.
        Aborted,
        /// It was done before.
        AlreadyExists,
        /// Something is broken.
        Internal,
        /// Something does not answer.
        Unavailable,
    }

    /// The error of each handler.
    #[derive(Debug)]
    pub struct Status(Code);

    impl Status {
        /// One with this text.
        #[must_use]
        pub fn new(code: Code, _: impl Into<String>) -> Self {
            Self(code)
        }

        /// Why it failed.
        #[must_use]
        pub fn code(&self) -> Code {
            self.0
        }
    }
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
