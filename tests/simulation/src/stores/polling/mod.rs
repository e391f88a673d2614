//! A store like memcached, without a queue: who waits asks now and then.

mod server;
mod store;

pub(crate) use self::server::PollingServer;
pub(crate) use self::store::Polling;
