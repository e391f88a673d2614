//! Whether tokens outlive a crash of the machine that the database is on.
//!
//! A token that was given out and is then lost is given out once more, and
//! nothing tells the two apart. So the transaction that draws it waits for the
//! disk, where the session can make it. What the session cannot change, the
//! server is asked for, in that very transaction: a connection may lead to
//! another server than before, and behind a pooler each transaction may. What
//! cannot be read counts as not durable.
//!
//! A release need not wait: if it is undone, the lease ends by itself. Nor does a
//! renewal that is undone take a token back, but it ends a lease that its holder
//! believes in; so those do wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::database::Row;
use super::errors::Endpoint;
use crate::backend::{BackendError, BackendErrorKind, TokenTier};
use crate::stores::tier::FoundTier;
use crate::sync::Mutex;

/// Of the script `check`: the version of the tables, two columns, then whether the
/// server's settings and the tables make tokens durable.
pub(super) const COLUMNS: usize = 5;

/// How often those who were refused have it looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the database has last said of it.
pub(super) struct Durability {
    tier: FoundTier,
    /// Of the tables. They are looked at when connecting.
    tables: AtomicBool,
    /// It was told that they are not strict, and they were not since.
    warned: AtomicBool,
    looked: Mutex<Instant>,
    /// What to set.
    with: &'static str,
}

impl Durability {
    /// Nothing has been looked at yet.
    pub(super) fn unknown(with: &'static str) -> Self {
        Self {
            tier: FoundTier::unknown(),
            tables: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            looked: Mutex::new(Instant::now()),
            with,
        }
    }

    /// What the tokens are worth, and whether to look at it again now: who needs strict
    /// ones is refused, and would never learn that they are strict by now.
    pub(super) fn tokens(&self) -> (TokenTier, bool) {
        let tier = self.tier.get();
        let mut looked = self.looked.lock();
        let due = tier != TokenTier::Strict && looked.elapsed() >= AGAIN;
        if due {
            *looked = Instant::now();
        }
        (tier, due)
    }

    /// Reads what `check` has answered, and whether the tables are those of this version.
    pub(super) fn read(&self, rows: &[Row], endpoint: &Endpoint) -> Result<(), BackendError> {
        const VERSION: i64 = 1;
        let wrong = |what| {
            let what = format!("{endpoint}: its table `dlock_meta` is {what}");
            Err(BackendError::new(BackendErrorKind::Config, what))
        };
        let Some(row) = rows.first() else {
            return wrong(format!(
                "empty; if no token was ever given out, run: INSERT INTO dlock_meta (version, \
                 floor, cleaned_at) VALUES ({VERSION}, 64, 0); else with the highest in place of 64"
            ));
        };
        let version = row.int(0);
        if version != VERSION {
            return wrong(format!(
                "of version {version}, and this dlock needs {VERSION}; use the dlock that made \
                 it, or a database or schema of its own for this one"
            ));
        }
        self.tables.store(row.int(4) == 1, Ordering::Release);
        self.found(row.int(3) == 1, endpoint);
        Ok(())
    }

    /// A transaction has said whether what it commits is durable.
    pub(super) fn found(&self, durable: bool, endpoint: &Endpoint) {
        let tier = match durable && self.tables.load(Ordering::Acquire) {
            true => TokenTier::Strict,
            false => TokenTier::BestEffort,
        };
        self.tier.set(tier);
        let is_risky = tier != TokenTier::Strict;
        if !self.warned.swap(is_risky, Ordering::Relaxed)
            && is_risky
            && let Some(risk) = self.risk(endpoint)
        {
            tracing::warn!(target: "dlock::store", "{risk}");
        }
    }

    /// What a crash may undo, and what to do about it.
    pub(super) fn risk(&self, endpoint: &Endpoint) -> Option<String> {
        let with = self.with;
        (self.tier.get() != TokenTier::Strict).then(|| {
            format!(
                "{endpoint}: a crash of its machine may end leases and take fencing tokens back; \
                 set {with}"
            )
        })
    }
}
