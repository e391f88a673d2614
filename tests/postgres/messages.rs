//! What wakes a waiter.

use std::time::Duration;

use dlock_conformance::Store as _;
use sqlx::postgres::PgListener;
use tokio::time::sleep;

use crate::PostgresStore;
use crate::support::locks::{all_served, connect, had, held, is_busy, queued};
use crate::support::wait::{HANG, eventually, until, within};
use crate::tables::Tables as _;
use crate::tables::permits::wait_there;

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
        listed.iter().filter_map(|lock| lock.waiters).sum()
    };
    until("all wait", waiters, |&waiting| waiting == 50).await;
    // One that is late to hear of itself listens anew.
    both_listen(&store).await;
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

/// There is not room for all who wait for permits: those are told for whom there is, each
/// by itself.
#[tokio::test]
async fn a_permit_tells_those_who_fit() {
    let store = PostgresStore::start().await;
    let manager = connect(store.config()).await;
    let permits = || manager.lock("key").permits(5);
    let first = held(permits()).await;
    let url = store.server.url(&store.database, store.server.port());
    let mut there = PgListener::connect(&url).await.expect("a connection");
    there.listen("dlock_there").await.expect("it listens");
    let mut heard = async || {
        let end = "SELECT pg_notify('dlock_there', 'that is all')";
        store.server.run(&store.database, end).await;
        let mut heard = Vec::new();
        loop {
            let message = within(HANG, there.recv()).await.expect("a message");
            match message.payload() {
                "that is all" => return heard,
                payload => heard.push(payload.replace('\t', " of ")),
            }
        }
    };
    wait_there(
        &store,
        &[("1.1/5", 'p'), ("1.2/5", 'p'), ("1.3/5", 'p'), ("1.4", 'r')],
    )
    .await;
    assert!(heard().await.is_empty());
    // Who has no place has to leave room for all of them.
    is_busy(permits().try_acquire().await);
    assert!(heard().await.is_empty());
    let gone = "DELETE FROM dlock_queue WHERE ticket = 1";
    assert_eq!(store.execute(gone).await, 1);
    let second = permits().try_acquire().await.expect("there is room");
    assert_eq!(heard().await, ["1.2/5 of key", "1.3/5 of key"]);
    // Of those who are let in the first goes, and tells the others.
    first.release().await.expect("the release");
    assert_eq!(heard().await, ["1.2/5 of key"]);
    let gone = "DELETE FROM dlock_queue WHERE mode = 'p'";
    assert_eq!(store.execute(gone).await, 2);
    second.release().await.expect("the release");
    let mut heard = heard().await;
    // Who cleans the tables meanwhile says so once more.
    heard.dedup();
    assert_eq!(heard, ["key"]);
}

/// Its place is written, and is not to be seen yet, when the statement that gives the lock back
/// begins and waits for the row.
#[tokio::test]
async fn who_comes_during_a_release_is_told() {
    let store = PostgresStore::start().await;
    let manager = connect(store.config()).await;
    let url = store.server.url(&store.database, store.server.port());
    let mut there = PgListener::connect(&url).await.expect("a connection");
    there.listen("dlock_there").await.expect("it listens");
    had(&manager, "key").await;
    // Nobody cleans the tables, which would tell it too, later.
    let mut keeper = store.server.connection(&store.database).await;
    let keep = "BEGIN; SELECT 1 FROM dlock_meta FOR UPDATE";
    let keep = sqlx::Executor::execute(&mut keeper, sqlx::raw_sql(keep));
    keep.await.expect("the row");
    for waited in [false, true].repeat(5) {
        had(&manager, "key").await;
        let guard = held(manager.lock("key")).await;
        if waited {
            // Who has left, and whose place was not removed.
            store
                .execute("UPDATE dlock_lock SET waited = 1 WHERE name = 'key'")
                .await;
        }
        let mut comes = store.server.connection(&store.database).await;
        let place = format!(
            "BEGIN; UPDATE dlock_lock SET waited = 1 WHERE name = 'key';
             INSERT INTO dlock_process (process, alive_until) VALUES ('there', {} + 600000)
                 ON CONFLICT DO NOTHING;
             INSERT INTO dlock_queue (name, ticket, owner, mode, process)
                 VALUES ('key', 1, '1.1', 'w', 'there')",
            PostgresStore::NOW
        );
        sqlx::Executor::execute(&mut comes, sqlx::raw_sql(&place))
            .await
            .expect("a place");
        let release = tokio::spawn(guard.release());
        // Long enough for the statement to come, and shorter than it waits. If the machine is
        // slower, the script is run.
        sleep(Duration::from_millis(40)).await;
        sqlx::Executor::execute(&mut comes, sqlx::raw_sql("COMMIT"))
            .await
            .expect("commit");
        release.await.expect("no panic").expect("it was held");
        let message = within(HANG, there.recv()).await.expect("a message");
        assert_eq!(message.payload(), "key");
        store.execute("DELETE FROM dlock_queue").await;
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
        let next = within(Duration::from_secs(60), waiting).await;
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

/// As the server lists them.
#[tokio::test]
async fn connections_bear_the_label() {
    let store = PostgresStore::start().await;
    let manager = connect(store.config().label("orders")).await;
    had(&manager, "key").await;
    let query = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'orders'";
    let mut connection = store.connection().await;
    let named: i64 = sqlx::query_scalar(query)
        .fetch_one(&mut connection)
        .await
        .expect("the server's list");
    assert!(named > 0);
}
