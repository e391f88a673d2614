//! The stores, each a folder of its own, and what a URL says of one.

#[cfg(feature = "servers")]
mod address;
#[cfg(feature = "etcd")]
pub mod etcd;
/// The client of the etcd store, for programs that keep other things there too.
#[cfg(feature = "etcd")]
pub use etcd_client;
#[cfg(feature = "memcached")]
pub mod memcached;
/// The client of the memcached store, for programs that keep other things there
/// too.
#[cfg(feature = "memcached")]
pub use async_memcached;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlx")]
mod sql;
#[cfg(feature = "mysql")]
pub use self::sql::mysql;
#[cfg(feature = "postgres")]
pub use self::sql::postgres;
#[cfg(feature = "sqlite")]
pub use self::sql::sqlite;
#[cfg(any(feature = "redis", feature = "sqlx"))]
#[cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "the SQL stores that look come next")
)]
mod tier;
/// The crate whose pools the SQL stores can be made from.
#[cfg(feature = "sqlx")]
pub use sqlx;
#[cfg(any(
    feature = "etcd",
    feature = "memcached",
    feature = "redis",
    feature = "zookeeper"
))]
#[cfg_attr(
    not(all(
        feature = "etcd",
        feature = "redis",
        feature = "zookeeper",
        feature = "tls"
    )),
    allow(dead_code, reason = "few stores need all that a URL may say")
)]
mod url;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
/// The client of the ZooKeeper store, for programs that keep other things there
/// too.
#[cfg(feature = "zookeeper")]
pub use zookeeper_client;
