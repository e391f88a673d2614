//! Whether tokens outlive a crash of the machine of the database.
//!
//! If a crash undoes a grant, its token is given out once more, and nothing tells the two grants
//! apart. So the transaction that draws a token waits for the disk, if the session can make it
//! wait. What the session cannot change is read from the server's settings in that same
//! transaction: a connection may lead to another server than before, and behind a pooler each
//! transaction may. A setting that cannot be read counts as not durable.
//!
//! A release need not wait: if a crash undoes it, the lease ends by itself. A renewal waits on a
//! server, since its holder would rely on a lease that has ended. (In SQLite, the holder does not
//! outlive the crash.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::database::Row;
use super::errors::Endpoint;
use crate::backend::{BackendError, BackendErrorKind, TokenTier};
use crate::sync::Mutex;

/// The columns of the script `check`: the version of the tables, two others, then whether the
/// server's settings and the tables make tokens durable.
pub(super) const COLUMNS: usize = 5;

/// How often the settings are read again while tokens are not strict.
const AGAIN: Duration = Duration::from_secs(1);

/// What the database has last reported.
pub(super) struct Durability {
    /// Whether tokens are strict, by the last grant or the last look at the settings. A grant
    /// stores it before it is used, so what is read here after a grant holds for it.
    strict: AtomicBool,
    /// Whether the tables are durable, when they were last looked at.
    tables: AtomicBool,
    /// The warning was logged, and tokens have not been strict since.
    warned: AtomicBool,
    looked: Mutex<Instant>,
    /// For messages: what to set.
    with: &'static str,
}

impl Durability {
    /// Before anything was read.
    pub(super) fn unknown(with: &'static str) -> Self {
        Self {
            strict: AtomicBool::new(false),
            tables: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            looked: Mutex::new(Instant::now()),
            with,
        }
    }

    /// What the tokens are worth, and whether to read the settings again now. A call that needs
    /// strict tokens is refused without a grant, so without this it would never find out that they
    /// are strict by now.
    pub(super) fn tokens(&self) -> (TokenTier, bool) {
        let strict = self.strict.load(Ordering::Acquire);
        let mut looked = self.looked.lock();
        let due = !strict && looked.elapsed() >= AGAIN;
        if due {
            *looked = Instant::now();
        }
        let tier = match strict {
            true => TokenTier::Strict,
            false => TokenTier::BestEffort,
        };
        (tier, due)
    }

    /// Reads the answer of `check`. An error if the tables are not those of this version.
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

    /// A transaction has reported whether what it commits is durable.
    pub(super) fn found(&self, durable: bool, endpoint: &Endpoint) {
        let strict = durable && self.tables.load(Ordering::Acquire);
        self.strict.store(strict, Ordering::Release);
        if !self.warned.swap(!strict, Ordering::Relaxed)
            && !strict
            && let Some(risk) = self.risk(endpoint)
        {
            tracing::warn!(target: "dlock::store", "{risk}");
        }
    }

    /// What a crash may undo, and what to do about it. `None` if tokens are strict.
    pub(super) fn risk(&self, endpoint: &Endpoint) -> Option<String> {
        let with = self.with;
        (!self.strict.load(Ordering::Acquire)).then(|| {
            format!(
                "{endpoint}: a crash of its machine may end leases and take fencing tokens back; \
                 set {with}"
            )
        })
    }
}
