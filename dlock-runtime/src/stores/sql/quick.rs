//! Takes a lone lock that is likely to be free, or gives back one that nobody is likely to wait
//! for, by one statement. The statement is a transaction of its own, which each connection has
//! prepared. If it does nothing, the script is run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::database::Database;
use super::script::{CLEANED_EVERY, Scripts};
use super::work::{Statement, Together};
use crate::sync::Mutex;

/// How many locks are remembered at most.
const MOST: usize = 512;

/// How long the statements are not tried after the database has refused one, or did not know it. A
/// pooler may give each transaction another session, in which they were not prepared.
const REFUSED: Duration = Duration::from_secs(60);

/// The statements, and the locks for which they are tried.
pub(super) struct Quick {
    is_known: bool,
    statements: [Statement; 2],
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The locks that this process has taken or given back while nobody else wanted them, and when.
    /// So they have a row, unless it was cleaned away since.
    quiet: HashMap<String, Instant>,
    refused_at: Option<Instant>,
}

impl Quick {
    pub(super) fn new<D: Database>(scripts: &Scripts) -> Self {
        let statement = |name| scripts.statement(name);
        Self {
            is_known: D::IS_QUICK,
            statements: ["quick_take", "quick_release"].map(statement),
            seen: Mutex::default(),
        }
    }

    pub(super) fn statement(&self, what: Together) -> &Statement {
        &self.statements[what as usize]
    }

    /// Whether the statement is likely to succeed.
    pub(super) fn is_likely(&self, what: Together, key: &str, now: Instant) -> bool {
        if !self.is_known {
            return false;
        }
        let seen = self.seen.lock();
        let since = |at: &Instant| now.saturating_duration_since(*at);
        let is_refused = seen
            .refused_at
            .as_ref()
            .is_some_and(|at| since(at) < REFUSED);
        let quiet = seen.quiet.get(key);
        !is_refused
            && quiet.is_some_and(|at| what == Together::Release || since(at) < CLEANED_EVERY)
    }

    /// This lock was taken or given back, and nobody else wanted it.
    pub(super) fn is_quiet(&self, key: &str, now: Instant) {
        if !self.is_known {
            return;
        }
        let quiet = &mut self.seen.lock().quiet;
        if let Some(at) = quiet.get_mut(key) {
            *at = now;
            return;
        }
        if quiet.len() >= MOST {
            quiet.retain(|_, at| now.saturating_duration_since(*at) < CLEANED_EVERY);
        }
        if quiet.len() < MOST {
            quiet.insert(key.to_owned(), now);
        }
    }

    /// The statement has done nothing, because somebody else has the lock or waits for it, or the
    /// lock has no row; or its answer was lost.
    pub(super) fn is_not_quiet(&self, key: &str) {
        self.seen.lock().quiet.remove(key);
    }

    /// The database refused the statement.
    pub(super) fn is_refused(&self, now: Instant) {
        self.seen.lock().refused_at = Some(now);
    }
}
