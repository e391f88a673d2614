//! A server of the test's own that is stopped and started.

use std::time::Duration;

use dlock::Config;
use dlock_conformance::cases::tokens;
use dlock_conformance::{Store, async_trait};

use crate::harness::{connect, healed, queued, served, waiting};
use crate::support::etcd::{EtcdServer, etcd_url};

struct OwnServer(EtcdServer);

#[async_trait(?Send)]
impl Store for OwnServer {
    async fn start() -> Self {
        Self(EtcdServer::start().await)
    }

    fn config(&self) -> Config {
        Config::from_url(&etcd_url(&[self.0.port()])).expect("a valid URL")
    }

    async fn take_away(&self, _key: &str) {
        unreachable!("asked by no test here")
    }

    async fn set_outage(&self, _outage: bool) {
        unreachable!("asked by no test here")
    }

    async fn restart(&mut self) -> bool {
        self.0.restart().await;
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_across_a_restart() {
    tokens::tokens_rise_across_a_restart(&mut OwnServer::start().await).await;
}

/// Held locks, places in queues and their order outlive the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_and_waited_for_goes_on() {
    let mut server = EtcdServer::start().await;
    let url = etcd_url(&[server.port()]);
    let (holder, judge) = (connect(&url).await, connect(&url).await);
    let request = holder.lock("key").ttl(Duration::from_secs(20));
    let guard = request.acquire().await.expect("the lock");
    let (first, second) = (connect(&url).await, connect(&url).await);
    let first = waiting(&first, "key");
    queued(&judge, "key", 1).await;
    let second = waiting(&second, "key");
    queued(&judge, "key", 2).await;
    server.restart().await;
    healed(&judge).await;
    assert!(guard.is_held());
    assert_eq!(
        judge
            .inspect("key")
            .await
            .expect("inspect")
            .map(|lock| lock.waiters),
        Some(2)
    );
    guard.release().await.expect("the release");
    served(first).await;
    served(second).await;
}
