//! What tokens are worth, by the settings of the server; they may change while
//! it runs, and are looked at by each new connection.

use dlock::backend::TokenTier;
use dlock::{LockError, LockManager};

use crate::support::documented::acl_commands;
use crate::support::locks::{config, connect, had, is_unsupported};
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::{HANG, eventually, until, within};

async fn durable() -> RedisServer {
    Setup::default().append_only().start().await
}

/// Every connection of every manager breaks, and is made anew.
async fn connections_are_made_anew(server: &RedisServer) {
    for kind in ["normal", "pubsub"] {
        let words = ["CLIENT", "KILL", "TYPE", kind];
        server.command::<u32>(&words).await;
    }
}

async fn fenced(manager: &LockManager) -> Result<(), LockError> {
    within(HANG, manager.lock("key").fenced(true).run(async {})).await
}

/// From the next lock on, and other locks go on. The one that found it out is
/// given back.
async fn is_refused(manager: &LockManager) {
    is_unsupported(fenced(manager).await);
    assert_eq!(manager.capabilities().tokens, TokenTier::BestEffort);
    had(manager, "key").await;
}

#[tokio::test]
async fn a_setting_that_changes_is_found_by_the_next_connection() {
    let server = durable().await;
    let manager = connect(config(&server.url())).await;
    fenced(&manager).await.expect("the lock");
    let set = async |name: &str, value: &str| {
        server.command::<()>(&["CONFIG", "SET", name, value]).await;
        connections_are_made_anew(&server).await;
    };
    set("maxmemory", "100mb").await;
    fenced(&manager).await.expect("the lock");
    for (name, weak, strict) in [
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "volatile-lru"),
        ("appendonly", "no", "yes"),
    ] {
        set(name, weak).await;
        is_refused(&manager).await;
        set(name, strict).await;
        // Whatever looks first: without a look, nothing changes.
        had(&manager, "key").await;
        fenced(&manager).await.expect("the lock");
    }
}

/// A replica may take the place of its master, without the last tokens.
#[tokio::test]
async fn a_server_with_a_replica_may_be_replaced() {
    let server = durable().await;
    let manager = connect(config(&server.url())).await;
    fenced(&manager).await.expect("the lock");
    let replica = Setup::default()
        .append_only()
        .replica_of(server.port())
        .start()
        .await;
    let role = async || server.command::<Vec<redis::Value>>(&["ROLE"]).await;
    let none = redis::Value::Array(Vec::new());
    until("it has a replica", role, |role| role.get(2) != Some(&none)).await;
    connections_are_made_anew(&server).await;
    is_refused(&manager).await;
    drop(replica);
}

/// Started again without its file, it is refused by the very lock for which the
/// connection was made.
#[tokio::test]
async fn a_server_that_is_started_with_other_settings_is_found_out() {
    let mut server = durable().await;
    let manager = connect(config(&server.url()).fenced(true)).await;
    let run = async || within(HANG, manager.lock("key").run(async {})).await;
    run().await.expect("the lock");
    server.restart_forgetful().await;
    let error = eventually("it answers again", async || match run().await {
        Err(LockError::Unavailable { .. }) => None,
        answer => Some(answer),
    })
    .await
    .expect_err("tokens that may go back");
    assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
    let locks = async || manager.list("").await.expect("list");
    until("it was given back", locks, Vec::is_empty).await;
}

/// What cannot be read is not taken for granted.
#[tokio::test]
async fn what_is_not_told_is_best_effort() {
    let server = durable().await;
    for command in acl_commands(include_str!("../../docs/stores/redis.md")) {
        server.command::<()>(&command).await;
    }
    let url = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    let tokens = async || connect(config(&url)).await.capabilities().tokens;
    assert_eq!(tokens().await, TokenTier::Strict, "as documented");
    for right in ["config|get", "role"] {
        let (takes, gives) = (format!("-{right}"), format!("+{right}"));
        for (change, tier) in [(&takes, TokenTier::BestEffort), (&gives, TokenTier::Strict)] {
            server
                .command::<()>(&["ACL", "SETUSER", "dlock", change])
                .await;
            assert_eq!(tokens().await, tier, "{change}");
        }
    }
    let renamed = Setup::default()
        .append_only()
        .without(&["CONFIG"])
        .start()
        .await;
    let manager = connect(config(&renamed.url())).await;
    is_refused(&manager).await;
}
