//! What `dlock doctor` finds out about servers.

use std::time::Duration;

use dlock::LockManager;
use dlock::backend::{Finding, Level};

use crate::harness::{config, connect};
use crate::numbers::{FIRST_REFUSED, aged};
use crate::support::locks;
use crate::support::wait::{HANG, eventually_blocking, within};
use crate::support::zookeeper::{Ensemble, Setup};

/// What was found of this.
async fn found(manager: &LockManager, check: &str) -> Vec<Finding> {
    let mut all = within(HANG, manager.examine()).await;
    all.retain(|finding| finding.check == check);
    all
}

async fn says(manager: &LockManager, check: &str, level: Level, words: &[&str]) {
    let found = found(manager, check).await;
    let [finding] = &found[..] else {
        panic!("{check}: {found:?}");
    };
    assert_eq!(finding.level, level, "{finding:?}");
    for word in words {
        assert!(finding.message.contains(word), "{word}: {finding:?}");
    }
}

#[tokio::test]
async fn what_a_server_does_is_told() {
    let server = Setup::default().extended().start().await;
    let url = format!("zookeeper://127.0.0.1:{}/test", server.port());
    let manager = connect(&url).await;
    let version = eventually_blocking("an answer", || server.asked("srvr"));
    let version = version.split(['-', ',']).next().expect("a version");
    let version = version.trim_start_matches("Zookeeper version: ");
    says(&manager, "version", Level::Ok, &[version, "standalone"]).await;
    says(&manager, "session", Level::Ok, &["20s"]).await;
    says(&manager, "ensemble", Level::Ok, &["one server"]).await;
    says(&manager, "once", Level::Ok, &["works"]).await;
    says(&manager, "persistence", Level::Ok, &["forceSync=no"]).await;
    assert_eq!(found(&manager, "numbers").await, []);
}

#[tokio::test]
async fn what_a_server_does_not_do_is_told() {
    let server = aged(FIRST_REFUSED - 1_000).await;
    let port = server.port();
    // It gives no more than a minute, and no less than two of its ticks.
    let longer = format!("zookeeper://127.0.0.1:{port}?session_timeout=90s");
    let manager = connect(&longer).await;
    let words = ["60s", "90s", "maxSessionTimeout"];
    says(&manager, "session", Level::Warn, &words).await;
    let set = ["refused", "zookeeper.extendedTypesEnabled=true"];
    says(&manager, "once", Level::Ok, &set).await;
    says(&manager, "numbers", Level::Warn, &["/dlock/key", "99%"]).await;
}

#[tokio::test]
async fn servers_that_the_url_does_not_name_are_told() {
    let ensemble = Ensemble::start().await;
    let url = format!("zookeeper://{}/test", ensemble.hosts());
    let all = connect(&url).await;
    says(&all, "ensemble", Level::Ok, &["3 servers", "1 may be down"]).await;
    let versions = found(&all, "version").await;
    let modes = ["leader", "follower", "follower"];
    for mode in modes {
        let is_told = |finding: &Finding| finding.message.contains(mode);
        assert!(versions.iter().any(is_told), "{mode}: {versions:?}");
    }
    let port = ensemble.0[0].port();
    let one = connect(&format!("zookeeper://127.0.0.1:{port}/test")).await;
    let words = ["3 servers", "names 1"];
    says(&one, "ensemble", Level::Warn, &words).await;

    // One that takes connections and answers nobody.
    let hasty = config(&url).request_timeout(Duration::from_secs(5));
    let hasty = locks::connect(hasty).await;
    let hangs = &ensemble.0[(ensemble.leader().await + 1) % 3];
    hangs.pause();
    let versions = found(&hasty, "version").await;
    let place = format!("127.0.0.1:{}: it takes", hangs.port());
    let is_told =
        |finding: &Finding| finding.level == Level::Warn && finding.message.contains(&place);
    assert!(versions.iter().any(is_told), "{place}: {versions:?}");
}
