//! Input that wants to hurt: URLs, keys and answers of servers, as no person writes
//! them. Whatever comes, a call ends in its time and says what is wrong: no panic, no
//! password in what it says.
//!
//! `property.rs` says how more of them are tried. What stands in the keys and rows of a
//! store is tried with its own tests.

#![cfg(all(
    feature = "etcd",
    feature = "memcached",
    feature = "mysql",
    feature = "postgres",
    feature = "redis-cluster",
    feature = "redis-redlock",
    feature = "redis-sentinel",
    feature = "sqlite",
    feature = "zookeeper"
))]

#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;

mod answers;
#[path = "../databases"]
#[allow(dead_code, reason = "nothing here waits for the disk")]
mod databases {
    pub(crate) mod server;
}
mod keys;
#[path = "../mysql/kind.rs"]
mod mysql;
#[path = "../postgres/kind.rs"]
mod postgres;
mod urls;
