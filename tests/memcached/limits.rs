//! What a store that does not answer may cost: connections and time.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlock::backend::memcached::Memcached;
use dlock::backend::{Backend, Mode, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, held};
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::polls::join_all;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, eventually, until, within};
use crate::{TTL, lock_name};

/// So many connections one runtime has.
const CONNECTIONS: usize = 16;

/// Who gives up while a connection is made leaves it to the next one: there are
/// no more of them than the limit, and none is made for nothing. Asked of the
/// store itself: a manager makes more, to see what answers there.
#[tokio::test]
async fn those_who_give_up_do_not_pile_up_connections() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let store = Memcached::from_url(&memcached_url(proxy.port())).expect("a valid URL");
    let store = store.request_timeout(HANG);
    within(HANG, store.start()).await.expect("a connection");
    proxy.stall(true);
    let before = proxy.accepted();
    for round in 0..10 {
        let requests: Vec<_> = (0..CONNECTIONS)
            .map(|number| Request::new(format!("key:{round}:{number}"), Mode::Write, TTL))
            .collect();
        let limit = Duration::from_millis(20);
        let asked = requests
            .iter()
            .map(|request| Box::pin(timeout(limit, store.acquire(request))));
        for answer in join_all(asked).await {
            answer.map(drop).expect_err("a store that does not answer");
        }
    }
    proxy.stall(false);
    let made = accepted(&proxy).await - before - 1;
    assert!((1..=CONNECTIONS).contains(&made), "{made} connections");
    let request = Request::new("key", Mode::Write, TTL);
    let grant = within(HANG, store.try_acquire(&request)).await;
    grant.expect("an answer").expect("a free lock");
    assert_eq!(accepted(&proxy).await - before - 2, made);
    within(HANG, store.stop()).await;
}

/// How many have connected by now, and this one. They are accepted in turn, and one who has
/// connected may not have been yet.
async fn accepted(proxy: &Proxy) -> usize {
    let asks = async {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
        stream.write_all(b"version\r\n").await?;
        stream.read_u8().await
    };
    within(HANG, asks).await.expect("our own memcached");
    proxy.accepted()
}

/// A connection that a firewall has forgotten: the renewal finds out in time to
/// ask over another, however long the request timeout.
#[tokio::test]
async fn a_dead_connection_costs_no_lease() {
    let server = MemcachedServer::start().await;
    let is_kept = async || {
        let proxy = Proxy::to(server.port());
        let manager = connect(config(&memcached_url(proxy.port())).request_timeout(HANG)).await;
        let guard = held(manager.lock("key").ttl(TTL)).await;
        proxy.freeze();
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        assert!(guard.is_held());
    };
    unless_it_stands_still(TTL / 8, is_kept).await;
}

/// However many leases are renewed together: the request timeout is that of all
/// of them, and not of as many as there are connections.
#[tokio::test]
async fn many_renewals_take_no_longer_than_one() {
    const LEASES: usize = 20 * CONNECTIONS;
    const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let store = Memcached::from_url(&memcached_url(proxy.port())).expect("a valid URL");
    let store = store.request_timeout(REQUEST_TIMEOUT);
    // In so little time, a busy server may not have answered, here and below.
    eventually("a connection", async || store.start().await.ok()).await;
    let mut requests = Vec::new();
    for number in 0..LEASES {
        let granted = eventually("the lock is had", async || {
            let request = Request::new(format!("key:{number}"), Mode::Write, 20 * HANG);
            let grant = store.try_acquire(&request).await.ok()?;
            grant.map(|_| request)
        });
        requests.push(granted.await);
    }
    let renewed = async || within(HANG, store.renew(&requests)).await;
    until("all are renewed", renewed, |answers| {
        answers.iter().all(Result::is_ok)
    })
    .await;
    proxy.stall(true);
    unless_it_stands_still(REQUEST_TIMEOUT, async || {
        let start = Instant::now();
        let answers = renewed().await;
        let took = start.elapsed();
        assert_eq!(answers.len(), LEASES);
        assert!(answers.iter().all(Result::is_err), "{answers:?}");
        assert!(took < 10 * REQUEST_TIMEOUT, "{took:?}");
    })
    .await;
}

/// Of many locks the first few are read, however many there are.
#[tokio::test]
async fn a_list_of_the_first_reads_no_others() {
    const LOCKS: usize = 40;
    const MOST: usize = 5;
    let server = MemcachedServer::start().await;
    let manager = connect(config(&server.url())).await;
    let ttl = Duration::from_secs(600);
    let keys: Vec<_> = (0..LOCKS).map(|number| format!("k{number:02}")).collect();
    let names: Vec<_> = keys.iter().map(String::as_str).collect();
    let _held = held(manager.lock(names.clone()).ttl(ttl)).await;
    let before = server.stat("cmd_get") + server.stat("get_hits");
    let listed = manager.list_some("", MOST).await.expect("a list");
    let reads = server.stat("cmd_get") + server.stat("get_hits") - before;
    assert_eq!(listed.others, LOCKS - MOST);
    let shown: Vec<_> = listed.locks.iter().map(|lock| &*lock.key).collect();
    assert_eq!(shown, names[..MOST]);
    // Each is counted once as asked for, and once as found.
    assert_eq!(reads, 2 * u64::try_from(MOST).expect("few"));
}

/// Many wait for a lock, and look at it all the time: it is in every list. (What the server itself
/// calls a walk through all items skips those that are read at that moment.)
#[tokio::test]
async fn a_lock_that_is_looked_at_all_the_time_is_listed() {
    const READERS: usize = 3;
    const LISTS: usize = 20;
    let server = MemcachedServer::start().await;
    let manager = connect(config(&server.url())).await;
    let guard = held(manager.lock("key").ttl(Duration::from_secs(600))).await;
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (over, port) = (Arc::clone(&over), server.port());
            std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
                let mut answer = [0; 256];
                while !over.load(Relaxed) {
                    stream.write_all(format!("mg {} v t\r\n", lock_name("key")).as_bytes())?;
                    if stream.read(&mut answer)? == 0 {
                        break;
                    }
                }
                io::Result::Ok(())
            })
        })
        .collect();
    let mut missed = 0;
    for _ in 0..LISTS {
        let listed = manager.list("").await.expect("a list");
        missed += usize::from(listed.is_empty());
    }
    over.store(true, Relaxed);
    for reader in readers {
        reader.join().expect("a reader").expect("our own memcached");
    }
    assert_eq!(missed, 0, "of {LISTS} lists");
    guard.release().await.expect("the release");
}
