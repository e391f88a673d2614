//! A store like a database: places in a queue are rows, a process is alive by a row of its
//! own, and a release frees a lock and grants it to nobody. Who waits is told where there
//! are messages, as a hint, and looks. What is asked is asked by the manager, and locks
//! that are taken at the same time are taken together.

mod batches;
mod server;
mod store;

pub(crate) use self::server::DatabaseServer;
pub(crate) use self::store::Database;
