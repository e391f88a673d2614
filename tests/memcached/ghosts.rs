//! Requests that were given up, and arrive later all the same.

use std::time::{Duration, Instant};

use dlock_conformance::Store;
use tokio::time::sleep;

use crate::harness::{connect, hasty, holder};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{had, held, served};
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::proxy::Proxy;
use crate::support::wait::until;
use crate::{MemcachedStore, TTL, lock_name};

/// A waiter that has lost an answer long ago loses another one: what gives the
/// lock back does so for as long as the later request may arrive.
#[tokio::test]
async fn the_last_of_several_late_requests_leaves_no_ghost() {
    unless_it_stands_still(TTL / 12, several_late_requests).await;
}

async fn several_late_requests() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = hasty(&memcached_url(proxy.port())).await;
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

/// Its process dies when it has sent the first command, whatever that was, and before it
/// sends another one.
#[tokio::test]
async fn a_lock_has_its_end_from_the_first_command_on() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let dies = connect(&memcached_url(proxy.port())).await;
    had(&dies, "key").await;
    proxy.swallow_replies(true);
    let asked = tokio::spawn(dies.lock("key").ttl(TTL).acquire());
    let is_held = async || holder(&judge, "key").await.is_some();
    until("the lock is taken", is_held, |&is| is).await;
    proxy.refuse(true);
    let free = async || !is_held().await;
    until("its ttl has passed", free, |&free| free).await;
    asked.abort();
}

/// A waiter who has lost an answer does not know whether it holds the lock itself. The
/// looks tell it, and are no more than anybody else's.
#[tokio::test]
async fn a_lost_answer_makes_waiting_no_dearer() {
    // The first looks would come later, and be counted.
    unless_it_stands_still(Duration::from_millis(200), waits_after_a_lost_answer).await;
}

async fn waits_after_a_lost_answer() {
    let store = <MemcachedStore as Store>::start().await;
    let bound = store.costs().expect("it counts").waiting;
    let holder = connect(&store.server.url()).await;
    let other = connect(&store.url()).await;
    had(&other, "key").await;
    let guard = held(holder.lock("key")).await;
    store.proxy.cut();
    let waiting = tokio::spawn(other.lock("key").acquire());
    let waiters = async || store.waiters(&holder, "key").await;
    until("it waits", waiters, |&waiting| waiting == 1).await;
    // The first looks are closer together.
    sleep(Duration::from_secs(1)).await;
    let (start, before) = (Instant::now(), store.asked().await);
    sleep(Duration::from_secs(5)).await;
    let asked = store.asked().await - before;
    let rate = asked as f64 / start.elapsed().as_secs_f64();
    assert!(rate <= bound, "{rate} a second");
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
}
