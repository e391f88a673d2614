//! Where the rows go: stands for a database table, with the guard that a real
//! one would have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock::FencingToken;

#[derive(Debug)]
pub(crate) struct Ledger {
    write_takes: Duration,
    batches: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// How often each row was written.
    rows: BTreeMap<u32, u32>,
    complete: bool,
    /// The greatest token that was seen.
    newest: Option<FencingToken>,
}

/// A write of somebody whose lock has gone to another since.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the batch has a newer importer")]
pub(crate) struct Stale;

impl Ledger {
    pub(crate) fn new(write_takes: Duration) -> Self {
        Self {
            write_takes,
            batches: Mutex::default(),
        }
    }

    /// Writes a row, unless somebody with a newer token has been here.
    pub(crate) async fn write(
        &self,
        id: &str,
        row: u32,
        token: Option<FencingToken>,
    ) -> Result<(), Stale> {
        tokio::time::sleep(self.write_takes).await;
        let mut batches = self.batches();
        let entry = batches.entry(id.to_owned()).or_default();
        if token < entry.newest {
            return Err(Stale);
        }
        entry.newest = token;
        *entry.rows.entry(row).or_default() += 1;
        Ok(())
    }

    pub(crate) fn complete(&self, id: &str) {
        let mut batches = self.batches();
        batches.entry(id.to_owned()).or_default().complete = true;
    }

    pub(crate) fn is_complete(&self, id: &str) -> bool {
        self.batches().get(id).is_some_and(|entry| entry.complete)
    }

    /// The rows of a batch that were written.
    pub(crate) fn rows(&self, id: &str) -> BTreeSet<u32> {
        let batches = self.batches();
        let entry = batches.get(id).into_iter();
        entry.flat_map(|entry| entry.rows.keys().copied()).collect()
    }

    pub(crate) async fn delete_complete(&self) -> usize {
        tokio::time::sleep(self.write_takes).await;
        let mut batches = self.batches();
        let before = batches.len();
        batches.retain(|_, entry| !entry.complete);
        before - batches.len()
    }

    fn batches(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the rows of a batch were written in all.
    #[cfg(test)]
    pub(crate) fn writes(&self, id: &str) -> u32 {
        let batches = self.batches();
        let entry = batches.get(id).into_iter();
        entry.flat_map(|entry| entry.rows.values()).sum()
    }
}
