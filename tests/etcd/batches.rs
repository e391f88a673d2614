//! Writes of many locks that go to the server together.

use std::time::Duration;

use dlock::{LockError, LockManager};
use dlock_conformance::Store as _;
use tokio::task::JoinSet;

use crate::harness::{connect, places};
use crate::support::etcd::{EtcdServer, Setup, etcd_url};
use crate::support::locks::{all_at_once, free, had, served};
use crate::support::proxy::Proxy;
use crate::support::wait::eventually;
use crate::{EtcdStore, auth};

const LOCKS: usize = 32;

/// While one is on its way, the others gather.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

/// A section of each of these locks at the same time.
async fn sections(manager: &LockManager, keys: &[String]) -> Vec<Result<(), LockError>> {
    all_at_once(keys.iter().map(|key| manager.lock(&**key).run(async {}))).await
}

fn keys(name: &str, number: usize) -> Vec<String> {
    (0..number).map(|each| format!("{name}:{each}")).collect()
}

async fn proposals(server: &EtcdServer) -> u64 {
    let name = "etcd_server_proposals_committed_total";
    server.metric(name, "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_many_locks_are_one_write() {
    let server = EtcdServer::start().await;
    let proxy = Proxy::to(server.port());
    let manager = connect(&etcd_url(&[proxy.port()])).await;
    had(&manager, "warm").await;
    proxy.delay(Some(ON_ITS_WAY));
    let before = proposals(&server).await;
    let done = sections(&manager, &keys("key", LOCKS)).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    // Alone, each of them is two.
    let written = proposals(&server).await - before;
    assert!(written <= LOCKS as u64, "{written} writes");
}

/// All comparisons are made before any write: two that each find nobody ahead would
/// both have the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_one_lock_are_never_written_together() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    had(&manager, "warm").await;
    for round in 0..5 {
        store.proxy.delay(Some(ON_ITS_WAY * 5));
        // Those of the key gather behind them.
        let others = keys("other", 2).into_iter();
        let others: Vec<_> = others
            .map(|key| tokio::spawn(manager.lock(key).run(async {})))
            .collect();
        tokio::time::sleep(ON_ITS_WAY).await;
        let key = format!("key:{round}");
        // Each asks by itself.
        let tries = (0..LOCKS).map(|_| manager.lock(&*key).try_acquire());
        let had: Vec<_> = all_at_once(tries).await;
        store.proxy.delay(None);
        let had = had.into_iter().filter_map(|answer| match answer {
            Err(LockError::Busy { .. }) => None,
            answer => Some(answer.expect("an answer")),
        });
        let had: Vec<_> = had.collect();
        assert!(had.len() <= 1, "{} have it", had.len());
        assert_eq!(places(&store, &key).await.len(), had.len());
        for other in others {
            served(other).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_refused_fails_alone() {
    let server = auth::with_users(Setup::default()).await;
    let own = [
        "user add part:password",
        "role add part",
        "role grant-permission part read dlock/ --prefix",
        "role grant-permission part readwrite dlock/own --prefix",
        "user grant-role part part",
    ];
    for command in own {
        auth::as_root(&server, command).await;
    }
    let proxy = Proxy::to(server.port());
    let url = format!("etcd://part:password@127.0.0.1:{}", proxy.port());
    let manager = connect(&url).await;
    had(&manager, "own").await;
    proxy.delay(Some(ON_ITS_WAY));
    let (own, others) = (keys("own", LOCKS / 2), keys("other", LOCKS / 2));
    let mixed: Vec<_> = own
        .into_iter()
        .zip(others)
        .flat_map(<[_; 2]>::from)
        .collect();
    for (number, done) in sections(&manager, &mixed).await.into_iter().enumerate() {
        match done {
            Ok(()) => assert_eq!(number % 2, 0),
            Err(error) => {
                assert_eq!(number % 2, 1, "{error}");
                assert!(matches!(error, LockError::Config { .. }), "{error}");
                assert!(error.to_string().contains("grant-permission"), "{error}");
            }
        }
    }
}

/// It says so, and so many are not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_few_together_gets_few() {
    let setup = Setup::default().with("--max-txn-ops=10");
    let server = setup.start().await;
    let proxy = Proxy::to(server.port());
    let manager = connect(&etcd_url(&[proxy.port()])).await;
    had(&manager, "warm").await;
    proxy.delay(Some(ON_ITS_WAY));
    let keys = keys("key", LOCKS);
    // A client that does not learn it writes each place alone, and at least one release. On a
    // busy machine, few may have gathered when the first ones leave.
    eventually("few are written together", async || {
        let before = proposals(&server).await;
        let done = sections(&manager, &keys).await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        let written = proposals(&server).await - before;
        (written <= LOCKS as u64).then_some(())
    })
    .await;
}

/// The whole of a message that nobody hears the answer of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_whose_answer_is_lost_are_given_back() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&store.direct()).await;
    had(&manager, "warm").await;
    let keys = keys("key", LOCKS);
    store.proxy.swallow_replies(true);
    for done in sections(&manager, &keys).await {
        let error = done.expect_err("nobody answers");
        assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
    }
    store.proxy.swallow_replies(false);
    for key in &keys {
        free(&judge, key).await;
    }
    let done = sections(&manager, &keys).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// Nor do those whose callers have left while it was on its way, or before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_leaves_nothing() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&store.direct()).await;
    had(&manager, "warm").await;
    let keys = keys("key", LOCKS);
    for leaves_after in [1, 25, 50] {
        store.proxy.delay(Some(ON_ITS_WAY));
        let mut all: JoinSet<_> = keys
            .iter()
            .map(|key| manager.lock(&**key).acquire())
            .collect();
        tokio::time::sleep(Duration::from_millis(leaves_after)).await;
        all.shutdown().await;
        store.proxy.delay(None);
        for key in &keys {
            free(&judge, key).await;
        }
    }
}
