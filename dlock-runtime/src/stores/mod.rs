//! The stores, each a folder of its own, and what several of them have.

/// What is the same of every public backend that is an engine by another name.
#[cfg(any(feature = "url", feature = "sqlx"))]
macro_rules! driven {
    ($backend:ident $(<$kind:ident: $bound:ident>)?, $store:ty) => {
        impl$(<$kind: $bound>)? $backend$(<$kind>)? {
            fn over(config: <$store as crate::store::Store>::Config) -> Self {
                Self {
                    engine: Engine::new(config),
                }
            }

            /// How long an operation waits for the servers in all, 5 seconds by
            /// default: an outage is reported after this time.
            /// From a millisecond to 24 hours, or it is refused at the start.
            #[must_use]
            pub fn request_timeout(mut self, timeout: std::time::Duration) -> Self {
                self.engine = self.engine.request_timeout(timeout);
                self
            }
        }

        impl$(<$kind: $bound>)? std::fmt::Debug for $backend$(<$kind>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.engine.describe(stringify!($backend), f)
            }
        }

        impl$(<$kind: $bound>)? crate::engine::Driven for $backend$(<$kind>)? {
            type Store = $store;

            fn engine(&self) -> &Engine<$store> {
                &self.engine
            }
        }
    };
}

#[cfg(feature = "servers")]
mod address;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", feature = "sqlx"))]
mod gathering;
#[cfg(any(feature = "servers", feature = "sqlx"))]
mod meaning;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod memory;
#[cfg(any(feature = "memcached", feature = "redis"))]
mod per_runtime;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "memcached",
    feature = "zookeeper"
))]
mod since;
#[cfg(feature = "sqlx")]
mod sql;
#[cfg(any(feature = "redis", feature = "sqlx"))]
mod stored_owner;
#[cfg(feature = "sqlx")]
pub use self::sql::Sql;
#[cfg(feature = "mysql")]
pub use self::sql::mysql;
#[cfg(feature = "postgres")]
pub use self::sql::postgres;
#[cfg(feature = "sqlite")]
pub use self::sql::sqlite;
#[cfg(feature = "url")]
mod url;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
