//! What the tests of several stores share: real servers. What any tests of locks
//! need is in `dlock_conformance::support`, and is found here too.
//!
//! Nothing here assumes a port, a path or a running service, and everything
//! that is started is stopped again when its value is dropped, in a panic too.

#![allow(
    dead_code,
    unused_imports,
    unexpected_cfgs,
    reason = "each test binary uses its own part of this, and not each package has every feature"
)]

pub(crate) mod cluster;
pub(crate) mod crowd;
pub(crate) mod documented;
#[cfg(feature = "zookeeper")]
mod ensemble;
pub(crate) mod etcd;
#[cfg(feature = "redis")]
pub(crate) mod ghosts;
pub(crate) mod impatient;
pub(crate) mod lent;
pub(crate) mod machine;
pub(crate) mod memcached;
pub(crate) mod moving;
pub(crate) mod nodes;
pub(crate) mod patient;
pub(crate) mod redis;
pub(crate) mod resp;
pub(crate) mod sentinel;
pub(crate) mod server;
mod start;
pub(crate) mod tls;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

pub(crate) use dlock_conformance::support::*;
