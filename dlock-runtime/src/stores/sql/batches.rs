//! Locks that are taken, or given back, together.
//!
//! What a transaction costs is that it is committed, and put to disk: for many locks
//! hardly more than for one. The rows of all are kept from others until it ends, which is
//! soon. Should somebody keep one of them, the others do not wait for long: it is given up,
//! as it is with one that the database refuses, and each is asked for again by itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::database::{Database, SqlConfig};
use super::exchange::{Came, Exchange, Leave};
use super::work::Together;
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::gathering::{Gathering, Part};
use crate::sync::Mutex;

/// So many transactions of a kind run at a time, before those that come wait for
/// company; a file has only one.
const AT_ONCE: usize = 2;

/// So many locks go together at most: more would keep their rows for long.
const MOST: usize = 64;

/// A lock whose row may be kept by somebody goes alone for so long, if it is not answered
/// before.
const SUSPECT: Duration = Duration::from_secs(60);

/// What waits to be sent.
pub(super) struct Batches {
    takes: Mutex<Gathering<Asked>>,
    releases: Mutex<Gathering<Asked>>,
    /// Locks that were in a batch that failed, until each is answered alone: one of them
    /// would fail the next as well.
    suspects: Mutex<HashMap<String, Instant>>,
}

/// A lock that is asked for, or given back.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) deadline: Deadline,
    pub(super) leave: Leave,
    /// It went with others, statement by statement, and there was an error: it may be done.
    pub(super) may_be_done: bool,
    tell: oneshot::Sender<Came>,
}

impl Asked {
    /// One that is told its answer by the other.
    pub(super) fn new(request: &Request, time: &Time, deadline: Deadline) -> (Self, Exchange) {
        let (tell, exchange) = Exchange::new(time, deadline);
        let asked = Self {
            request: request.clone(),
            deadline,
            leave: exchange.leave.clone(),
            may_be_done: false,
            tell,
        };
        (asked, exchange)
    }

    pub(super) fn tell(self, mut came: Came) {
        if let Err(failed) = &mut came {
            failed.may_be_done |= self.may_be_done;
        }
        // It may have left.
        let _ = self.tell.send(came);
    }
}

impl Part for Asked {
    fn lock(&self) -> &str {
        &self.request.key
    }

    fn leaves(&self, _: Instant) -> bool {
        self.leave.takes()
    }
}

impl Batches {
    pub(super) fn new<D: Database>(config: &SqlConfig<D>) -> Self {
        let at_once = if D::IS_FILE { 1 } else { AT_ONCE };
        let connections = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
        let gathering = || Mutex::new(Gathering::new(at_once.min(connections), MOST));
        Self {
            takes: gathering(),
            releases: gathering(),
            suspects: Mutex::default(),
        }
    }

    pub(super) fn is_suspect(&self, key: &str, now: Instant) -> bool {
        let suspects = self.suspects.lock();
        let since = suspects.get(key);
        since.is_some_and(|since| now.saturating_duration_since(*since) < SUSPECT)
    }

    /// One of these has failed those that went with it.
    pub(super) fn suspect(&self, batch: &[Asked], now: Instant) {
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, since| now.saturating_duration_since(*since) < SUSPECT);
        let keys = batch.iter().map(|asked| asked.request.key.to_string());
        suspects.extend(keys.map(|key| (key, now)));
    }

    pub(super) fn is_answered(&self, key: &str) {
        let mut suspects = self.suspects.lock();
        if !suspects.is_empty() {
            suspects.remove(key);
        }
    }

    pub(super) fn of(&self, what: Together) -> &Mutex<Gathering<Asked>> {
        match what {
            Together::Take => &self.takes,
            Together::Release => &self.releases,
        }
    }
}
