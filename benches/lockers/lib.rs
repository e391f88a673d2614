//! The contestants of the benchmarks, each with the same one method: a critical
//! section on a key.

#[cfg(feature = "databases")]
mod advisory;
mod bare;
#[cfg(feature = "memcached")]
mod bare_memcached;
#[cfg(feature = "databases")]
mod bare_sql;
mod dlock;
#[cfg(feature = "etcd")]
mod etcd_lock;
#[cfg(feature = "etcd")]
mod etcd_mutex;
mod local_mutex;
mod permits;
mod rslock;
#[cfg(feature = "zookeeper")]
mod zookeeper_lock;

use std::future::Future;
use std::time::Duration;

#[cfg(feature = "databases")]
pub use self::advisory::Advisory;
pub use self::bare::Bare;
#[cfg(feature = "memcached")]
pub use self::bare_memcached::BareMemcached;
#[cfg(feature = "databases")]
pub use self::bare_sql::BareSql;
pub use self::dlock::Dlock;
#[cfg(feature = "etcd")]
pub use self::etcd_lock::EtcdLock;
#[cfg(feature = "etcd")]
pub use self::etcd_mutex::EtcdMutex;
pub use self::local_mutex::LocalMutex;
pub use self::permits::Permits;
pub use self::rslock::Rslock;
#[cfg(feature = "zookeeper")]
pub use self::zookeeper_lock::ZooKeeperLock;

/// The lease that every contestant asks for: longer than any run, so that no
/// renewal falls into what is measured.
pub const TTL: Duration = Duration::from_secs(600);

/// A way to run a body under a lock. A clone shares the connection.
///
/// # Panics
///
/// Nothing fails in a benchmark but by a mistake, so every error is a panic.
pub trait Locker: Clone + Send + Sync + 'static {
    /// What the tables call it.
    const NAME: &'static str;

    /// Connects to a server.
    fn connect(url: &str) -> impl Future<Output = Self> + Send;

    /// Takes the lock on `key`, waiting as this contestant does, runs `body`
    /// and gives the lock back.
    fn section<T: Send>(
        &self,
        key: &str,
        body: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send;
}
