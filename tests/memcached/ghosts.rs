//! Requests that were given up, and arrive later all the same.

use crate::harness::connect;
use crate::support::locks::{had, held, served};
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::proxy::Proxy;
use crate::support::wait::until;
use crate::{TTL, lock_name};

/// A waiter that has lost an answer long ago loses another one: what gives the
/// lock back does so for as long as the later request may arrive.
#[tokio::test]
async fn the_last_of_several_late_requests_leaves_no_ghost() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    let held = held(judge.lock("key")).await;

    // The first answer is lost with its connection.
    proxy.cut();
    let log = server.log();
    let waiting = tokio::spawn(manager.lock("key").ttl(TTL).renew(false).acquire());
    let waiters = async || log.waiters(&lock_name("key"));
    until("it waits", waiters, |&waiting| waiting == 1).await;
    // What was sent before it would have run out by now.
    tokio::time::sleep(TTL).await;
    proxy.hold_back(Some("ms dlock:key "));
    held.release().await.expect("the release");
    let is_held_back = async || proxy.holds_back();
    until("it asks again", is_held_back, |&is| is).await;
    served(waiting).await.release().await.expect("the release");

    let deleted = server.stat("delete_hits");
    proxy.hold_back(None);
    let deletions = async || server.stat("delete_hits");
    until("it is given back", deletions, |&now| now > deleted).await;
}
