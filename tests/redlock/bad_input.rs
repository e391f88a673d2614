//! What is wrong from the start, or stands in the way.

use dlock::backend::Backend as _;
use dlock::backend::redis::Redlock;

use crate::harness::{REQUEST_TIMEOUT, connect, nothing_left};
use crate::support::alone::alone_with_its_log;
use crate::support::calm::{always, unless_it_stands_still};
use crate::support::locks::{connecting, had, healed_at, held, held_at_last, is_unavailable, says};
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::port::free_port;
use crate::support::redis::Setup;
use crate::support::secure::{all_misconfigured, misconfigured};
use crate::support::wait::{HANG, until, within};
use crate::{NODES, lock_name};

#[tokio::test]
async fn too_few_nodes_or_one_of_them_twice() {
    all_misconfigured(&[
        ("redis+redlock://", &["a host is missing"]),
        ("redis+redlock://a", &["names 1 nodes", "redis://"]),
        ("redis+redlock://a,b", &["names 2 nodes", "three or five"]),
        ("redis+redlock://a,b,a:6379", &["a:6379 twice"]),
        ("redis+redlock://a,b,c/x", &["number of a database"]),
        ("redis+redlock://a,b,c?ttl=3", &["unknown parameter"]),
    ])
    .await;
}

/// What its votes cannot keep is refused, and what to do is said.
#[test]
fn what_votes_cannot_keep_is_kept_elsewhere() {
    let redlock = Redlock::from_url("redis+redlock://a,b,c").expect("a URL");
    let capabilities = redlock.capabilities();
    assert!(!capabilities.permits && !capabilities.once);
    for remedy in [capabilities.permits_with, capabilities.once_with] {
        assert!(remedy.contains("`redis://` with one server"), "{remedy}");
    }
}

/// One server by two names would have two votes.
#[tokio::test]
async fn a_server_that_is_named_twice_is_found_out() {
    let nodes = Nodes::start(3).await;
    let port = nodes[0].port();
    let url = format!("{},localhost:{port}", nodes.url());
    misconfigured(&url, &["one server", "127.0.0.1", "localhost"]).await;
}

#[tokio::test]
async fn nobody_is_there() {
    let ports: Vec<_> = (0..3).map(|_| free_port()).collect();
    let connected = connecting(&redlock_url(&ports), REQUEST_TIMEOUT).await;
    says(
        &is_unavailable(connected),
        &["refuse", &ports[0].to_string()],
    );
}

#[tokio::test]
async fn a_wrong_password_on_one_node_is_told() {
    let mut setups = vec![Setup::default().password("hunter2"); 2];
    setups.push(Setup::default().password("another"));
    let nodes = Nodes::set_up(setups).await;
    let hosts = nodes.url().replace("://", "://:hunter2@");
    misconfigured(&hosts, &["password", &nodes[2].port().to_string()]).await;
}

/// Another program's value where the lock belongs: on a minority it is a node
/// that cannot vote, on a majority it is an error. It is never overwritten.
#[tokio::test]
async fn foreign_values_are_left_alone() {
    unless_it_stands_still(REQUEST_TIMEOUT / 4, they_are_left_alone).await;
}

async fn they_are_left_alone() {
    let nodes = Nodes::start(NODES).await;
    let manager = connect(&nodes.url()).await;
    let set = ["SET", &lock_name("key"), "hello"];
    for node in nodes.iter().take(2) {
        node.command::<String>(&set).await;
        let push = ["RPUSH", &lock_name("list"), "hello"];
        node.command::<u32>(&push).await;
    }
    for key in ["key", "list"] {
        had(&manager, key).await;
        drop(held(manager.lock(key).read()).await);
    }
    // Not over the last guard's vote: its release would find a value that is not dlock's, and leave
    // what else belongs to the lock.
    let set_if_free = [&set[..], &["NX"]].concat();
    let is_set = async || nodes[2].command::<Option<String>>(&set_if_free).await;
    until("the last guard has gone", is_set, Option::is_some).await;
    let lock = || manager.lock("key");
    for error in [
        within(HANG, lock().try_acquire()).await,
        within(HANG, lock().acquire()).await,
        within(HANG, lock().read().acquire()).await,
    ] {
        let error = error.expect_err("foreign values");
        says(&error, &[&lock_name("key"), "dlock did not write"]);
    }
    for node in nodes.iter().take(3) {
        let value: String = node.command(&["GET", &lock_name("key")]).await;
        always(value == "hello", value);
        let delete = ["DEL", &lock_name("key"), &lock_name("list")];
        assert!(node.command::<u32>(&delete).await > 0);
    }
    had(&manager, "key").await;
    nothing_left(&nodes).await;

    // Where the token counter belongs, it shows at once.
    let set = ["SET", "dlock:token", "hello"];
    nodes[4].command::<String>(&set).await;
    let port = nodes[4].port().to_string();
    misconfigured(&nodes.url(), &["dlock:token", &port]).await;
}

/// What works all the same, and should not stay as it is.
#[test]
fn an_operator_is_told() {
    alone_with_its_log("bad_input::an_operator_is_told", async |log| {
        let mut nodes = Nodes::start(4).await;
        nodes[3].kill();
        let manager = connect(&nodes.url()).await;
        // A lock may be had before such a node has answered.
        let said = async |words: &[&str]| {
            log.says(words, async || healed_at(&manager, "key").await)
                .await;
        };
        said(&["WARN", "4 nodes", "odd number"]).await;
        said(&["WARN", "does not answer"]).await;
        nodes[3].restart().await;
        said(&["INFO", "answers again"]).await;
        // And is asked again.
        let vote = async || -> Option<String> {
            let _guard = held_at_last(|| manager.lock("used")).await;
            nodes[3].command(&["GET", &lock_name("used")]).await
        };
        until("it votes", vote, Option::is_some).await;
        let set = ["SET", &lock_name("key"), "hello"];
        nodes[0].command::<String>(&set).await;
        said(&["WARN", "dlock did not write"]).await;
        nodes[0].command::<u32>(&["DEL", &lock_name("key")]).await;
        nodes[1].pause();
        said(&["WARN", "does not answer; locks go on"]).await;
    });
}
