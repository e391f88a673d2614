//! Settings of a backend that is given in code: refused at the start, before
//! anything is connected.

use std::time::Duration;

use dlock_runtime::{Config, LockError, LockManager};

/// Nobody listens there; it is not asked.
macro_rules! refused {
    ($store:ident :: $kind:ident, $url:literal, $setting:ident, [$($value:expr),*]) => {$(
        let store = dlock_runtime::backend::$store::$kind::from_url($url);
        let store = store.expect("a valid URL").$setting($value);
        is_refused(Config::with_backend(store), stringify!($setting)).await;
    )*};
}

async fn is_refused(config: Config, setting: &str) {
    let error = LockManager::connect(config)
        .await
        .expect_err("out of range");
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains(&format!("`{setting}`: ")), "{error}");
    assert!(error.contains("; give a "), "{error}");
}

#[tokio::test]
async fn a_request_timeout_out_of_its_range_is_refused_by_each_store() {
    let day = Duration::from_secs(24 * 60 * 60);
    macro_rules! timeouts {
        ($store:ident :: $kind:ident, $url:literal) => {
            refused!(
                $store::$kind,
                $url,
                request_timeout,
                [
                    Duration::MAX,
                    day + Duration::from_nanos(1),
                    Duration::from_nanos(1),
                    Duration::ZERO
                ]
            );
        };
    }
    #[cfg(feature = "etcd")]
    timeouts!(etcd::Etcd, "etcd://127.0.0.1:1");
    #[cfg(feature = "memcached")]
    timeouts!(memcached::Memcached, "memcached://127.0.0.1:1");
    #[cfg(feature = "redis")]
    timeouts!(redis::Redis, "redis://127.0.0.1:1");
    #[cfg(feature = "redis-redlock")]
    timeouts!(
        redis::Redlock,
        "redis+redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    );
    #[cfg(feature = "redis-cluster")]
    timeouts!(redis::Cluster, "redis+cluster://127.0.0.1:1");
    #[cfg(feature = "mysql")]
    timeouts!(mysql::MySql, "mysql://127.0.0.1:1/db");
    #[cfg(feature = "postgres")]
    timeouts!(postgres::Postgres, "postgres://127.0.0.1:1/db");
    #[cfg(feature = "sqlite")]
    timeouts!(sqlite::Sqlite, "sqlite:/nowhere/locks.db");
    #[cfg(feature = "zookeeper")]
    timeouts!(zookeeper::ZooKeeper, "zookeeper://127.0.0.1:1");
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
#[tokio::test]
async fn no_connections_or_too_many_are_refused() {
    #[cfg(feature = "mysql")]
    refused!(
        mysql::MySql,
        "mysql://127.0.0.1:1/db",
        max_connections,
        [0, 1_001, u32::MAX]
    );
    #[cfg(feature = "postgres")]
    refused!(
        postgres::Postgres,
        "postgres://127.0.0.1:1/db",
        max_connections,
        [0, 1_001, u32::MAX]
    );
}
