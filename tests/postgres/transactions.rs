//! Waiting costs by process, not by waiter: measured from the server's own
//! statistics.

use std::time::{Duration, Instant};

use dlock::backend::postgres::Postgres;
use dlock::backend::{Mode, Request};
use dlock::bare;
use dlock::store::{Attempt, Deadline, Store as _, Take, Want};
use dlock_conformance::{Store as _, process};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::PostgresStore;
use crate::databases::Database as _;
use crate::databases::server::Kind as _;
use crate::kind::PostgreSql;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, had};
use crate::support::wait::{HANG, until};
use crate::tables::{FarTables as _, Tables as _};

const WAITERS: i64 = 100;
const WINDOW: Duration = Duration::from_secs(5);

/// Transactions per second of two processes, one that holds and one that waits:
/// a sign of life with a look each second of the one; of both, whether the tables
/// are to be cleaned every two to three seconds, and now and then a renewal and
/// an echo of the connection that listens.
const BOUND: f64 = 4.0;

/// Asked from another database, and so not counted itself.
async fn transactions(store: &PostgresStore) -> i64 {
    let mut connection = store.server.connection("postgres").await;
    let query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
    let query = sqlx::query_scalar(query).bind(&store.database);
    let done = query.fetch_one(&mut connection).await;
    done.expect("the server's statistics")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_waiters_cost_what_one_costs() {
    let store = PostgresStore::start().await;
    let (holder, other) = (process(&store).await, process(&store).await);
    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        let key = format!("key:{number}");
        held.push(locks::held(holder.lock(&key)).await);
        waiting.spawn(other.lock(key).run(async {}));
    }
    let places = async || {
        let mut connection = store.server.connection(&store.database).await;
        let places = sqlx::query_scalar("SELECT COUNT(*) FROM dlock_queue");
        places.fetch_one(&mut connection).await.expect("the queue")
    };
    until("all wait", places, |&places: &i64| places == WAITERS).await;
    // A connection's share is counted up to ten seconds later, when it is idle.
    let rate = async || {
        let (start, before) = (Instant::now(), transactions(&store).await);
        sleep(WINDOW).await;
        let done = transactions(&store).await - before;
        #[expect(clippy::cast_precision_loss, reason = "it is small")]
        let done = done as f64;
        done / start.elapsed().as_secs_f64()
    };
    // None at all is what a machine that stands still does, for a while.
    let (begun, mut silent) = (Instant::now(), 0);
    loop {
        let rate = rate().await;
        if 0.0 < rate && rate <= BOUND {
            break;
        }
        silent += u32::from(rate == 0.0);
        assert!(silent < 3, "they do not look");
        assert!(begun.elapsed() < HANG, "{rate} transactions a second");
    }
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");
    drop(held);
    locks::all_served(waiting).await;
}

/// What is asked for while other scripts are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_many_are_taken_in_few_transactions() {
    // Few may have gathered when the first ones leave.
    unless_it_stands_still(Duration::from_millis(100), are_taken_in_few).await;
}

async fn are_taken_in_few() {
    const LOCKS: i64 = 40;
    let store = PostgresStore::start().await;
    let manager = process(&store).await;
    locks::had(&manager, "warm").await;
    store.proxy.delay(Some(Duration::from_millis(20)));
    let asked = (0..LOCKS).map(|number| manager.lock(format!("key:{number}")).acquire());
    let held = locks::all_at_once(asked).await;
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    let mut connection = store.server.connection(&store.database).await;
    // Each row says which transaction has written it.
    let written = "SELECT COUNT(*), COUNT(DISTINCT CAST(xmin AS TEXT)) FROM dlock_lock
        WHERE owner <> ''";
    let written = sqlx::query_as(written).fetch_one(&mut connection).await;
    let (rows, transactions): (i64, i64) = written.expect("the table");
    assert_eq!(rows, LOCKS);
    assert!(transactions <= LOCKS / 4, "{transactions} transactions");
}

/// It is taken and given back by what its connection has prepared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_lock_that_was_had_before_is_not_planned_anew() {
    let store = PostgresStore::start().await;
    let manager = process(&store).await;
    let executed = async || {
        had(&manager, "key").await;
        let last = "SELECT COUNT(*) FROM pg_stat_activity
            WHERE datname = current_database() AND query LIKE '%EXECUTE \"dlock_quick_release_%'";
        store.number(last).await
    };
    until("it is prepared", executed, |&executed| executed > 0).await;
}

/// An owner asks again, as its answer was lost, is granted the lock and renews it. What
/// it asked first has waited for the row meanwhile, and takes nothing from the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_late_shortens_no_lease_of_its_owner() {
    // In the server, it waits for its row for a request timeout.
    unless_it_stands_still(Duration::from_secs(1), a_request_comes_late).await;
}

async fn a_request_comes_late() {
    let store = PostgresStore::start().await;
    locks::had(&process(&store).await, "warm").await;
    let bare = bare::open(Postgres::from_url(&store.url()).expect("a valid URL")).await;
    let bare = bare.expect("our own server");
    let mut keeper = store.keep_new("key").await;
    let request = Request::new("key", Mode::Write, Duration::from_secs(2));
    let mut notes = Default::default();
    let attempt = Attempt::new(Deadline::after(HANG), &mut notes);
    let first = bare.store.take(&request, Want::First, attempt);
    let renewed = async {
        let waiting = async || store.number(PostgreSql::WAITING).await;
        until("it waits for the row", waiting, |&waiting| waiting > 0).await;
        let renew = format!(
            "UPDATE dlock_lock SET owner = '{}', token = 128, expires_at = {} + 60000
                WHERE name = 'key'; COMMIT",
            request.owner,
            PostgreSql::NOW
        );
        PostgreSql::run(&mut keeper, &renew)
            .await
            .expect("our own row");
    };
    let (taken, ()) = tokio::join!(first, renewed);
    assert!(matches!(taken, Ok(Take::Granted(_))), "it is its own");
    let left = format!(
        "SELECT expires_at - {} FROM dlock_lock WHERE name = 'key'",
        PostgreSql::NOW
    );
    let left = store.number(&left).await;
    assert!(left > 10_000, "{left} ms are left");
}
