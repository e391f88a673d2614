//! Nodes that are slow, stopped, killed, or come back without their data.

use std::time::Duration;

use dlock::LockManager;

use crate::harness::{REQUEST_TIMEOUT, config, connect, nothing_left};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    self, had, healed, held, is_busy, is_unavailable, queued, says, served,
};
use crate::support::nodes::Nodes;
use crate::support::wait::{HANG, eventually, until, within};
use crate::{NODES, lock_name};

/// One with the time that a slow machine may need: where nobody is silent, it waits for nobody.
async fn patient(nodes: &Nodes) -> LockManager {
    locks::connect(locks::config(&nodes.url())).await
}

/// One or two of five that do not answer cost nothing; with three there is no
/// majority, which is said in time, and heals.
#[tokio::test]
async fn stopped_nodes() {
    // No longer than an answer may take.
    unless_it_stands_still(Duration::from_millis(500), nodes_are_stopped).await;
}

async fn nodes_are_stopped() {
    let nodes = Nodes::start(NODES).await;
    let (manager, other) = (connect(&nodes.url()).await, connect(&nodes.url()).await);
    let pairs = async |count: usize| {
        // Were the stopped ones waited for each time, it would take minutes.
        within(HANG, async {
            for _ in 0..count {
                had(&manager, "key").await;
                let guard = held(other.lock("key")).await;
                is_busy(manager.lock("key").try_acquire().await);
                guard.release().await.expect("the release");
            }
        })
        .await;
    };
    pairs(10).await;
    for node in 0..2 {
        nodes[node].pause();
        pairs(100).await;
    }
    let guard = held(manager.lock("held")).await;
    nodes[2].pause();
    within(10 * REQUEST_TIMEOUT, async {
        is_unavailable(manager.lock("key").acquire().await);
        is_unavailable(other.lock("key").try_acquire().await);
        is_unavailable(manager.inspect("key").await);
    })
    .await;
    // It is still held: a majority that cannot be asked has not taken it away.
    assert!(guard.is_held());
    nodes[2].resume();
    healed(&manager).await;
    healed(&other).await;
    is_busy(other.lock("held").try_acquire().await);
    nodes[0].resume();
    nodes[1].resume();
    pairs(10).await;
    guard.release().await.expect("the release");
    nothing_left(&nodes).await;
}

/// A node that comes back is used again: else there would be no majority at the
/// end of this.
#[tokio::test]
async fn killed_nodes_are_used_again() {
    let mut nodes = Nodes::start(NODES).await;
    let manager = patient(&nodes).await;
    had(&manager, "key").await;
    for node in [0, 1] {
        nodes[node].kill();
        had(&manager, "key").await;
    }
    for (back, gone) in [(0, 2), (1, 3), (2, 4)] {
        nodes[back].restart().await;
        // Not before it is known to answer: the vote of each is needed below.
        let holds = async || {
            had(&manager, "key").await;
            let guard = held(manager.lock("used")).await;
            let value: Option<String> = nodes[back].command(&["GET", &lock_name("used")]).await;
            guard.release().await.expect("the release");
            value
        };
        until("it votes", holds, Option::is_some).await;
        nodes[gone].kill();
        healed(&manager).await;
    }
}

/// A minority that is not there when the service starts is used once it is.
#[tokio::test]
async fn a_minority_may_be_missing_at_the_start() {
    unless_it_stands_still(REQUEST_TIMEOUT / 4, a_minority_is_missing).await;
}

async fn a_minority_is_missing() {
    let mut nodes = Nodes::start(NODES).await;
    nodes[0].kill();
    nodes[1].pause();
    let manager = connect(&nodes.url()).await;
    had(&manager, "key").await;
    nodes[2].kill();
    is_unavailable(within(HANG, manager.lock("key").try_acquire()).await);
    let late = within(HANG, LockManager::connect(config(&nodes.url()))).await;
    says(&is_unavailable(late), &["2 of 5", "3 must"]);
    nodes[0].restart().await;
    healed(&manager).await;
    nodes[1].resume();
    nodes[3].kill();
    healed(&manager).await;
}

/// As each node lists them.
#[tokio::test]
async fn connections_bear_the_label() {
    let nodes = Nodes::start(NODES).await;
    let manager = locks::connect(locks::config(&nodes.url()).label("orders")).await;
    let _guard = held(manager.lock("key")).await;
    for node in nodes.iter() {
        let clients = async || -> String { node.command(&["CLIENT", "LIST"]).await };
        let bears_it = |clients: &String| clients.contains(" name=orders ");
        until("it bears the label", clients, bears_it).await;
    }
}

/// Half of the time that a list waits for the slower nodes: what two of five have may be a lock,
/// as long as a third one has not said what it has.
const STANDS_STILL: Duration = Duration::from_millis(50);

/// Of many locks the first few are looked at. What only a minority has is neither among these nor
/// counted, although it comes first.
#[tokio::test]
async fn a_list_of_the_first_looks_at_no_others() {
    unless_it_stands_still(STANDS_STILL, async || {
        const LOCKS: usize = 40;
        const MOST: usize = 5;
        let nodes = Nodes::start(NODES).await;
        let manager = patient(&nodes).await;
        let keys: Vec<_> = (0..LOCKS).map(|number| format!("k{number:02}")).collect();
        let names: Vec<_> = keys.iter().map(String::as_str).collect();
        let ttl = Duration::from_secs(600);
        let _held = held(manager.lock(names.clone()).ttl(ttl)).await;
        let only = held(patient(&nodes).await.lock("a").ttl(ttl)).await;
        for node in 0..3 {
            // More than half of the nodes are enough to have it.
            let name = eventually("its key at a node", async || {
                let mut names = nodes[node].keys().await.into_iter();
                names.find(|name| name.contains("{a}"))
            });
            let name = name.await;
            nodes[node].command::<()>(&["DEL", &name]).await;
        }

        let scripts = || nodes.iter().map(|node| node.calls("evalsha")).sum::<u64>();
        let each = u64::try_from(NODES * MOST).expect("few");
        // A node that is slow to name its locks is not asked about them.
        eventually("all nodes are asked", async || {
            let before = scripts();
            let listed = within(HANG, manager.list_some("", MOST)).await;
            let listed = listed.expect("a list");
            let looks = scripts() - before;
            let shown: Vec<_> = listed.locks.iter().map(|lock| &*lock.key).collect();
            assert_eq!(shown, names[..MOST]);
            assert_eq!(listed.others, LOCKS - MOST);
            assert!(looks <= each, "{looks}");
            (looks == each).then_some(())
        })
        .await;
        drop(only);
    })
    .await;
}

/// Woken by the release on the nodes that are left, and at the latest by a look
/// at them.
#[tokio::test]
async fn a_waiter_is_woken_although_nodes_are_away() {
    let mut nodes = Nodes::start(NODES).await;
    let (manager, other) = (patient(&nodes).await, patient(&nodes).await);
    for node in 0..2 {
        let guard = held(manager.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").acquire());
        queued(&manager, "key", 1).await;
        nodes[node].kill();
        guard.release().await.expect("the release");
        drop(served(waiting).await);
    }
}
