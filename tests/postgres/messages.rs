//! What wakes a waiter.

use std::time::Duration;

use dlock::backend::sqlx;
use dlock_conformance::Store as _;

use crate::PostgresStore;
use crate::support::locks::{all_served, connect, held, queued};
use crate::support::wait::{eventually, until, within};

/// Waits until each of two processes listens.
async fn both_listen(store: &PostgresStore) {
    let those = async || those_who_listen(store).await;
    until("each listens", those, |those| those.len() == 2).await;
}

/// Their processes at the server.
async fn those_who_listen(store: &PostgresStore) -> Vec<i32> {
    let mut connection = store.server.connection(&store.database).await;
    let query = "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND query LIKE 'LISTEN%'";
    let query = sqlx::query_scalar(query).bind(&store.database);
    let those = query.fetch_all(&mut connection).await;
    those.expect("the server's statistics")
}

/// However many locks are waited for, one connection of a process listens, and
/// none is taken up by who holds or waits.
#[tokio::test]
async fn one_connection_of_a_process_listens() {
    let store = PostgresStore::start().await;
    let (holder, other) = (connect(store.config()).await, connect(store.config()).await);
    both_listen(&store).await;
    let mut guards = Vec::new();
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..50 {
        let key = format!("key:{number}");
        guards.push(held(holder.lock(&key)).await);
        waiting.spawn(other.lock(&key).acquire());
    }
    let waiters = async || -> usize {
        let listed = holder.list("").await.expect("list");
        listed.iter().map(|lock| lock.waiters).sum()
    };
    until("all wait", waiters, |&waiting| waiting == 50).await;
    assert_eq!(those_who_listen(&store).await.len(), 2);
    let mut connection = store.server.connection(&store.database).await;
    let busy = async || -> i64 {
        sqlx::query_scalar(
            "SELECT COUNT(*) FROM pg_stat_activity
             WHERE datname = $1 AND state <> 'idle' AND pid <> pg_backend_pid()",
        )
        .bind(&store.database)
        .fetch_one(&mut connection)
        .await
        .expect("the server's statistics")
    };
    until("nobody is busy", busy, |&busy| busy == 0).await;
    drop(guards);
    for guard in all_served(waiting).await {
        guard.release().await.expect("the release");
    }
}

/// A listening connection that was closed is made anew, and what was said
/// meanwhile costs a second look.
#[tokio::test]
async fn a_lost_message_costs_a_second_look() {
    let store = PostgresStore::start().await;
    let (holder, other) = (connect(store.config()).await, connect(store.config()).await);
    for _ in 0..3 {
        let guard = held(holder.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").acquire());
        queued(&holder, "key", 1).await;
        let kill = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = '{}' AND pid <> pg_backend_pid()",
            store.database
        );
        store.server.run(&store.database, &kill).await;
        eventually("it is given back", async || {
            let seen = holder.inspect("key").await.ok()?;
            seen.filter(|_| guard.is_held())
        })
        .await;
        guard.release().await.expect("the release");
        let next = within(Duration::from_secs(20), waiting).await;
        let next = next.expect("no panic").expect("the lock");
        next.release().await.expect("the release");
    }
    both_listen(&store).await;
}

/// A firewall has forgotten the connections that were idle: those who listen
/// find out, and listen again.
#[tokio::test]
async fn a_silent_connection_is_noticed() {
    let store = PostgresStore::start().await;
    let manager = connect(store.config()).await;
    let those = async || those_who_listen(&store).await;
    let before = until("it listens", those, |those| those.len() == 1).await;
    store.proxy.freeze();
    // The server may have the other still.
    let is_new = |those: &Vec<i32>| those.iter().any(|one| !before.contains(one));
    until("it listens again", those, is_new).await;
    drop(manager);
}
