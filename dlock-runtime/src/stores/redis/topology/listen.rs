//! Listening at the nodes of a cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

use super::super::channels::Channels;
use super::nodes::Topology;
use super::subscriptions::SPACE;
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::stores::address::Address;

/// Listens at every node that has slots.
pub(super) async fn listen(topology: Arc<Topology>) {
    let mut listening = JoinSet::new();
    let mut at: HashMap<Arc<Address>, AbortHandle> = HashMap::new();
    let mut changes = topology.map.changes();
    loop {
        changes.borrow_and_update();
        let masters = topology.map.masters();
        at.retain(|address, task| {
            let stays = masters.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for node in masters {
            at.entry(Arc::clone(&node))
                .or_insert_with(|| listening.spawn(listen_at(node, Arc::clone(&topology))));
        }
        if changes.changed().await.is_err() {
            return;
        }
        while listening.try_join_next().is_some() {}
    }
}

async fn listen_at(node: Arc<Address>, topology: Arc<Topology>) {
    let mut keys = topology.subscriptions.changes();
    let mut slots = topology.map.changes();
    let mut channels = Channels::default();
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        keys.borrow_and_update();
        slots.borrow_and_update();
        if follow(&mut channels, &node, &topology).await {
            backoff.reset();
            tokio::select! {
                Ok(()) = keys.changed() => {}
                Ok(()) = slots.changed() => {}
                else => return,
            }
        } else {
            backoff.wait(&topology.clock).await;
        }
    }
}

/// Subscribes to what is waited for at this node now. Whether that was done.
async fn follow(channels: &mut Channels, node: &Arc<Address>, topology: &Topology) -> bool {
    let Topology {
        map, subscriptions, ..
    } = topology;
    let wanted = subscriptions.of_slots(|slot| map.owner(slot).as_ref() == Some(node));
    let connections = topology.node(node);
    let listening = connections.of_manager();
    let followed = channels.follow(
        listening,
        &wanted,
        |key| SPACE.wake_channel(subscriptions.process, key),
        |key| subscriptions.is_left(key, node),
        Deadline::after(topology.settings.patience()),
    );
    match followed.await {
        Ok(()) => {}
        Err(Some((error, from))) => {
            map.redirected(&error, &from);
            return false;
        }
        Err(None) => {
            map.refresh_soon();
            return false;
        }
    }
    let is_ours = || {
        listening
            .ready()
            .is_some_and(|ready| channels.are_of(&ready))
    };
    wanted.is_empty() || subscriptions.are_heard(channels.keys(), node, is_ours)
}
