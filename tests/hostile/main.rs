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
mod keys;
mod urls;
