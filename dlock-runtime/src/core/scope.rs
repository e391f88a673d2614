//! The scope: the locks and the manager that surround the calling code.
//!
//! The scope is a value in a task-local that is set around the body's future. So reentrancy follows
//! the chain of awaits and not a task or thread id: a function awaited inside the body finds the
//! body's locks. A sibling in `join!`, polled by the same task but not inside the body, does not.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use once_cell::sync::OnceCell;

use super::inner::{Inner, ManagerId};
use super::section::{HeldLock, Section, SectionRef};
use crate::backend::Mode;
use crate::error::LockError;
use crate::key::LockKey;

tokio::task_local! {
    static SCOPE: Scope;
}

/// The manager of the whole process. Calls that name no manager use it.
pub(crate) static INSTALLED: OnceCell<Arc<Inner>> = OnceCell::new();

/// What surrounds the current code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Takes precedence over the global manager.
    manager: Option<Arc<Inner>>,
    /// A linked list of sections. Copies share the outer nodes, so that each body can carry its own
    /// list.
    innermost: Option<Arc<Node>>,
}

#[derive(Debug)]
struct Node {
    section: Arc<Section>,
    outer: Option<Arc<Node>>,
}

impl Drop for Node {
    /// Iterative, since nesting may be too deep for recursion.
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(mut node) = outer.and_then(Arc::into_inner) {
            outer = node.outer.take();
        }
    }
}

impl Scope {
    /// The scope of the code that calls this.
    pub(crate) fn current() -> Self {
        SCOPE.try_with(Clone::clone).unwrap_or_default()
    }

    /// This scope with another manager.
    pub(crate) fn of_manager(mut self, manager: &Arc<Inner>) -> Self {
        self.manager = Some(Arc::clone(manager));
        self
    }

    /// This scope with one more section, as the innermost.
    pub(crate) fn inside(mut self, section: Arc<Section>) -> Self {
        self.innermost = Some(Arc::new(Node {
            section,
            outer: self.innermost.take(),
        }));
        self
    }

    /// Polls a future within this scope.
    pub(crate) fn enter<R>(self, poll: impl FnOnce() -> R) -> R {
        SCOPE.sync_scope(self, poll)
    }

    /// Drops a future within this scope. Works in a `Drop`: if the thread ends, and what it keeps
    /// for itself is gone already, the future is dropped outside of any scope.
    pub(crate) fn enter_to_drop(self, drop_it: impl FnOnce()) {
        // Only tokio can tell whether the scope can be entered, and it does not panic for a future.
        drop(SCOPE.scope(self, AtDrop(Some(drop_it))));
    }

    /// The manager of a call inside this scope: the one that the call names, else the one that
    /// surrounds the call.
    pub(crate) fn manager(
        &self,
        named: Option<Arc<Inner>>,
        key: &LockKey,
    ) -> Result<Arc<Inner>, LockError> {
        let surrounding = || self.manager.as_ref().or_else(|| INSTALLED.get()).cloned();
        named
            .or_else(surrounding)
            .ok_or_else(|| LockError::NotInitialized { key: key.clone() })
    }

    /// Enters a lock once more. `None` if the calling code is not inside the lock, or not any more.
    pub(crate) fn reenter(
        &self,
        manager: ManagerId,
        name: &str,
        mode: Mode,
    ) -> Result<Option<(SectionRef, HeldLock)>, LockError> {
        let mut held = None;
        for section in self.sections() {
            let Some(lock) = section.find(manager, name) else {
                continue;
            };
            if would_wait_for(mode, lock.mode) {
                if lock.lease.is_held() && !section.is_over() {
                    held = Some(lock.mode);
                }
                continue;
            }
            if let Some(entered) = section.enter(lock) {
                return Ok(Some((entered, lock.clone())));
            }
        }
        match held {
            None => Ok(None),
            Some(held) => Err(LockError::WouldDeadlock {
                key: LockKey::from(name),
                held,
                wanted: mode,
            }),
        }
    }

    /// The held locks, those of the innermost section first.
    pub(crate) fn held(&self, manager: ManagerId) -> impl Iterator<Item = &HeldLock> {
        self.sections()
            .flat_map(move |section| section.held(manager))
    }

    /// All sections, the innermost first, including those that are over.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &Arc<Section>> {
        std::iter::successors(self.innermost.as_ref(), |node| node.outer.as_ref())
            .map(|node| &node.section)
    }
}

/// A future that is not polled, and does something when it is dropped.
struct AtDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Future for AtDrop<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl<F: FnOnce()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        if let Some(drop_it) = self.0.take() {
            drop_it();
        }
    }
}

/// Whether a task that holds a lock in mode `held` would wait for itself if it waited for mode
/// `wanted`. A reader has no limit on other holders, but counts as a holder against the limit of a
/// request for permits.
fn would_wait_for(wanted: Mode, held: Mode) -> bool {
    match (wanted, held) {
        (_, Mode::Write) | (Mode::Read, _) => false,
        (Mode::Write, _) => true,
        (Mode::Permits(_), held) => held == Mode::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::Memory;
    use crate::{Config, LockManager};

    /// The drop of this one would end the process if it needed stack for each.
    #[tokio::test(start_paused = true)]
    async fn a_million_sections_inside_each_other_are_dropped() {
        let manager = LockManager::connect(Config::with_backend(Memory::new())).await;
        let body = async { Scope::current() };
        let scope = manager.expect("memory").lock("k").run(body).await;
        let scope = scope.expect("free");
        let section = Arc::clone(scope.sections().next().expect("inside"));
        let deep = (0..1_000_000).fold(scope, |scope, _| scope.inside(Arc::clone(&section)));
        drop(deep);
        assert_eq!(Arc::strong_count(&section), 1);
    }
}
