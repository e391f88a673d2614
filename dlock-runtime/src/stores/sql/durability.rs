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

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::database::Database;
use super::rows::Answer;
use super::script::Args;
use super::tables::Tables;
use crate::backend::{BackendError, BackendErrorKind, TokenTier};
use crate::deadline::Deadline;
use crate::store::Failure;

/// The version of the tables, two columns, then whether the server's settings
/// and the tables make tokens durable.
const COLUMNS: usize = 5;

impl<D: Database> Tables<D> {
    /// What the tokens are worth. If they are not strict it is looked at again
    /// behind this: who needs them so is refused, and would never learn that they
    /// are by now.
    pub(super) fn tokens(self: &Arc<Self>) -> TokenTier {
        let tier = self.durability.tier.get();
        if tier != TokenTier::Strict && self.durability.is_due() {
            let this = Arc::clone(self);
            self.time.spawn(async move {
                let script = this.scripts.fill("check", &Args::default());
                if let Some(answer) = this.look_after(script, COLUMNS).await {
                    let _ = this.read(&answer);
                }
            });
        }
        tier
    }

    /// Looks at the tables and at the settings of the server, and whether the
    /// tables are those of this version.
    pub(super) async fn look_at_durability(
        self: &Arc<Self>,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let script = self.scripts.fill("check", &Args::default());
        let answer = self.run(script, COLUMNS, deadline).await?;
        self.read(&answer).map_err(Failure::refused)
    }

    fn read(&self, answer: &Answer) -> Result<(), BackendError> {
        const VERSION: i64 = 1;
        let wrong = |what| {
            let endpoint = &self.endpoint;
            let what = format!("{endpoint}: its table `dlock_meta` is {what}");
            Err(BackendError::new(BackendErrorKind::Config, what))
        };
        let Some(row) = answer.rows.first() else {
            return wrong("empty; run the INSERT of docs/stores/sql.md".to_owned());
        };
        let version = row.int(0);
        if version != VERSION {
            return wrong(format!(
                "of version {version}, and this dlock needs {VERSION}; see docs/stores/sql.md"
            ));
        }
        let tables_are_durable = row.int(4) == 1;
        self.durability
            .tables
            .store(tables_are_durable, Ordering::Release);
        self.found_durable(row.int(3) == 1);
        Ok(())
    }

    /// A transaction has said whether what it commits is durable.
    pub(super) fn found_durable(&self, durable: bool) {
        let known = &self.durability;
        let tier = if durable && known.tables.load(Ordering::Acquire) {
            TokenTier::Strict
        } else {
            TokenTier::BestEffort
        };
        if tier != TokenTier::Strict && known.tier.get() == TokenTier::Strict {
            tracing::warn!(
                target: "dlock::store",
                "{}: a crash of its machine may take fencing tokens back from now on; set {}",
                self.endpoint,
                D::DURABLE_WITH
            );
        }
        known.tier.set(tier);
    }
}
