//! A table in memory, as far away as a database: every access takes a while,
//! and others run meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;

use super::{Change, TableError};

const DISTANCE: Duration = Duration::from_millis(1);

/// A table of this process.
#[derive(Default)]
pub struct Table {
    last_id: AtomicU64,
    records: Mutex<BTreeMap<String, Record>>,
}

#[derive(Default)]
struct Record {
    value: Option<String>,
    newest: Option<FencingToken>,
}

impl Record {
    fn check(&mut self, token: Option<FencingToken>) -> Result<(), TableError> {
        if token.is_some() && token < self.newest {
            return Err(TableError::Outdated);
        }
        self.newest = self.newest.max(token);
        Ok(())
    }
}

impl Table {
    async fn records(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        tokio::time::sleep(DISTANCE).await;
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl super::Table for Table {
    async fn next_id(&self) -> Result<u64, TableError> {
        Ok(self.last_id.fetch_add(1, Relaxed) + 1)
    }

    async fn insert(&self, record: &str, value: &str) -> Result<(), TableError> {
        let mut records = self.records().await;
        let record = records.entry(record.to_owned()).or_default();
        record.value.get_or_insert_with(|| value.to_owned());
        Ok(())
    }

    async fn read(
        &self,
        record: &str,
        token: Option<FencingToken>,
    ) -> Result<Option<String>, TableError> {
        let mut records = self.records().await;
        let Some(record) = records.get_mut(record) else {
            return Ok(None);
        };
        record.check(token)?;
        Ok(record.value.clone())
    }

    async fn write(&self, changes: Vec<Change>) -> Result<(), TableError> {
        let mut records = self.records().await;
        for change in &changes {
            let record = records.entry(change.record.clone()).or_default();
            record.check(change.token)?;
        }
        for change in changes {
            records.entry(change.record).or_default().value = Some(change.value);
        }
        Ok(())
    }

    async fn all(&self) -> Result<Vec<(String, String)>, TableError> {
        let records = self.records().await;
        let written = records
            .iter()
            .filter_map(|(name, record)| Some((name.clone(), record.value.clone()?)));
        Ok(written.collect())
    }
}
