//! The code under test: batches of rows that are delivered at least once, and
//! imported once.

use std::ops::Range;
use std::sync::Arc;

use dlock::{LockError, LockScopeExt as _, current, distributed_lock};
use tokio::task::JoinSet;

use crate::ledger::{Ledger, Stale};

/// So many rows are imported by one task.
const ROWS_PER_PART: u32 = 20;

#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) id: String,
    rows: u32,
}

impl Batch {
    pub(crate) fn new(id: &str, rows: u32) -> Self {
        let id = id.to_owned();
        Self { id, rows }
    }

    fn parts(&self) -> impl Iterator<Item = Range<u32>> {
        let starts = (0..self.rows).step_by(ROWS_PER_PART as usize);
        starts.map(|start| start..(start + ROWS_PER_PART).min(self.rows))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Imported {
    Now,
    Before,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// The batch may be half imported; another delivery goes on with it.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Stale(#[from] Stale),
    #[error("a part of the batch failed")]
    Part(#[from] tokio::task::JoinError),
}

#[derive(Clone, Debug)]
pub(crate) struct Importer {
    ledger: Arc<Ledger>,
}

impl Importer {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger }
    }

    /// Imports a batch, unless that has been done.
    #[distributed_lock(key = "import:<batch.id>", ttl = "30s", timeout = "1m")]
    pub(crate) async fn import(&self, batch: &Batch) -> Result<Imported, ImportError> {
        if self.ledger.is_complete(&batch.id) {
            return Ok(Imported::Before);
        }
        // Dropped with this body if the lock is lost, and the tasks with it.
        let mut parts = JoinSet::new();
        for rows in batch.parts() {
            let (importer, id) = (self.clone(), batch.id.clone());
            let part = async move { importer.import_part(&id, rows).await };
            // A task of its own would wait for the lock that we hold.
            parts.spawn(part.in_lock_scope());
        }
        while let Some(part) = parts.join_next().await {
            part??;
        }
        self.ledger.complete(&batch.id);
        Ok(Imported::Now)
    }

    /// Imports some rows of a batch. Also called by operators who mend one, and
    /// so it takes the lock itself; inside [`import`](Self::import) it is there
    /// already.
    #[distributed_lock(key = "import:<id>", ttl = "30s", timeout = "1m")]
    pub(crate) async fn import_part(&self, id: &str, rows: Range<u32>) -> Result<(), ImportError> {
        for row in rows {
            // Whoever was paused until another copy took over is refused.
            let token = current().map(|held| held.token());
            self.ledger.write(id, row, token).await?;
        }
        Ok(())
    }

    /// Deletes what was imported long ago, if no other copy is at it; says how
    /// many batches went.
    #[distributed_lock(key = "import-cleanup", try, on_error = |_| 0)]
    pub(crate) async fn clean_up(&self) -> usize {
        self.ledger.delete_complete().await
    }
}
