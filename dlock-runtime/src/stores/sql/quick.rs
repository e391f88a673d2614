//! Takes a lone lock, or gives it back, by one statement. The statement is a transaction of its own,
//! which each connection has prepared. If it does nothing, the script is run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::database::Database;
use super::script::{CLEANED_EVERY, Scripts};
use super::work::{SingleStatement, Statement};
use crate::sync::Mutex;

/// How many locks are remembered at most.
const MOST: usize = 512;

/// How long the statements are not tried after the database has refused one. (That a session does
/// not know one is no refusal: then it is prepared there.)
const REFUSED: Duration = Duration::from_secs(60);

/// The statements, and the locks for which they are tried.
pub(super) struct Quick {
    known: &'static [SingleStatement],
    statements: [Statement; SingleStatement::ALL.len()],
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The locks that this process has taken or given back lately, and when. So they have a row,
    /// unless it was cleaned away since.
    rows: HashMap<String, Instant>,
    refused_at: Option<Instant>,
}

impl Quick {
    pub(super) fn new<D: Database>(scripts: &Scripts) -> Self {
        Self {
            known: D::QUICK,
            statements: SingleStatement::ALL.map(|what| scripts.statement(what.statement())),
            seen: Mutex::default(),
        }
    }

    pub(super) fn statement(&self, what: SingleStatement) -> &Statement {
        &self.statements[what as usize]
    }

    pub(super) fn has(&self, what: SingleStatement) -> bool {
        self.known.contains(&what)
    }

    /// Whether the statement is likely to succeed. A lock that is held or waited for has a row.
    pub(super) fn is_likely(&self, what: SingleStatement, key: &str, now: Instant) -> bool {
        if !self.has(what) {
            return false;
        }
        let seen = self.seen.lock();
        let since = |at: &Instant| now.saturating_duration_since(*at);
        let is_refused = seen
            .refused_at
            .as_ref()
            .is_some_and(|at| since(at) < REFUSED);
        let has_row = seen
            .rows
            .get(key)
            .is_some_and(|at| since(at) < CLEANED_EVERY);
        !is_refused && (what != SingleStatement::Take || has_row)
    }

    /// This lock has a row.
    pub(super) fn note_row(&self, key: &str, now: Instant) {
        if self.known.is_empty() {
            return;
        }
        let rows = &mut self.seen.lock().rows;
        if let Some(at) = rows.get_mut(key) {
            *at = now;
            return;
        }
        if rows.len() >= MOST {
            rows.retain(|_, at| now.saturating_duration_since(*at) < CLEANED_EVERY);
        }
        if rows.len() < MOST {
            rows.insert(key.to_owned(), now);
        }
    }

    /// The statement has done nothing, perhaps because the lock has no row; or its answer was lost.
    pub(super) fn forget(&self, key: &str) {
        self.seen.lock().rows.remove(key);
    }

    /// The database refused the statement.
    pub(super) fn note_refusal(&self, now: Instant) {
        self.seen.lock().refused_at = Some(now);
    }
}
