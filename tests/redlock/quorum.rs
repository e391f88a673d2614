//! Only a majority of all nodes is the lock, and nothing else is left of it.

use std::time::Duration;

use dlock::LockError;
use tokio::task::JoinSet;

use crate::harness::{connect, had, healed, is_busy, nothing_left, unavailable, waited_for};
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until, within};
use crate::{NODES, lock_name};

/// What an owner that has died without a trace has left on some of the nodes.
async fn vote_of_the_dead(nodes: &Nodes, count: usize, key: &str, ttl: Duration) {
    for node in nodes.iter().take(count) {
        let ttl = ttl.as_millis().to_string();
        let set: String = node
            .command(&["SET", &lock_name(key), "w:dead.1", "PX", &ttl])
            .await;
        assert_eq!(set, "OK");
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

/// The lock is in the hands of four, none of whom has a majority.
#[tokio::test]
async fn a_split_vote_is_not_a_lock() {
    let nodes = Nodes::start(NODES).await;
    let manager = connect(&nodes.url()).await;
    for (number, node) in nodes.iter().take(4).enumerate() {
        let value = format!("w:{number}.1");
        node.command::<String>(&["SET", &lock_name("key"), &value, "PX", "1500"])
            .await;
    }
    assert!(manager.inspect("key").await.expect("inspect").is_none());
    had(&manager, "key").await;
    nothing_left(&nodes).await;
}

/// Each of two is always first at half of the nodes, and so neither can win
/// while both ask at the same time.
#[tokio::test]
async fn contenders_who_split_the_nodes_end_soon() {
    let nodes = Nodes::start(4).await;
    let proxies = |slow: [bool; 4]| -> Vec<Proxy> {
        let ports = nodes.ports();
        let proxies = ports.iter().zip(slow).map(|(&port, slow)| {
            let proxy = Proxy::to(port);
            proxy.delay(slow.then_some(Duration::from_millis(10)));
            proxy
        });
        proxies.collect()
    };
    let (one, two) = (
        proxies([false, false, true, true]),
        proxies([true, true, false, false]),
    );
    let mut contenders = JoinSet::new();
    for proxies in [&one, &two] {
        let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
        let manager = connect(&redlock_url(&ports)).await;
        contenders.spawn(async move {
            for _ in 0..10 {
                manager.lock("key").run(async {}).await?;
            }
            Ok::<_, LockError>(())
        });
    }
    let all = within(HANG, contenders.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the lock");
    nothing_left(&nodes).await;
}

/// Guarantee 11, on every node.
#[tokio::test]
async fn nothing_is_left_on_any_node() {
    let nodes = Nodes::start(NODES).await;
    let (manager, other) = (connect(&nodes.url()).await, connect(&nodes.url()).await);
    had(&manager, "released").await;
    within(HANG, manager.lock("read").read().run(async {}))
        .await
        .expect("the lock");
    let guard = manager.lock("key").acquire().await.expect("the lock");
    is_busy(other.lock("key").try_acquire().await);
    is_busy(other.lock("key").read().try_acquire().await);
    let waiting = tokio::spawn(other.lock("key").acquire());
    waited_for(&manager, "key").await;
    waiting.abort();
    drop(guard);
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
                unavailable(answer);
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

/// Answers are lost, and the nodes are well again within the same call: what its
/// first election has left there is nobody who holds the lock.
#[tokio::test]
async fn who_only_tries_is_not_in_its_own_way() {
    let nodes = Nodes::start(NODES).await;
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::to(node.port())).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let manager = connect(&redlock_url(&ports)).await;
    had(&manager, "key").await;
    for number in 0..8 {
        // A node whose answers were missed for too long is dialled anew, and has no
        // vote until then.
        let votes = async || {
            let guard = manager.lock("all").try_acquire().await;
            let votes = nodes.get(&lock_name("all")).await;
            drop(guard);
            votes
        };
        until("all vote", votes, |votes| votes.iter().all(Option::is_some)).await;
        let key = format!("key:{number}");
        let swallow_replies = |is: bool| {
            for proxy in &proxies[2..] {
                proxy.swallow_replies(is);
            }
        };
        swallow_replies(true);
        let answer = tokio::spawn(manager.lock(key.clone()).try_acquire());
        let votes = async || nodes.get(&lock_name(&key)).await;
        until("all have voted", votes, |votes| {
            votes.iter().all(Option::is_some)
        })
        .await;
        swallow_replies(false);
        let guard = within(HANG, answer).await.expect("no panic");
        let guard = guard.expect("a lock that nobody has");
        guard.release().await.expect("the release");
    }
    nothing_left(&nodes).await;
}

/// The caller has gone while its requests are on the way.
#[tokio::test]
async fn a_dropped_call_that_arrives_late_leaves_no_ghost() {
    let nodes = Nodes::start(NODES).await;
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::to(node.port())).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let manager = connect(&redlock_url(&ports)).await;
    had(&manager, "key").await;
    for proxy in &proxies {
        proxy.stall(true);
    }
    let call = manager.lock("key").acquire();
    let _ = tokio::time::timeout(Duration::from_millis(50), call).await;
    for proxy in &proxies {
        proxy.stall(false);
    }
    healed(&manager).await;
    nothing_left(&nodes).await;
}

/// Woken by the release on the nodes that are left, and at the latest by a look
/// at them.
#[tokio::test]
async fn a_waiter_is_woken_although_nodes_are_away() {
    let mut nodes = Nodes::start(NODES).await;
    let (manager, other) = (connect(&nodes.url()).await, connect(&nodes.url()).await);
    for node in 0..2 {
        let guard = manager.lock("key").acquire().await.expect("the lock");
        let waiting = tokio::spawn(other.lock("key").acquire());
        waited_for(&manager, "key").await;
        nodes[node].kill();
        guard.release().await.expect("the release");
        let guard = within(HANG, waiting).await.expect("no panic");
        drop(guard.expect("the lock"));
    }
}
