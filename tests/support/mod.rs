//! What the integration tests share: real servers, faults, a resource that
//! notices when a lock fails, and contenders in processes of their own.
//!
//! Nothing here assumes a port, a path or a running service, and everything
//! that is started is stopped again when its value is dropped, in a panic too.

#![allow(
    dead_code,
    unused_imports,
    unexpected_cfgs,
    reason = "each test binary uses its own part of this, and not each package has every feature"
)]

pub(crate) mod alone;
pub(crate) mod cluster;
pub(crate) mod dir;
pub(crate) mod documented;
pub(crate) mod etcd;
#[cfg(feature = "redis")]
pub(crate) mod ghosts;
pub(crate) mod log;
pub(crate) mod memcached;
pub(crate) mod nodes;
pub(crate) mod polls;
pub(crate) mod port;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod resource;
pub(crate) mod sentinel;
pub(crate) mod tls;
pub(crate) mod wait;
pub(crate) mod worker;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;
