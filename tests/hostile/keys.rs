//! Any text in the place of a key or a namespace.

use dlock::{Config, LockError, LockManager, MAX_KEY_BYTES};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;

use crate::databases::server::{Kind, Server};
use crate::mysql::MariaDb;
use crate::postgres::PostgreSql;
use crate::property::{holds_within, is_plain};
use crate::support::dir::TempDir;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{config, connect};
use crate::support::memcached::MemcachedServer;
use crate::support::redis::RedisServer;
use crate::support::wait::HANG;
use crate::support::zookeeper::ZooKeeperServer;

/// What a store, a shell or a log could take for something else.
const PIECES: &[&str] = &[
    "a",
    "A",
    "é",
    "e\u{301}",
    " ",
    "  ",
    "{",
    "}",
    "{}",
    "%",
    "%2F",
    "%25",
    "/",
    "//",
    ".",
    "..",
    ":",
    "::",
    "*",
    "?",
    "[a]",
    "\\",
    "'",
    "\"",
    "`",
    "$key",
    "$1",
    ";",
    "--",
    "\u{202e}",
    "\u{2028}",
    "\u{a0}",
    "\u{feff}",
    "\u{fffd}",
    "ß",
    "ss",
    "ı",
    "I",
    ":queue",
    ":readers",
    "dlock:",
    "token",
    "-lease-",
    "lock-",
    "0000000001",
    "read-",
    "\u{1f512}",
    "?",
    "+",
    "<",
    ">",
];

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => select(PIECES).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ]
}

fn text(pieces: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    vec(piece(), pieces).prop_map(|pieces| pieces.concat())
}

/// Some are too long.
fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => text(0..8),
        1 => (text(1..4), 1..200_usize).prop_map(|(text, times)| text.repeat(times)),
    ]
}

#[test]
fn any_text_is_a_key_or_refused() {
    holds_within(
        HANG,
        300,
        (any_key(), any_key()),
        async |(namespace, key)| {
            let config = Config::default().namespace(&*namespace).ttl(HANG);
            let manager = match LockManager::connect(config).await {
                Ok(manager) => manager,
                Err(error) => {
                    let names_it = matches!(&error, LockError::Config { setting, .. } if setting == "namespace");
                    prop_assert!(names_it, "{}", error);
                    return is_plain(&error);
                }
            };
            match manager.lock(&*key).try_acquire().await {
                Ok(guard) => {
                    prop_assert_eq!(guard.key().first(), &*key);
                    let listed = manager.list("").await.expect("memory");
                    prop_assert_eq!(&listed[0].key, &key);
                }
                Err(error) => {
                    let wrong = key.is_empty() || key.contains(char::is_control);
                    prop_assert!(wrong || namespace.len() + key.len() + 1 > MAX_KEY_BYTES / 3);
                    prop_assert!(matches!(error, LockError::InvalidKey { .. }), "{:?}", error);
                    is_plain(&error)?;
                }
            }
            Ok(())
        },
    );
}

/// Keys that a store could take for one another, or for something of its own.
async fn are_kept_apart(url: &str, keys: &[String]) -> TestCaseResult {
    let patient = |url| connect(config(url).request_timeout(HANG));
    let (manager, other) = (patient(url).await, patient(url).await);
    let most = manager.capabilities().max_key_bytes;
    let mut names: Vec<_> = keys
        .iter()
        .filter(|key| !key.is_empty() && key.len() <= most && !key.contains(char::is_control))
        .collect();
    names.sort();
    names.dedup();
    let mut guards = Vec::new();
    for name in &names {
        let had = manager.lock(name.as_str()).try_acquire().await;
        guards.push(had.map_err(|error| TestCaseError::fail(format!("{name:?}: {error}")))?);
    }
    let listed = other.list("").await;
    let listed = listed.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let mut listed: Vec<_> = listed.iter().map(|lock| &lock.key).collect();
    listed.sort();
    prop_assert_eq!(&listed, &names);
    for name in &names {
        let busy = other.lock(name.as_str()).try_acquire().await;
        prop_assert!(
            matches!(busy, Err(LockError::Busy { .. })),
            "{:?}: {:?}",
            name,
            busy
        );
    }
    for guard in guards {
        let released = guard.release().await;
        released.map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
    let left = other.list("").await;
    prop_assert_eq!(left.map(|left| left.len()).ok(), Some(0));
    Ok(())
}

fn keys() -> impl Strategy<Value = Vec<String>> {
    vec(text(1..4), 1..8)
}

#[test]
fn redis_keeps_keys_apart() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(RedisServer::start());
    let url = server.url();
    holds_within(HANG, 10, keys(), async |keys| {
        are_kept_apart(&url, &keys).await
    });
}

#[test]
fn memcached_keeps_keys_apart() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(MemcachedServer::start());
    let url = server.url();
    holds_within(HANG, 10, keys(), async |keys| {
        are_kept_apart(&url, &keys).await
    });
}

#[test]
fn sqlite_keeps_keys_apart() {
    let dir = TempDir::default();
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());
    holds_within(HANG, 10, keys(), async |keys| {
        are_kept_apart(&url, &keys).await
    });
}

#[test]
fn etcd_keeps_keys_apart() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(EtcdServer::start());
    let url = etcd_url(&[server.port()]);
    holds_within(HANG, 10, keys(), async |keys| {
        are_kept_apart(&url, &keys).await
    });
}

#[test]
fn zookeeper_keeps_keys_apart() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(ZooKeeperServer::shared());
    let url = format!("zookeeper://127.0.0.1:{}/keys", server.port());
    holds_within(HANG, 10, keys(), async |keys| {
        are_kept_apart(&url, &keys).await
    });
}

fn a_database_keeps_keys_apart<D: Kind>() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (server, database) = runtime.block_on(async {
        let server = Server::<D>::shared().await;
        let database = server.database().await;
        (server, database)
    });
    let url = server.url(&database, server.port()) + "?create_tables=true";
    holds_within(HANG, 10, keys(), async |keys| {
        are_kept_apart(&url, &keys).await
    });
}

#[test]
fn postgres_keeps_keys_apart() {
    a_database_keeps_keys_apart::<PostgreSql>();
}

#[test]
fn mysql_keeps_keys_apart() {
    a_database_keeps_keys_apart::<MariaDb>();
}
