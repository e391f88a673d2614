//! The alerts and the board of `docs/grafana/`, in a real Prometheus that scrapes the service
//! while its Redis is killed.
//!
//! The tests need Debian's package `prometheus`: `./tests/run.sh --all` installs it, and runs
//! them. By themselves, with that there:
//!
//! ```text
//! cargo test -p axum_orders --test shop prometheus -- --ignored
//! ```

mod board;
mod server;

use std::collections::BTreeSet;
use std::process::Command;

use server::{Prometheus, RULES};

use crate::IN_TIME;
use crate::client::{Answer, Call, Pending, call};
use crate::service::Service;
use crate::support::calm::unless_it_stands_still;
use crate::support::redis::RedisServer;
use crate::support::server::Server;
use crate::support::wait::until;

/// What an outage makes fire, which lasts for longer than the ttl of a lock that is held.
const OF_AN_OUTAGE: [&str; 4] = [
    "DlockLockLost",
    "DlockRenewalsFailing",
    "DlockStoreDown",
    "DlockStoreErrors",
];

/// What `increase` alone sees of the loss.
const PLAIN: &str = "increase(dlock_losses_total{reason=\"expired\"}[5m]) > 0";

/// A copy of the service, on a Redis that can be killed.
struct Scene {
    redis: RedisServer,
    service: Service,
}

impl Scene {
    async fn set() -> Self {
        let redis = RedisServer::start().await;
        // The bank takes ten minutes: whoever pays holds the lock until it is lost.
        let service = Service::start(&redis.url(), 60, "600000").await;
        let scene = Self { redis, service };
        let placed = scene.place().await;
        assert_eq!(placed.status, 201, "{placed:?}");
        scene
    }

    async fn place(&self) -> Answer {
        let place = Call::Place {
            sku: "blue-mug",
            quantity: 1,
        };
        call(self.service.address, place).await.expect("an answer")
    }

    /// A payment that holds its lock, and asks Redis for nothing else before the bank is done.
    async fn pay(&self) -> Pending {
        let paying = Pending::start(self.service.address, Call::Pay(1));
        // Whether the bank has charged is the last that it asks. Without that answer the payment
        // would fail before it can lose its lock.
        let asked = async || self.redis.calls("lrange");
        until("the payment is at the bank", asked, |&asked| asked > 0).await;
        paying
    }

    /// Kills Redis, and returns when the payment has lost its lock and an order was refused.
    async fn fail(&mut self, paying: Pending) {
        self.redis.kill();
        let lost = paying.answer().await;
        assert!(lost.status >= 500, "{lost:?}");
        assert_eq!(self.place().await.status, 503);
    }

    async fn scraped(&self) -> Server<Prometheus> {
        Prometheus::scrapes(self.service.address).await
    }
}

async fn fires(prometheus: &Prometheus) {
    let firing = async || prometheus.firing().await;
    let expected = BTreeSet::from(OF_AN_OUTAGE.map(str::to_owned));
    until("alerts fire", firing, |firing| *firing == expected).await;
}

#[tokio::test]
#[ignore = "needs prometheus"]
async fn alerts_fire_when_redis_is_killed_and_not_before() {
    unless_it_stands_still(IN_TIME, alerts_fire_not_before).await;
}

async fn alerts_fire_not_before() {
    let mut scene = Scene::set().await;
    let paying = scene.pay().await;
    // Not the first scrape of a service that works.
    let prometheus = scene.scraped().await;
    for looks in [3, 6] {
        prometheus.has_looked(looks).await;
        assert_eq!(prometheus.firing().await, BTreeSet::new());
        assert_eq!(scene.place().await.status, 201);
    }
    assert!(prometheus.query(PLAIN).await.is_empty());

    scene.fail(paying).await;
    fires(&prometheus).await;
    // The counters began at zero, so it needs no more than this.
    assert!(!prometheus.query(PLAIN).await.is_empty());
}

#[tokio::test]
#[ignore = "needs prometheus"]
async fn alerts_fire_when_redis_is_killed_before_the_first_scrape() {
    unless_it_stands_still(IN_TIME, alerts_fire_before_the_first_scrape).await;
}

async fn alerts_fire_before_the_first_scrape() {
    let mut scene = Scene::set().await;
    let paying = scene.pay().await;
    scene.fail(paying).await;
    let prometheus = scene.scraped().await;
    fires(&prometheus).await;
    assert!(prometheus.query(PLAIN).await.is_empty());
}

#[tokio::test]
#[ignore = "needs prometheus"]
async fn the_board_can_be_drawn() {
    let scene = Scene::set().await;
    let _paying = scene.pay().await;
    let prometheus = scene.scraped().await;
    // A rate needs more than one.
    prometheus.has_looked(4).await;
    board::can_be_drawn(&prometheus).await;
    let names = prometheus.names().await;
    for rule in prometheus.rules().await {
        board::names_exist(&rule, &names);
    }
}

#[test]
#[ignore = "needs prometheus"]
fn the_rules_are_rules_and_do_what_they_say() {
    let cases = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/shop/prometheus/alerts.test.yaml"
    );
    for arguments in [["check", "rules", RULES], ["test", "rules", cases]] {
        let output = Command::new("promtool").args(arguments).output();
        let output = output.expect("promtool is needed: apt-get install prometheus");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{said}");
    }
}
