//! Locks that are taken, or given back, together.
//!
//! Most of what a transaction costs is its commit to the disk, which costs hardly more for many
//! locks than for one. The transaction keeps the rows of all its locks until it ends, which is
//! soon. If another session keeps one of these rows, the transaction is given up after a moment,
//! and each lock is asked for by itself. The same is done if the database refuses one of the locks.

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

/// How many transactions of a kind may be in flight before further requests wait to go together. A
/// file has one writer, so there it is 1.
const AT_ONCE: usize = 2;

/// The most locks that go together: more would keep their rows for too long.
const MOST: usize = 64;

/// How long a lock whose row another session may keep is sent alone, unless it is answered before.
const ALONE_FOR: Duration = Duration::from_secs(60);

/// The requests that wait to be sent, by kind.
pub(super) struct Batches {
    takes: Mutex<Gathering<Asked>>,
    releases: Mutex<Gathering<Asked>>,
    /// The keys of batches that failed, each until it was answered alone: one of them would make
    /// the next batch fail too.
    asked_alone: Mutex<HashMap<String, Instant>>,
}

/// A request to take one lock, or to give it back.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) deadline: Deadline,
    pub(super) leave: Leave,
    /// It was in a batch that failed after some of its statements may have been committed.
    pub(super) may_be_done: bool,
    tell: oneshot::Sender<Came>,
}

impl Asked {
    /// A new request, and the exchange for its answer.
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
        // The caller may have left.
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
            asked_alone: Mutex::default(),
        }
    }

    pub(super) fn is_asked_alone(&self, key: &str, now: Instant) -> bool {
        let asked_alone = self.asked_alone.lock();
        let since = asked_alone.get(key);
        since.is_some_and(|since| now.saturating_duration_since(*since) < ALONE_FOR)
    }

    /// One lock of this batch has made all of it fail.
    pub(super) fn ask_alone(&self, batch: &[Asked], now: Instant) {
        let mut asked_alone = self.asked_alone.lock();
        asked_alone.retain(|_, since| now.saturating_duration_since(*since) < ALONE_FOR);
        let keys = batch.iter().map(|asked| asked.request.key.to_string());
        asked_alone.extend(keys.map(|key| (key, now)));
    }

    pub(super) fn forget_alone(&self, key: &str) {
        let mut asked_alone = self.asked_alone.lock();
        if !asked_alone.is_empty() {
            asked_alone.remove(key);
        }
    }

    pub(super) fn of(&self, what: Together) -> &Mutex<Gathering<Asked>> {
        match what {
            Together::Take => &self.takes,
            Together::Release => &self.releases,
        }
    }
}
