//! Only a majority of all nodes is the lock, and nothing else is left of it.

use std::time::Duration;

use crate::harness::{connect, nothing_left};
use crate::support::locks::{had, healed, held, is_busy, is_unavailable, queued, served};
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};
use crate::{NODES, lock_name};

/// What an owner that has died without a trace has left on some of the nodes.
async fn vote_of_the_dead(nodes: &Nodes, count: usize, key: &str, ttl: Duration) {
    for node in nodes.iter().take(count) {
        let ttl = ttl.as_millis().to_string();
        let words = ["SET", &lock_name(key), "w:dead.1", "PX", &ttl];
        node.command::<()>(&words).await;
    }
}

/// Two of five do not make a lock, and three do.
#[tokio::test]
async fn a_majority_of_all_nodes_is_the_lock() {
    let nodes = Nodes::start(NODES).await;
    let (manager, other) = (connect(&nodes.url()).await, connect(&nodes.url()).await);
    let long = 20 * HANG;
    vote_of_the_dead(&nodes, 2, "two", long).await;
    assert!(manager.inspect("two").await.expect("inspect").is_none());
    let guard = manager.lock("two").try_acquire().await.expect("the lock");
    is_busy(other.lock("two").try_acquire().await);
    guard.release().await.expect("the release");
    // What is not ours is left alone.
    let values = nodes.get(&lock_name("two")).await;
    let dead = Some("w:dead.1".to_owned());
    assert_eq!(values, [dead.clone(), dead, None, None, None]);

    vote_of_the_dead(&nodes, 3, "three", long).await;
    assert!(manager.inspect("three").await.expect("inspect").is_some());
    is_busy(manager.lock("three").try_acquire().await);
    is_busy(manager.lock("three").read().try_acquire().await);
    // The other two have been given back.
    let values = nodes.get(&lock_name("three")).await;
    assert_eq!(values[3..], [None, None]);
}

/// A holder that died on a bare majority of the nodes: somebody notices.
#[tokio::test]
async fn votes_that_run_out_are_noticed() {
    let nodes = Nodes::start(NODES).await;
    let manager = connect(&nodes.url()).await;
    vote_of_the_dead(&nodes, 3, "key", Duration::from_secs(2)).await;
    had(&manager, "key").await;
    nothing_left(&nodes).await;
}

/// Requests and replies that are lost on the way to some nodes, or to all.
#[tokio::test]
async fn lost_replies_leave_no_ghost() {
    let nodes = Nodes::start(NODES).await;
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::to(node.port())).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let judge = connect(&nodes.url()).await;
    for lost in [2, 3, NODES] {
        for stalls in [false, true] {
            let manager = connect(&redlock_url(&ports)).await;
            had(&manager, "key").await;
            let break_down = |is: bool| {
                for proxy in &proxies[..lost] {
                    if stalls {
                        proxy.stall(is);
                    } else {
                        proxy.swallow_replies(is);
                    }
                }
            };
            break_down(true);
            let answer = within(HANG, manager.lock("key").try_acquire()).await;
            if lost > NODES / 2 {
                is_unavailable(answer);
            } else {
                answer.expect("the lock").release().await.expect("release");
            }
            break_down(false);
            healed(&manager).await;
            nothing_left(&nodes).await;
            had(&judge, "key").await;
        }
    }
}

/// Woken by the release on the nodes that are left, and at the latest by a look
/// at them.
#[tokio::test]
async fn a_waiter_is_woken_although_nodes_are_away() {
    let mut nodes = Nodes::start(NODES).await;
    let (manager, other) = (connect(&nodes.url()).await, connect(&nodes.url()).await);
    for node in 0..2 {
        let guard = held(manager.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").acquire());
        queued(&manager, "key", 1).await;
        nodes[node].kill();
        guard.release().await.expect("the release");
        drop(served(waiting).await);
    }
}
