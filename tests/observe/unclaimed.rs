//! A lock that was given to a call which is not polled: until it is passed on,
//! it counts as held.

use std::pin::pin;

use async_trait::async_trait;
use dlock::Config;
use dlock::backend::memory::Memory;
use dlock::backend::*;
use tokio::time::timeout;

use crate::collector::collector;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, free, had, wants};
use crate::support::nodes::Nodes;
use crate::support::over_memory::Otherwise;
use crate::support::polls::poll_once;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, eventually, until};
use crate::{memory, ms, settle};

fn held(template: &'static str, store: &'static str) -> Option<f64> {
    collector().metric("dlock_held", &[("template", template), ("store", store)])
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_nobody_comes_for_counts_as_held() {
    let (_memory, manager) = memory().await;
    let key = "unclaimed/hand-over";
    let guard = manager.lock(key).acquire().await.expect("free");
    let first = tokio::spawn(manager.lock(key).run(async {}));
    settle().await;
    let mut sleepy = pin!(manager.lock(key).template(key).acquire());
    poll_once(&mut sleepy).await;
    guard.release().await.expect("held");
    first.await.expect("no panic").expect("its turn comes");
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(held(key, "memory"), Some(1.0));
    assert_eq!(manager.list(key).await.expect("answers").len(), 1);
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(held(key, "memory"), Some(0.0));
    assert!(manager.list(key).await.expect("answers").is_empty());
    let told = collector().of_target(key, "dlock::handover");
    let warnings: Vec<_> = told.iter().filter(|line| line.level() == "WARN").collect();
    assert_eq!(warnings.len(), 1, "{told:#?}");
    // It looks the same from here whichever of the two it was.
    for cause in ["`select!`", "its runtime was blocked"] {
        assert!(warnings[0].message().contains(cause), "{told:#?}");
    }
    // It comes after all.
    let guard = sleepy.await.expect("free");
    assert_eq!(held(key, "memory"), Some(1.0));
    guard.release().await.expect("held");
    assert_eq!(held(key, "memory"), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_nobody_comes_for_counts_as_held_once_it_is_granted() {
    let (memory, manager) = memory().await;
    let other = connect(Config::with_backend(memory)).await;
    let key = "unclaimed/place";
    let guard = other.lock(key).acquire().await.expect("free");
    let mut sleepy = pin!(manager.lock(key).template(key).acquire());
    poll_once(&mut sleepy).await;
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(held(key, "memory"), None, "it is the other's");
    guard.release().await.expect("held");
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(held(key, "memory"), Some(1.0));
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(held(key, "memory"), Some(0.0));
    sleepy.await.expect("free").release().await.expect("held");
}

/// A grant is heard when the caller is polled the next time.
#[derive(Debug)]
struct Heard(Memory);

/// Gives back what was not heard.
struct Unheard<'a>(&'a Memory, Option<Request>);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.1.take() {
            let memory = self.0.clone();
            tokio::spawn(async move { memory.release(&request).await });
        }
    }
}

#[async_trait]
impl Otherwise for Heard {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let grant = self.0.acquire(request).await?;
        let mut unheard = Unheard(&self.0, Some(request.clone()));
        tokio::task::yield_now().await;
        unheard.1 = None;
        Ok(grant)
    }
}

/// The first grant is over when it is heard. The second is another owner's, and
/// nobody hears of it.
#[tokio::test(start_paused = true)]
async fn a_second_grant_that_nobody_comes_for_counts_as_held() {
    collector();
    let manager = Heard(Memory::new()).manager().await;
    for (key, read) in [("unclaimed/again", false), ("unclaimed/reads again", true)] {
        let request = manager.lock(key).template(key).ttl(ms(10_000));
        let mut sleepy = pin!(wants(request, read).acquire());
        let holder = async || {
            let lock = manager.inspect(key).await.expect("answers");
            lock.and_then(|lock| Some(lock.holders.first()?.owner.clone()))
        };
        poll_once(&mut sleepy).await;
        let first = holder().await;
        assert!(first.is_some(), "it is granted at once");
        tokio::time::advance(ms(20_000)).await;
        eventually("it is granted again", async || {
            poll_once(&mut sleepy).await;
            settle().await;
            let holder = holder().await;
            (holder.is_some() && holder != first).then_some(())
        })
        .await;
        assert_eq!(held(key, "memory"), None);
        tokio::time::sleep(ms(1_500)).await;
        assert_eq!(held(key, "memory"), Some(1.0));
        tokio::time::sleep(ms(2_500)).await;
        assert_eq!(held(key, "memory"), Some(0.0));
        settle().await;
        assert!(manager.list(key).await.expect("answers").is_empty());
        // It comes after all.
        sleepy.await.expect("free").release().await.expect("held");
    }
}

/// It does while it is the store's grant to a call that does not hear of it. The store is asked for
/// that once, and has to answer before the grant is given back, seconds later.
async fn counts_as_held(url: &str, key: &'static str) {
    unless_it_stands_still(ms(250), async || is_counted(url, key).await).await;
}

async fn is_counted(url: &str, key: &'static str) {
    collector();
    let manager = connect(config(url)).await;
    let store = manager.capabilities().name;
    let is_held = |wanted| {
        until(
            "it is shown as it is",
            async || held(key, store),
            move |&now| now == Some(wanted),
        )
    };
    let granted = async || {
        while manager.inspect(key).await.expect("answers").is_none() {
            tokio::time::sleep(ms(10)).await;
        }
    };
    let mut attempts = 0;
    let sleepy = loop {
        // So that there is a connection, and ZooKeeper's folder of the lock, which the
        // server removes when it is empty.
        had(&manager, key).await;
        let mut sleepy = Box::pin(manager.lock(key).template(key).acquire());
        poll_once(&mut sleepy).await;
        // A request goes out at its first poll, unless one of the two is lost just then,
        // as happens on a machine that is busy: then the store never has it.
        if timeout(HANG / 10, granted()).await.is_ok() {
            break sleepy;
        }
        attempts += 1;
        assert!(attempts < 3, "the store was never asked");
    };
    // Once it is granted, there is no excuse.
    is_held(1.0).await;
    is_held(0.0).await;
    free(&manager, key).await;
    sleepy.await.expect("free").release().await.expect("held");
}

#[tokio::test]
async fn a_grant_that_nobody_comes_for_counts_as_held() {
    let server = RedisServer::start().await;
    counts_as_held(&server.url(), "unclaimed/redis").await;
}

/// Each election has an owner of its own.
#[tokio::test]
async fn votes_that_nobody_counts_count_as_held() {
    let nodes = Nodes::start(3).await;
    counts_as_held(&nodes.url(), "unclaimed/redlock").await;
}

/// Names of places in etcd do not say whose they are.
#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_place_in_etcd_that_nobody_comes_for_counts_as_held() {
    use crate::support::etcd::{EtcdServer, etcd_url};
    let server = EtcdServer::start().await;
    let url = etcd_url(&[server.port()]);
    counts_as_held(&url, "unclaimed/etcd").await;
    let url = format!("{url}?recipe=lock-service");
    counts_as_held(&url, "unclaimed/etcd-lock-service").await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_node_that_nobody_comes_for_counts_as_held() {
    use crate::support::zookeeper::ZooKeeperServer;
    let server = ZooKeeperServer::shared().await;
    let url = format!("zookeeper://127.0.0.1:{}/unclaimed", server.port());
    counts_as_held(&url, "unclaimed/zookeeper").await;
}
