//! What is wrong from the start, or stands in the way.

use dlock::LockError;

use crate::harness::{REQUEST_TIMEOUT, connect, nothing_left};
use crate::support::alone::alone;
use crate::support::locks;
use crate::support::locks::{had, held, says};
use crate::support::log::Log;
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::port::free_port;
use crate::support::redis::Setup;
use crate::support::wait::{HANG, eventually, until, within};
use crate::{NODES, lock_name};

async fn refusal(url: &str) -> LockError {
    locks::refusal(url, |config| config.request_timeout(REQUEST_TIMEOUT)).await
}

#[tokio::test]
async fn too_few_nodes_or_one_of_them_twice() {
    for (url, words) in [
        ("redis+redlock://", &["a host is missing"][..]),
        ("redis+redlock://a", &["names 1 nodes", "redis://"]),
        ("redis+redlock://a,b", &["names 2 nodes", "three or five"]),
        ("redis+redlock://a,b,a:6379", &["a:6379 twice"]),
        ("redis+redlock://a,b,c/x", &["number of a database"]),
        ("redis+redlock://a,b,c?ttl=3", &["unknown parameter"]),
    ] {
        let error = refusal(url).await;
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        says(&error, words);
    }
}

/// One server by two names would have two votes.
#[tokio::test]
async fn a_server_that_is_named_twice_is_found_out() {
    let nodes = Nodes::start(3).await;
    let port = nodes[0].port();
    let error = refusal(&format!("{},localhost:{port}", nodes.url())).await;
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["one server", "127.0.0.1", "localhost"]);
}

#[tokio::test]
async fn nobody_is_there() {
    let ports: Vec<_> = (0..3).map(|_| free_port()).collect();
    let error = refusal(&redlock_url(&ports)).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &["refuse", &ports[0].to_string()]);
}

#[tokio::test]
async fn a_wrong_password_on_one_node_is_told() {
    let mut setups = vec![Setup::default().password("hunter2"); 2];
    setups.push(Setup::default().password("another"));
    let nodes = Nodes::set_up(setups).await;
    let hosts = nodes.url().replace("://", "://:hunter2@");
    let error = refusal(&hosts).await;
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["password", &nodes[2].port().to_string()]);
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}

/// Another program's value where the lock belongs: on a minority it is a node
/// that cannot vote, on a majority it is an error. It is never overwritten.
#[tokio::test]
async fn foreign_values_are_left_alone() {
    let nodes = Nodes::start(NODES).await;
    let manager = connect(&nodes.url()).await;
    for node in nodes.iter().take(2) {
        node.command::<String>(&["SET", &lock_name("key"), "hello"])
            .await;
        node.command::<u32>(&["RPUSH", &lock_name("list"), "hello"])
            .await;
    }
    for key in ["key", "list"] {
        had(&manager, key).await;
        within(HANG, manager.lock(key).read().run(async {}))
            .await
            .expect("the lock");
    }
    nodes[2]
        .command::<String>(&["SET", &lock_name("key"), "hello"])
        .await;
    for error in [
        within(HANG, manager.lock("key").try_acquire())
            .await
            .map(drop),
        within(HANG, manager.lock("key").acquire()).await.map(drop),
        within(HANG, manager.lock("key").read().acquire())
            .await
            .map(drop),
    ] {
        let error = error.expect_err("foreign values");
        says(&error, &[&lock_name("key"), "dlock did not write"]);
    }
    for node in nodes.iter().take(3) {
        let value: String = node.command(&["GET", &lock_name("key")]).await;
        assert_eq!(value, "hello");
        let deleted: u32 = node
            .command(&["DEL", &lock_name("key"), &lock_name("list")])
            .await;
        assert!(deleted > 0);
    }
    had(&manager, "key").await;
    nothing_left(&nodes).await;

    // Where the token counter belongs, it shows at once.
    nodes[4]
        .command::<String>(&["SET", "dlock:token", "hello"])
        .await;
    let error = refusal(&nodes.url()).await;
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["dlock:token", &nodes[4].port().to_string()]);
}

/// What works all the same, and should not stay as it is.
#[test]
fn an_operator_is_told() {
    alone("bad_input::an_operator_is_told", &[], || {
        let log = Log::capture();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let mut nodes = Nodes::start(4).await;
            nodes[3].kill();
            let manager = connect(&nodes.url()).await;
            // A lock may be had before such a node has answered.
            let said = async |words: &[&str]| {
                let told = async || {
                    had(&manager, "key").await;
                    let text = log.text();
                    let mut lines = text.lines();
                    lines
                        .any(|line| words.iter().all(|word| line.contains(word)))
                        .then_some(())
                };
                eventually(&format!("{words:?} is said"), told).await;
            };
            said(&["WARN", "4 nodes", "odd number"]).await;
            said(&["WARN", "does not answer"]).await;
            nodes[3].restart().await;
            said(&["INFO", "answers again"]).await;
            // And is asked again.
            let vote = async || -> Option<String> {
                let guard = held(manager.lock("used")).await;
                let vote = nodes[3].command(&["GET", &lock_name("used")]).await;
                guard.release().await.expect("the release");
                vote
            };
            until("it votes", vote, Option::is_some).await;
            let set = ["SET", &lock_name("key"), "hello"];
            nodes[0].command::<String>(&set).await;
            said(&["WARN", "dlock did not write"]).await;
            nodes[0].command::<u32>(&["DEL", &lock_name("key")]).await;
            nodes[1].pause();
            said(&["WARN", "does not answer; locks go on"]).await;
        });
    });
}
