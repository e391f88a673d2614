//! A lone lock that is likely to be free, or whose release is likely to concern nobody:
//! by one statement that ends by itself, and that each connection has prepared. Where it
//! does nothing, the script does what there is to be done.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::database::Database;
use super::script::{CLEANED_EVERY, Scripts};
use super::work::{Statement, Together};
use crate::backend::Owner;
use crate::sync::Mutex;

/// So many locks are remembered at most.
const MOST: usize = 512;

/// A statement that the database refused, or did not know, is not tried for so long: what
/// is between may give each transaction another session.
const REFUSED: Duration = Duration::from_secs(60);

/// The statements, and the locks that they are tried with.
pub(super) struct Quick {
    is_known: bool,
    pub(super) statements: [Statement; 2],
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Locks that this process had, or gave back, while nobody else was there, and when. So
    /// they have a row, unless that was cleaned away since.
    quiet: HashMap<String, Instant>,
    refused_at: Option<Instant>,
}

impl Quick {
    pub(super) fn new<D: Database>(scripts: &Scripts, process: Owner) -> Self {
        let statement = |name| scripts.statement(name, process);
        Self {
            is_known: D::IS_QUICK,
            statements: ["quick_take", "quick_release"].map(statement),
            seen: Mutex::default(),
        }
    }

    /// Whether its statement is likely to do.
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

    /// Nobody else was there.
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

    /// Somebody was there, it has no row, or, if `is_refused`, the statement is not to be had.
    pub(super) fn has_done_nothing(&self, key: &str, now: Instant, is_refused: bool) {
        let mut seen = self.seen.lock();
        seen.quiet.remove(key);
        if is_refused {
            seen.refused_at = Some(now);
        }
    }
}
