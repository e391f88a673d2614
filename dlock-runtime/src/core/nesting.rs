//! The sections that the calling code is inside of: what it may re-enter.

use std::sync::Arc;

use super::inner::ManagerId;
use super::section::{HeldLock, Section, SectionRef};
use crate::backend::Mode;
use crate::error::LockError;
use crate::key::LockKey;

/// A list of sections, the innermost first. Its copies share what lies further
/// out, so that each body can carry its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nesting {
    innermost: Option<Arc<Node>>,
}

#[derive(Debug)]
struct Node {
    section: Arc<Section>,
    outer: Option<Arc<Node>>,
}

impl Drop for Node {
    /// Without recursion: nesting may be deep.
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(mut node) = outer.and_then(Arc::into_inner) {
            outer = node.outer.take();
        }
    }
}

impl Nesting {
    /// This list with another section inside of it.
    pub(crate) fn inside(mut self, section: Arc<Section>) -> Self {
        self.innermost = Some(Arc::new(Node {
            section,
            outer: self.innermost.take(),
        }));
        self
    }

    /// Enters a lock once more: `None` if the calling code is not inside of it,
    /// or no longer.
    pub(crate) fn reenter(
        &self,
        manager: ManagerId,
        name: &str,
        mode: Mode,
    ) -> Result<Option<(SectionRef, HeldLock)>, LockError> {
        let mut reads = false;
        for section in self.sections() {
            let Some(lock) = section.find(manager, name) else {
                continue;
            };
            if mode == Mode::Write && lock.mode == Mode::Read {
                reads |= lock.lease.is_held() && !section.is_over();
                continue;
            }
            if let Some(entered) = section.enter(lock) {
                return Ok(Some((entered, lock.clone())));
            }
        }
        if reads {
            return Err(LockError::WouldDeadlock {
                key: LockKey::from(name),
            });
        }
        Ok(None)
    }

    /// The locks that are held, those of the innermost section first.
    pub(crate) fn held(&self, manager: ManagerId) -> impl Iterator<Item = &HeldLock> {
        self.sections()
            .flat_map(move |section| section.held(manager))
    }

    /// All sections, also those that are over.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &Arc<Section>> {
        std::iter::successors(self.innermost.as_ref(), |node| node.outer.as_ref())
            .map(|node| &node.section)
    }
}
