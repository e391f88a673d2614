//! Store URLs: the scheme names the store, the store reads the rest.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::error::LockError;

/// A URL whose scheme is known and whose feature is on.
#[derive(Clone)]
pub(crate) enum StoreUrl {
    Memory,
    #[cfg(feature = "etcd")]
    Etcd(Box<crate::stores::etcd::Etcd>),
    #[cfg(feature = "memcached")]
    Memcached(Box<crate::stores::memcached::Memcached>),
    #[cfg(feature = "redis")]
    Redis(Box<crate::stores::redis::Redis>),
    #[cfg(feature = "redis")]
    Redlock(Box<crate::stores::redis::Redlock>),
    #[cfg(feature = "redis")]
    Cluster(Box<crate::stores::redis::Cluster>),
    #[cfg(feature = "mysql")]
    MySql(Box<crate::stores::mysql::MySql>),
    #[cfg(feature = "postgres")]
    Postgres(Box<crate::stores::postgres::Postgres>),
    #[cfg(feature = "sqlite")]
    Sqlite(Box<crate::stores::sqlite::Sqlite>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<crate::stores::zookeeper::ZooKeeper>),
}

/// Every scheme that dlock knows, and the feature it needs.
const SCHEMES: &[(&str, &str)] = &[
    ("etcd", "etcd"),
    ("etcds", "etcd"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+sentinel", "redis"),
    ("redis+redlock", "redis"),
    ("rediss+redlock", "redis"),
    ("redis+cluster", "redis"),
    ("rediss+cluster", "redis"),
    ("memcached", "memcached"),
    ("mysql", "mysql"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("sqlite", "sqlite"),
    ("zookeeper", "zookeeper"),
    ("zookeeper+tls", "zookeeper"),
];

impl StoreUrl {
    /// `setting` is where the URL comes from, for messages. They never show
    /// the URL itself, which may hold a password.
    pub(crate) fn parse(setting: &'static str, url: &str) -> Result<Self, LockError> {
        // What a file or a shell has put around it.
        let Some((scheme, rest)) = url.trim().split_once(':') else {
            return Err(LockError::config(
                setting,
                "not a URL; write for example redis://127.0.0.1:6379 or memory:",
            ));
        };
        let scheme = &*scheme.to_ascii_lowercase();
        #[cfg(any(
            feature = "etcd",
            feature = "memcached",
            feature = "redis",
            feature = "sqlx",
            feature = "zookeeper"
        ))]
        let url = &*format!("{scheme}:{rest}");
        #[cfg(any(
            feature = "etcd",
            feature = "memcached",
            feature = "redis",
            feature = "sqlx",
            feature = "zookeeper"
        ))]
        let invalid = |error: crate::backend::BackendError| LockError::Config {
            setting: setting.to_owned(),
            reason: error.to_string(),
            source: Some(Arc::new(error)),
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(LockError::config(
                setting,
                "`memory:` takes nothing behind the colon",
            )),
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => {
                let store = crate::stores::etcd::Etcd::from_url(url);
                Ok(Self::Etcd(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "memcached")]
            "memcached" => {
                let store = crate::stores::memcached::Memcached::from_url(url);
                Ok(Self::Memcached(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" => {
                let store = crate::stores::redis::Redis::from_url(url);
                Ok(Self::Redis(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "redis")]
            "redis+redlock" | "rediss+redlock" => {
                let store = crate::stores::redis::Redlock::from_url(url);
                Ok(Self::Redlock(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "redis")]
            "redis+cluster" | "rediss+cluster" => {
                let store = crate::stores::redis::Cluster::from_url(url);
                Ok(Self::Cluster(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let store = crate::stores::mysql::MySql::from_url(url);
                Ok(Self::MySql(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let store = crate::stores::postgres::Postgres::from_url(url);
                Ok(Self::Postgres(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let store = crate::stores::sqlite::Sqlite::from_url(url);
                Ok(Self::Sqlite(Box::new(store.map_err(invalid)?)))
            }
            #[cfg(feature = "zookeeper")]
            "zookeeper" | "zookeeper+tls" => {
                let store = crate::stores::zookeeper::ZooKeeper::from_url(url);
                Ok(Self::ZooKeeper(Box::new(store.map_err(invalid)?)))
            }
            _ => Err(LockError::config(setting, refuse(scheme, rest))),
        }
    }
}

fn refuse(scheme: &str, rest: &str) -> String {
    if let Some((_, feature)) = SCHEMES.iter().find(|(known, _)| *known == scheme) {
        let building = match *feature {
            "etcd" => " (building it takes `protoc`, on Debian the package protobuf-compiler)",
            _ => "",
        };
        return format!(
            "`{scheme}:` needs the cargo feature `{feature}`; turn it on: \
             dlock = {{ …, features = [\"{feature}\"] }}{building}"
        );
    }
    let known: Vec<_> = std::iter::once("memory:".to_owned())
        .chain(SCHEMES.iter().map(|(scheme, _)| format!("{scheme}://")))
        .collect();
    let known = known.join(", ");
    if is_port(rest) {
        let meant = if is_host(scheme) {
            format!("did you mean redis://{scheme}:{rest}")
        } else {
            "did you mean redis:// and then the host".to_owned()
        };
        return format!("it has no scheme; {meant}? dlock knows {known}");
    }
    // What stands before the colon may be a password if the scheme is missing.
    format!("its scheme is unknown; dlock knows {known}")
}

/// Whether this is what comes behind a host, `6379` or `6379/0`.
fn is_port(rest: &str) -> bool {
    let (port, database) = rest.split_once('/').unwrap_or((rest, ""));
    port.parse::<u16>().is_ok() && database.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether this is surely a host, and no password.
fn is_host(text: &str) -> bool {
    text == "localhost" || text.parse::<std::net::Ipv4Addr>().is_ok()
}

impl StoreUrl {
    /// The store behind the URL, not yet connected.
    #[cfg_attr(
        not(any(
            feature = "etcd",
            feature = "memcached",
            feature = "redis",
            feature = "sqlx",
            feature = "zookeeper"
        )),
        expect(unused_variables)
    )]
    pub(crate) fn backend(self, request_timeout: Duration) -> Arc<dyn Backend> {
        match self {
            Self::Memory => Arc::new(crate::stores::memory::Memory::new()),
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "memcached")]
            Self::Memcached(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "redis")]
            Self::Redlock(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "redis")]
            Self::Cluster(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "mysql")]
            Self::MySql(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => Arc::new(store.request_timeout(request_timeout)),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(store) => Arc::new(store.request_timeout(request_timeout)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "memcached")]
            Self::Memcached(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "redis")]
            Self::Redis(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "redis")]
            Self::Redlock(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "redis")]
            Self::Cluster(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "mysql")]
            Self::MySql(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => fmt::Debug::fmt(store, f),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(store) => fmt::Debug::fmt(store, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        let error = StoreUrl::parse("store URL", url).expect_err("no such store");
        assert!(
            matches!(error, LockError::Config { .. }),
            "{url}: {error:?}"
        );
        error.to_string()
    }

    #[test]
    fn what_is_around_the_url_and_the_case_of_its_scheme_make_no_difference() {
        for url in [" memory:", "memory:\n", "MEMORY:", "Memory: "] {
            let store = StoreUrl::parse("store URL", url).expect(url);
            assert_eq!(format!("{store:?}"), "memory:");
        }
        #[cfg(feature = "redis")]
        for url in ["\tREDIS://User@Host:1/2\r\n", "Redis://User@Host:1/2"] {
            let store = StoreUrl::parse("store URL", url).expect(url);
            let plain = StoreUrl::parse("store URL", "redis://User@Host:1/2").expect("plain");
            assert_eq!(format!("{store:?}"), format!("{plain:?}"));
        }
    }

    #[test]
    fn a_host_without_a_scheme_is_told_the_scheme() {
        for url in ["localhost:6379", "127.0.0.1:6380/3", " LOCALHOST:6379 "] {
            let meant = format!("did you mean redis://{}?", url.trim().to_lowercase());
            let error = refusal(url);
            assert!(error.contains(&meant), "{error}");
        }
        // It may be a host, or a password.
        let error = refusal("hunter2:6379");
        assert!(error.contains("redis:// and then the host"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        for url in [
            "hunter2:",
            "hunter2:host",
            "hunter2:6379/a",
            "hunter2:99999",
        ] {
            let error = refusal(url);
            assert!(error.contains("its scheme is unknown"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
