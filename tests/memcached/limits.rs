//! What a store that does not answer may cost: connections and time.

use std::time::{Duration, Instant};

use dlock::backend::memcached::Memcached;
use dlock::backend::{Backend, Mode, Request};
use tokio::time::timeout;

use crate::TTL;
use crate::support::locks::{config, connect, held};
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::polls::join_all;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};

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
    let made = proxy.accepted() - before;
    assert!((1..=CONNECTIONS).contains(&made), "{made} connections");
    proxy.stall(false);
    let request = Request::new("key", Mode::Write, TTL);
    let grant = within(HANG, store.try_acquire(&request)).await;
    grant.expect("an answer").expect("a free lock");
    assert_eq!(proxy.accepted() - before, made);
    within(HANG, store.stop()).await;
}

/// A connection that a firewall has forgotten: the renewal finds out in time to
/// ask over another, however long the request timeout.
#[tokio::test]
async fn a_dead_connection_costs_no_lease() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let manager = connect(config(&memcached_url(proxy.port())).request_timeout(HANG)).await;
    let guard = held(manager.lock("key").ttl(TTL)).await;
    proxy.freeze();
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert!(guard.is_held());
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
    within(HANG, store.start()).await.expect("a connection");
    let request = |number| Request::new(format!("key:{number}"), Mode::Write, 10 * TTL);
    let requests: Vec<_> = (0..LEASES).map(request).collect();
    for request in &requests {
        let grant = store.try_acquire(request).await.expect("an answer");
        grant.expect("a free lock");
    }
    let answers = within(HANG, store.renew(&requests)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    proxy.stall(true);
    let start = Instant::now();
    let answers = within(HANG, store.renew(&requests)).await;
    let took = start.elapsed();
    assert_eq!(answers.len(), LEASES);
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    assert!(took < 10 * REQUEST_TIMEOUT, "{took:?}");
}
