//! Databases: one protocol over five tables, for PostgreSQL, MySQL, MariaDB and SQLite.
//!
//! - A lock is a row, found by its name. An operation is one script of SQL, which the database runs
//!   as one transaction, under the lock of that row.
//! - A request that does not get the lock waits in a queue table. The lock's row says that somebody
//!   waits, so a later request finds out from the row alone, and does not overtake.
//! - Leases end by the database's clock, and every statement compares the owner.
//! - The fencing token is a counter in the row. Before rows are removed, the floor from which new
//!   rows count is raised above their counters.
//!
//! The top of each file says what the file does; `protocol.sql` is the protocol itself.

mod batches;
#[cfg(feature = "sqlite")]
mod changes;
mod connections;
mod database;
mod durability;
mod errors;
mod exchange;
mod inspect;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod quick;
mod renew;
mod script;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
mod tables;
mod together;
mod watch;
mod work;

use sqlx::pool::PoolOptions;

use self::database::{Options, SqlConfig};
use self::store::SqlStore;
use self::tables::Notifies;
use crate::engine::Engine;

/// Locks in the tables of a database.
///
/// A copy is another backend with the same settings, not yet connected.
#[derive(Clone)]
pub struct Sql<D: Notifies> {
    engine: Engine<SqlStore<D>>,
}

impl<D: Notifies> Sql<D> {
    /// The tables of a server are created only on request, since a service usually has no right to
    /// do that. Four connections are enough for a server, as each is used for milliseconds at a
    /// time; a file has one writer.
    fn with(options: Options<D>, pool: PoolOptions<D::Sql>) -> Self {
        Self::over(SqlConfig {
            options,
            pool,
            create_tables: D::IS_FILE,
            max_connections: if D::IS_FILE { 1 } else { 4 },
        })
    }
}

driven!(Sql<D: Notifies>, SqlStore<D>);
