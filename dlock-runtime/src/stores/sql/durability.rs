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
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::errors::Endpoint;
use super::rows::Answer;
use super::script::Dialect;
use crate::backend::{BackendError, BackendErrorKind, TokenTier};
use crate::stores::tier::FoundTier;

/// How often those who were refused have it looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the database has last said of it.
pub(super) struct Durability {
    /// Asks.
    pub(super) script: String,
    endpoint: Endpoint,
    /// What to set.
    remedy: &'static str,
    pub(super) tier: FoundTier,
    /// Of the tables. They are looked at when connecting.
    tables: AtomicBool,
    looked: Mutex<Instant>,
}

impl Durability {
    /// Nothing has been looked at yet.
    pub(super) fn unknown(endpoint: Endpoint, dialect: &Dialect) -> Self {
        let script = include_str!("statements/check.sql");
        let script = script.replace("{durable}", dialect.durable);
        Self {
            script: script.replace("{durable_tables}", dialect.durable_tables),
            endpoint,
            remedy: dialect.durable_with,
            tier: FoundTier::unknown(),
            tables: AtomicBool::new(false),
            looked: Mutex::new(Instant::now()),
        }
    }

    /// Reads what the script has answered with.
    pub(super) fn read(&self, answer: &Answer) -> Result<(), BackendError> {
        const VERSION: i64 = 1;
        let endpoint = &self.endpoint;
        let wrong = |what| Err(BackendError::new(BackendErrorKind::Config, what));
        let Some(row) = answer.rows.first() else {
            return wrong(format!(
                "{endpoint}: its table `dlock_meta` is empty; run the INSERT of docs/stores/sql.md"
            ));
        };
        match row.int(0) {
            VERSION => {}
            found => {
                return wrong(format!(
                    "{endpoint}: its table `dlock_meta` is of version {found}, and this dlock \
                     needs {VERSION}; see docs/stores/sql.md"
                ));
            }
        }
        self.tables.store(row.int(4) == 1, Ordering::Release);
        self.found(row.int(3) == 1);
        Ok(())
    }

    /// A transaction has said whether what it commits is durable.
    pub(super) fn found(&self, durable: bool) {
        let tier = if durable && self.tables.load(Ordering::Acquire) {
            TokenTier::Strict
        } else {
            TokenTier::BestEffort
        };
        if tier != TokenTier::Strict && self.tier.get() == TokenTier::Strict {
            tracing::warn!(
                target: "dlock::store",
                "{}: a crash of its machine may take fencing tokens back from now on; set {}",
                self.endpoint,
                self.remedy
            );
        }
        self.tier.set(tier);
    }

    /// Whether to look again now, as somebody asks who may be refused.
    pub(super) fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked.elapsed() >= AGAIN;
        if due {
            *looked = Instant::now();
        }
        due
    }
}
