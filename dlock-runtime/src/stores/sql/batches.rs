//! Locks that are taken, or given back, in one transaction.
//!
//! What a transaction costs is that it is committed, and put to disk: for many locks
//! hardly more than for one. The rows of all are kept from others until it ends, which is
//! soon. Should somebody keep one of them, the others do not wait for long: they are
//! undone, as they are with one that the database refuses, and each is asked for again by
//! itself.

use std::time::Instant;

use tokio::sync::oneshot;

use super::database::{Database, SqlConfig};
use super::exchange::{Came, Leave};
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::stores::gathering::{Gathering, Part};
use crate::sync::Mutex;

/// So many transactions of a kind run at a time, before those that come wait for
/// company; a file has only one.
const AT_ONCE: usize = 2;

/// What is done with locks together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Together {
    Take,
    Release,
}

/// What waits to be sent.
pub(super) struct Batches {
    takes: Mutex<Gathering<Asked>>,
    releases: Mutex<Gathering<Asked>>,
}

/// A lock that is asked for, or given back.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) deadline: Deadline,
    pub(super) leave: Leave,
    pub(super) tell: oneshot::Sender<Came>,
}

impl Part for Asked {
    fn lock(&self) -> &str {
        &self.request.key
    }

    fn leaves(&self, _: Instant) -> bool {
        self.leave.takes()
    }
}

impl Together {
    /// The name of its script, and how many columns that answers with.
    pub(super) fn script(self) -> (&'static str, usize) {
        match self {
            Self::Take => ("take", 4),
            Self::Release => ("release", 1),
        }
    }
}

impl Batches {
    pub(super) fn new<D: Database>(config: &SqlConfig<D>) -> Self {
        let at_once = if D::IS_FILE { 1 } else { AT_ONCE };
        let connections = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
        let gathering = || Mutex::new(Gathering::new(at_once.min(connections), D::TOGETHER));
        Self {
            takes: gathering(),
            releases: gathering(),
        }
    }

    pub(super) fn of(&self, what: Together) -> &Mutex<Gathering<Asked>> {
        match what {
            Together::Take => &self.takes,
            Together::Release => &self.releases,
        }
    }
}
