//! A store like ZooKeeper: locks and places are nodes of a session, and last for as
//! long as that does. Who waits watches the node before its own.

mod server;
mod session;
mod store;

pub(crate) use self::server::SessionServer;
pub(crate) use self::store::Sessions;
