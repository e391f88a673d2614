//! What tests of locks need besides a store: faults, a resource that notices when a lock fails,
//! contenders in separate processes, waiting for a condition.
//!
//! Nothing here assumes a port, a path or a running service. Everything that is started is
//! stopped again when its value is dropped, also in a panic.

pub mod alone;
pub mod calm;
pub mod critical;
pub mod dir;
pub(crate) mod late;
pub mod locks;
pub mod log;
pub mod over_memory;
pub mod polls;
pub mod port;
pub mod process;
pub mod program;
pub mod proxy;
pub mod resource;
pub mod room;
pub mod runtimes;
pub mod secure;
pub mod visited;
pub mod wait;
pub mod worker;
