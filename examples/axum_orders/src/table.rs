//! Where the books are: records that are read and written, in a place that all
//! copies of the service share.

pub mod memory;
pub mod redis;

use std::error::Error;

use async_trait::async_trait;
use dlock::FencingToken;

/// A table of records. It refuses an access with a fencing token that is older
/// than one it has seen for the same record.
#[async_trait]
pub trait Table: Send + Sync {
    /// A number that was not given before.
    async fn next_id(&self) -> Result<u64, TableError>;

    /// Adds a record, unless it is there.
    async fn insert(&self, record: &str, value: &str) -> Result<(), TableError>;

    /// A record's value.
    async fn read(
        &self,
        record: &str,
        token: Option<FencingToken>,
    ) -> Result<Option<String>, TableError>;

    /// Writes all of them or, if one is refused, none.
    async fn write(&self, changes: Vec<Change>) -> Result<(), TableError>;

    /// All records, as they are at one moment.
    async fn all(&self) -> Result<Vec<(String, String)>, TableError>;
}

/// A record's new value.
pub struct Change {
    pub(crate) record: String,
    pub(crate) value: String,
    pub(crate) token: Option<FencingToken>,
}

impl Change {
    pub(crate) fn new(record: String, value: String, token: Option<FencingToken>) -> Self {
        Self {
            record,
            value,
            token,
        }
    }
}

/// Why the books were not read or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The token is older than one that the table has seen.
    #[error("somebody else has had the lock since")]
    Outdated,
    /// The store did not do it.
    #[error("the books: {0}")]
    Store(#[source] Box<dyn Error + Send + Sync>),
}

impl TableError {
    pub(crate) fn unreadable(error: serde_json::Error) -> Self {
        Self::Store(error.into())
    }
}
