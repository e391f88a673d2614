//! Fencing tokens that every later majority is sure to exceed.

use dlock::{FencingToken, LockManager};

use crate::NODES;
use crate::harness::{REQUEST_TIMEOUT, connect};
use crate::support::calm::{always, unless_it_stands_still};
use crate::support::locks::{self, config, had, healed, held, is_unsupported, says};
use crate::support::nodes::Nodes;
use crate::support::redis::Setup;
use crate::support::wait::{HANG, until, within};

async fn next(manager: &LockManager) -> FencingToken {
    let guard = held(manager.lock("key")).await;
    let token = guard.token();
    guard.release().await.expect("the release");
    token
}

/// Nodes come back without their data, and another minority is away each time.
#[tokio::test]
async fn tokens_rise_while_nodes_come_and_go() {
    unless_it_stands_still(REQUEST_TIMEOUT / 4, nodes_come_and_go).await;
}

async fn nodes_come_and_go() {
    let mut nodes = Nodes::start(NODES).await;
    let managers = [connect(&nodes.url()).await, connect(&nodes.url()).await];
    let mut last = FencingToken::NONE;
    for one in 0..NODES {
        let two = (one + 2) % NODES;
        nodes[one].kill();
        nodes[two].pause();
        for manager in &managers {
            healed(manager).await;
            for _ in 0..3 {
                let token = next(manager).await;
                always(token > last, format_args!("{token} after {last}"));
                last = token;
            }
        }
        nodes[two].resume();
        nodes[one].restart().await;
    }
}

/// Raised at a majority, it holds for every other.
#[tokio::test]
async fn a_floor_holds_for_nodes_that_were_away_when_it_was_raised() {
    unless_it_stands_still(REQUEST_TIMEOUT / 4, a_floor_holds).await;
}

async fn a_floor_holds() {
    let nodes = Nodes::start(NODES).await;
    let manager = connect(&nodes.url()).await;
    let floor = u64::from(next(&manager).await) + 1_000_000_000_000;
    nodes[0].pause();
    nodes[1].pause();
    let naming = config(&nodes.url()).token_floor(floor);
    let naming = within(HANG, LockManager::connect(naming)).await;
    drop(naming.expect("a majority"));
    nodes[0].resume();
    nodes[1].resume();
    nodes[NODES - 1].pause();
    nodes[NODES - 2].pause();
    healed(&manager).await;
    let token = next(&manager).await;
    always(u64::from(token) > floor, token);
    nodes[NODES - 1].resume();
    nodes[NODES - 2].resume();
}

/// Strict if every node keeps every write, and not if one does not.
#[tokio::test]
async fn tokens_are_strict_where_every_node_keeps_every_write() {
    for (count, strict) in [(NODES, true), (NODES - 1, false)] {
        let mut setups = vec![Setup::default().append_only(); count];
        setups.resize(NODES, Setup::default());
        let nodes = Nodes::set_up(setups).await;
        let config = config(&nodes.url()).fenced(true).request_timeout(HANG);
        let connected = within(HANG, LockManager::connect(config)).await;
        assert_eq!(connected.is_ok(), strict, "{connected:?}");
        if !strict {
            says(&is_unsupported(connected), &["every node"]);
        }
    }
}

/// One node that is started again without its file is enough; and no restart of
/// the others brings back what it has not kept.
#[tokio::test]
async fn a_node_that_keeps_its_writes_no_more_is_found_out() {
    let mut nodes = Nodes::set_up(vec![Setup::default().append_only(); NODES]).await;
    let manager = locks::connect(config(&nodes.url())).await;
    let fenced = async || within(HANG, manager.lock("key").fenced(true).run(async {})).await;
    fenced().await.expect("the lock");
    nodes[1].restart_forgetful().await;
    let refused = until("the node is asked again", fenced, Result::is_err).await;
    is_unsupported(refused);
    had(&manager, "key").await;
    nodes[0].restart().await;
    healed(&manager).await;
    assert!(fenced().await.is_err());
}
