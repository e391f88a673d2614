//! A store like Redis: the server keeps a queue, hands a lock that is given back to
//! the next in it, and tells that one's process.

mod server;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use self::server::QueueServer;
#[cfg(test)]
pub(crate) use self::server::{Answer, Asked, Command};
pub(crate) use self::store::Queue;
