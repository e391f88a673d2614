//! What a store has for each tokio runtime that calls it.
//!
//! The socket of a connection belongs to the runtime that opened it. Nobody reads the socket while
//! that runtime does not run, and the socket is gone when the runtime ends. A hop to a runtime of
//! dlock's own would cost a lone caller nearly half of its speed. So each runtime has connections
//! of its own, from its first request on.

use std::future::Future;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

use crate::backend::{BackendError, BackendErrorKind};
use crate::executor::spawn;

/// A value for each runtime. A service has one runtime, or a few, so a search through all is quick.
pub(super) struct PerRuntime<T>(RwLock<Vec<Entry<T>>>);

struct Entry<T> {
    runtime: Id,
    value: Arc<T>,
    keeper: Arc<OnceLock<Keeper>>,
}

/// The task that keeps a value, once it is known.
enum Keeper {
    Runs(AbortHandle),
    /// The value was taken out before its task was known.
    Unwanted,
}

impl<T> PerRuntime<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(RwLock::default()))
    }

    /// The value of the calling runtime, as with [`of`](Self::of). An error outside of a runtime.
    pub(super) fn here<F>(
        self: &Arc<Self>,
        make: impl FnOnce(&Handle) -> (Arc<T>, F),
    ) -> Result<Arc<T>, BackendError>
    where
        T: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| outside_runtime())?;
        let found = find(&self.entries(), runtime.id());
        Ok(found.unwrap_or_else(|| self.of(&runtime, make)))
    }

    /// The value of this runtime. If there is none, `make` makes it, and the future that keeps it
    /// for as long as the runtime lasts.
    pub(super) fn of<F>(
        self: &Arc<Self>,
        runtime: &Handle,
        make: impl FnOnce(&Handle) -> (Arc<T>, F),
    ) -> Arc<T>
    where
        T: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let id = runtime.id();
        let mut entries = self.entries_mut();
        if let Some(found) = find(&entries, id) {
            return found;
        }
        let (value, keep) = make(runtime);
        let keeper = Arc::new(OnceLock::new());
        entries.push(Entry {
            runtime: id,
            value: Arc::clone(&value),
            keeper: Arc::clone(&keeper),
        });
        drop(entries);
        let leaves = Leaves {
            entries: Arc::downgrade(self),
            runtime: id,
        };
        // The task belongs to the entry, and is ended when the entry is taken out. A runtime that
        // is shutting down drops the task at once, and with it the entry.
        let task = spawn(runtime, async move {
            let _leaves = leaves;
            keep.await;
        });
        if keeper.set(Keeper::Runs(task.abort_handle())).is_err() {
            task.abort();
        }
        value
    }

    /// Takes out all values. Nothing keeps them from now on.
    pub(super) fn close(&self) -> Vec<Arc<T>> {
        let entries = std::mem::take(&mut *self.entries_mut());
        let closed = entries.into_iter().map(|entry| {
            if let Keeper::Runs(task) = entry.keeper.get_or_init(|| Keeper::Unwanted) {
                task.abort();
            }
            entry.value
        });
        closed.collect()
    }

    fn entries(&self) -> RwLockReadGuard<'_, Vec<Entry<T>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_mut(&self) -> RwLockWriteGuard<'_, Vec<Entry<T>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the entry out when dropped. A runtime that ends drops its tasks, and this with them.
struct Leaves<T> {
    entries: Weak<PerRuntime<T>>,
    runtime: Id,
}

impl<T> Drop for Leaves<T> {
    fn drop(&mut self) {
        if let Some(entries) = self.entries.upgrade() {
            let mut entries = entries.entries_mut();
            entries.retain(|entry| entry.runtime != self.runtime);
        }
    }
}

fn find<T>(entries: &[Entry<T>], runtime: Id) -> Option<Arc<T>> {
    let entry = entries.iter().find(|entry| entry.runtime == runtime)?;
    Some(Arc::clone(&entry.value))
}

fn outside_runtime() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        "called outside a tokio runtime; call it from a task of one, for example under \
         `#[tokio::main]`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime")
    }

    #[test]
    fn a_runtime_that_ends_takes_its_own_along() {
        let all = PerRuntime::new();
        let here = || all.here(|_| (Arc::new(()), std::future::pending()));
        assert!(here().is_err(), "outside of a runtime");
        let kept = runtime();
        let first = kept.block_on(async { here() }).expect("a value");
        for _ in 0..3 {
            let ends = runtime();
            ends.block_on(async { here() }).expect("a value");
            assert_eq!(all.entries().len(), 2);
            drop(ends);
            assert_eq!(all.entries().len(), 1);
        }
        let again = kept.block_on(async { here() }).expect("a value");
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(all.close().len(), 1);
        assert!(all.entries().is_empty());
    }

    #[test]
    fn what_is_made_beside_the_close_is_kept_by_nothing() {
        let (all, runtime) = (PerRuntime::new(), runtime());
        let kept = Arc::new(());
        for _ in 0..2_000 {
            std::thread::scope(|scope| {
                scope.spawn(|| while all.close().is_empty() {});
                let keeps = Arc::clone(&kept);
                all.of(runtime.handle(), |_| {
                    let keep = async move {
                        let _keeps = keeps;
                        std::future::pending::<()>().await;
                    };
                    (Arc::new(()), keep)
                });
            });
        }
        let is_over = || Arc::strong_count(&kept) == 1;
        runtime.block_on(async {
            for _ in 0..100_000 {
                if is_over() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        });
        assert!(is_over());
    }
}
