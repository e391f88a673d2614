//! A server that restarts while locks are held and waited for.

use std::time::Duration;

use dlock::{Config, LockManager};

use super::Database;
use super::server::{DURABLE, Server};
use crate::support::wait::{HANG, eventually, until, within};

async fn connect(url: &str) -> LockManager {
    let config = Config::from_url(url).expect("a valid URL");
    let config = config.ttl(Duration::from_secs(120));
    LockManager::connect(config).await.expect("a connection")
}

pub(crate) async fn locks_and_places_outlive_a_crash_of_the_server<D: Database>() {
    let server = Server::<D>::start(DURABLE).await;
    let url = server.url(D::OWN, server.port()) + "?create_tables=true";
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let before = {
        let guard = holder.lock("key").acquire().await.expect("the lock");
        let token = guard.token();
        guard.release().await.expect("the release");
        token
    };
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let short = holder.lock("short").ttl(Duration::from_secs(6));
    let renewed = short.acquire().await.expect("the lock");
    let waiting = tokio::spawn(other.lock("key").acquire());
    let waiters = async || {
        let lock = holder.inspect("key").await.expect("inspect");
        lock.map_or(0, |lock| lock.waiters)
    };
    until("it waits", waiters, |&waiters| waiters == 1).await;

    server.kill();
    server.start_again().await;

    let shown = eventually("it serves again", async || holder.inspect("key").await.ok()).await;
    assert_eq!(shown.expect("it is held").holders.len(), 1);
    assert!(guard.is_held() && renewed.is_held());
    assert!(guard.token() > before);
    let token = guard.token();
    guard.release().await.expect("the release");
    let next = within(HANG, waiting).await.expect("no panic");
    let next = next.expect("the lock, after the outage");
    assert!(next.token() > token);
    next.release().await.expect("the release");
    renewed.release().await.expect("a lease that was renewed");
}
