//! Databases: one protocol over three tables, for each database that `sqlx`
//! speaks to.
//!
//! - A lock is a row, found by its name. Each operation is one script of SQL
//!   that the database runs as one transaction, under the lock of that row.
//! - Who does not get it waits in a queue table. Those who come later see that
//!   somebody waits in the row itself, so that nobody overtakes.
//! - Leases end by the database's clock, and the owner is compared in every
//!   statement.
//! - The fencing token is a counter in the row. Before rows are removed, a floor
//!   for those that come later is raised above them.
//!
//! What each part does is said at the top of its file; `protocol.sql` is
//! the protocol itself.

mod batches;
mod clean;
mod connections;
mod database;
mod durability;
mod errors;
mod exchange;
mod inspect;
mod lent;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod quick;
mod renew;
mod run;
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
    /// A server's tables are made only if that is asked for: a service has no right
    /// to do it as a rule. Each connection is used for milliseconds at a time; a
    /// file has one writer.
    fn with(options: Options<D>, pool: PoolOptions<D::Sql>) -> Self {
        Self {
            engine: Engine::new(SqlConfig {
                options,
                pool,
                create_tables: D::IS_FILE,
                max_connections: if D::IS_FILE { 1 } else { 4 },
            }),
        }
    }
}

driven!(Sql<D: Notifies>, SqlStore<D>);
