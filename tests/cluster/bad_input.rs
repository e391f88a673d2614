//! What is wrong from the start, or stands in the way.

use std::time::{Duration, Instant};

use dlock::backend::Backend as _;

use crate::harness::{config, connect, lock_name, nothing_left};
use crate::support::alone::alone_with_its_log;
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::{Cluster, LONG, MASTERS, url};
use crate::support::lent::Lent;
use crate::support::locks;
use crate::support::locks::{
    connecting, had, held, is_busy, is_misconfigured, is_unavailable, queued, says, served,
};
use crate::support::port::free_port;
use crate::support::redis::{RedisServer, Setup};
use crate::support::secure::{all_misconfigured, misconfigured};
use crate::support::wait::{HANG, eventually, until, within};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// On a machine that stands still for so long, nobody may answer within it.
const STILL: Duration = Duration::from_millis(250);

#[tokio::test]
async fn urls_that_make_no_sense() {
    all_misconfigured(&[
        ("redis+cluster://", &["a host is missing"]),
        ("redis+cluster://a,b,a:6379", &["a:6379 twice"]),
        (
            "redis+cluster://:hunter2@a,b/3",
            &["one database", "number 0"],
        ),
        ("redis+cluster://a?replicas=1", &["unknown parameter"]),
        ("redis+cluster://a?quorum=2", &["quorum", "masters"]),
    ])
    .await;
}

/// What its votes cannot keep is refused, and what to leave out is said.
#[test]
fn what_votes_cannot_keep_is_kept_without_them() {
    let cluster = |url| dlock::backend::redis::Cluster::from_url(url).expect("a URL");
    let votes = cluster("redis+cluster://a?quorum=masters").capabilities();
    assert!(!votes.permits && !votes.once);
    for remedy in [votes.permits_with, votes.once_with] {
        assert!(remedy.contains("leave `quorum=masters` out"), "{remedy}");
    }
    let without = cluster("redis+cluster://a").capabilities();
    assert!(without.permits && without.once);
}

/// A single server is not taken for a cluster, nor the other way round.
#[tokio::test]
async fn a_server_that_is_no_node() {
    let lent = Lent::<Cluster>::empty().await;
    let server = RedisServer::start().await;
    let port = server.port().to_string();
    let words = ["no node of a cluster", "redis://", &port];
    misconfigured(&url(&[server.port()], ""), &words).await;
    let ports = [lent.proxies[0].port(), server.port()];
    misconfigured(&url(&ports, ""), &["no node of a cluster"]).await;
    let node = format!("redis://127.0.0.1:{}", lent.servers[0].port());
    misconfigured(&node, &["redis+cluster://"]).await;
}

/// Locks that are now in the one and now in the other would exclude nobody.
#[tokio::test]
async fn nodes_of_two_clusters() {
    let lent = Lent::<Cluster>::empty().await;
    let other = Cluster::of_masters(1).await;
    let ports = [lent.proxies[0].port(), other.servers[0].port()];
    let words = ["nodes of one cluster", &ports[1].to_string()];
    misconfigured(&url(&ports, ""), &words).await;
}

#[tokio::test]
async fn nodes_that_are_no_cluster_yet() {
    let node = Setup::default().in_cluster(LONG).start().await;
    unless_it_stands_still(STILL, async || {
        let connected = connecting(&url(&[node.port()], ""), REQUEST_TIMEOUT).await;
        says(
            &is_unavailable(connected),
            &["no node has a slot", "--cluster create"],
        );
    })
    .await;
}

/// Slots without a master take the whole cluster down, as it is set by default.
#[tokio::test]
async fn a_cluster_that_is_down() {
    let cluster = Cluster::start(LONG).await;
    let node = &cluster.servers[0];
    node.command::<()>(&["CLUSTER", "DELSLOTS", "7"]).await;
    let info = async || -> String { node.command(&["CLUSTER", "INFO"]).await };
    let down = |info: &String| info.contains("cluster_state:fail");
    until("it is down", info, down).await;
    let config = config(&url(&[node.port()], ""));
    // Others have not heard of it.
    let manager = locks::connect(config.request_timeout(REQUEST_TIMEOUT)).await;
    unless_it_stands_still(STILL, async || {
        let mut numbers = 0..100;
        let error = eventually("a third of the slots is down", async || {
            let key = format!("key:{}", numbers.next()?);
            let ran = manager.lock(key).run(async {}).await;
            ran.is_err().then(|| is_unavailable(ran))
        });
        let error = error.await;
        says(&error, &["CLUSTERDOWN", "CLUSTER INFO"]);
    })
    .await;
}

#[tokio::test]
async fn passwords() {
    let setup = Setup::default().password("hunter2");
    let cluster = Cluster::set_up(setup, LONG).await;
    let without = cluster.url("");
    let words = ["wants a password", "redis+cluster://:password@"];
    misconfigured(&without, &words).await;
    let wrong = without.replace("://", "://:hunter22@");
    misconfigured(&wrong, &["check the user and password"]).await;
    let right = without.replace("://", "://:hunter2@");
    for more in ["", "?quorum=masters"] {
        let manager = connect(&format!("{right}{more}")).await;
        had(&manager, "key").await;
    }
}

#[tokio::test]
async fn too_few_masters_for_a_quorum() {
    let cluster = Cluster::of_masters(1).await;
    let words = ["at least 3 masters", "has 1"];
    misconfigured(&cluster.url("?quorum=masters"), &words).await;
    // Nothing was written for it.
    nothing_left(&cluster).await;
    let exists = ["EXISTS", "dlock:voters"];
    assert_eq!(cluster.servers[0].command::<u32>(&exists).await, 0);
    had(&connect(&cluster.url("")).await, "key").await;
}

/// The voters are those that were written into the cluster, whoever is a master
/// now; and when others are written, nobody goes on with the old ones.
#[tokio::test]
async fn all_have_the_same_voters() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let url = cluster.url("?quorum=masters");
    let manager = connect(&url).await;
    let guard = held(manager.lock("key").ttl(Duration::from_secs(3))).await;
    let owner = cluster.owner("dlock:voters").await;
    let voters: String = owner.command(&["GET", "dlock:voters"]).await;
    assert_eq!(voters.split(' ').count(), MASTERS);
    // Lost, it is written again.
    owner.command::<u32>(&["DEL", "dlock:voters"]).await;
    let again = async || -> Option<String> { owner.command(&["GET", "dlock:voters"]).await };
    until("it is there again", again, Option::is_some).await;
    assert_eq!(again().await, Some(voters));
    // Others, which have no votes yet.
    owner.command::<()>(&["SET", "dlock:voters", "1 2 3"]).await;
    let other = connect(&url).await;
    let ran = async || manager.lock("new").run(async {}).await;
    let refused = until("it takes no more locks", ran, Result::is_err).await;
    says(&is_misconfigured(refused), &["dlock:voters", "restart"]);
    had(&other, "new").await;
    // Those may have granted it too.
    within(HANG, guard.lost()).await;
    owner.command::<()>(&["SET", "dlock:voters", "hello"]).await;
    misconfigured(&url, &["dlock:voters", "dlock did not write"]).await;
}

/// Another program's value where a key of dlock's belongs. It is never
/// overwritten.
#[tokio::test]
async fn foreign_values_are_left_alone() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let manager = connect(&cluster.url("")).await;
    let owner = cluster.owner(&lock_name("key")).await;
    for set in [
        &["SET", "dlock:{key}", "hello"][..],
        &["RPUSH", "dlock:{key}", "hello"],
        &["HSET", "dlock:{key}:queue", "hello", "there"],
    ] {
        owner.command::<redis::Value>(set).await;
        let error = is_misconfigured(within(HANG, manager.lock("key").acquire()).await);
        says(&error, &[set[1], "dlock did not write"]);
        assert_eq!(owner.command::<u32>(&["DEL", set[1]]).await, 1);
        had(&manager, "key").await;
    }
    let counters = owner.keys().await;
    let [counter] = &counters[..] else {
        panic!("one counter: {counters:?}");
    };
    owner.command::<()>(&["SET", counter, "hello"]).await;
    let error = is_misconfigured(within(HANG, manager.lock("key").acquire()).await);
    says(&error, &[counter, "dlock did not write"]);
    let value: String = owner.command(&["GET", counter]).await;
    assert_eq!(value, "hello");
    nothing_left(cluster).await;
}

/// At one voter of three it is a vote that is not had, at two it is an error.
#[tokio::test]
async fn foreign_votes_are_left_alone() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let manager = connect(&cluster.url("?quorum=masters")).await;
    had(&manager, "key").await;
    let owner = cluster.owner("dlock:voters").await;
    let voters: String = owner.command(&["GET", "dlock:voters"]).await;
    let votes = voters.split(' ').take(2);
    let votes: Vec<_> = votes
        .map(|tag| format!("dlock:vote:{{{tag}}}:{{key}}"))
        .collect();
    for (before, vote) in votes.iter().enumerate() {
        if before == 1 {
            had(&manager, "key").await;
        }
        let owner = cluster.owner(vote).await;
        // Not over a vote that is still on its way back.
        let is_set =
            async || -> Option<String> { owner.command(&["SET", vote, "hello", "NX"]).await };
        until("the vote is free", is_set, Option::is_some).await;
    }
    let error = within(HANG, manager.lock("key").try_acquire()).await;
    let error = error.expect_err("foreign votes");
    says(&error, &["dlock:vote:{", "dlock did not write"]);
    for vote in &votes {
        let owner = cluster.owner(vote).await;
        let value: String = owner.command(&["GET", vote]).await;
        assert_eq!(value, "hello");
        assert_eq!(owner.command::<u32>(&["DEL", vote]).await, 1);
    }
    had(&manager, "key").await;
    nothing_left(cluster).await;
}

/// Servers before Redis 7 have no channels that belong to slots. All nodes hear
/// all messages there, and waiters are woken as well.
#[tokio::test]
async fn older_servers() {
    let setup = Setup::default().without(&["SSUBSCRIBE", "SUNSUBSCRIBE", "SPUBLISH"]);
    let cluster = Cluster::set_up(setup, LONG).await;
    for more in ["", "?quorum=masters"] {
        let url = cluster.url(more);
        let (manager, other) = (connect(&url).await, connect(&url).await);
        let mut took = Vec::new();
        for _ in 0..30 {
            let guard = held(manager.lock("key")).await;
            is_busy(other.lock("key").try_acquire().await);
            let waiting = tokio::spawn(other.lock("key").acquire());
            if more.is_empty() {
                queued(&manager, "key", 1).await;
            }
            let start = Instant::now();
            guard.release().await.expect("the release");
            let guard = served(waiting).await;
            took.push(start.elapsed());
            guard.release().await.expect("the release");
        }
        // A second each, if they found it out by themselves. A slow machine takes long for some.
        took.sort();
        assert!(
            took[took.len() / 2] < Duration::from_millis(600),
            "{took:?}"
        );
        nothing_left(&cluster).await;
    }
}

/// What works all the same, and should not stay as it is.
#[test]
fn an_operator_is_told() {
    alone_with_its_log("bad_input::an_operator_is_told", async |log| {
        let said = async |words: &[&str]| log.says(words, async || {}).await;
        let cluster = Cluster::start(LONG).await;
        let nobody = free_port();
        let ports = [cluster.servers[0].port(), nobody];
        for (name, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")] {
            let words = ["CONFIG", "SET", name, value];
            cluster.servers[2].command::<()>(&words).await;
        }
        let manager = connect(&url(&ports, "?quorum=masters")).await;
        said(&["WARN", &nobody.to_string(), "other nodes in the URL answer"]).await;
        let port = cluster.servers[2].port().to_string();
        said(&["WARN", &port, "maxmemory-policy allkeys-lru", "noeviction"]).await;
        // The last slot of the first master votes.
        cluster.move_slot(16384 / 3 - 1, 0, 1).await;
        said(&["WARN", "slots that vote are on one master"]).await;
        had(&manager, "key").await;
    });
}
