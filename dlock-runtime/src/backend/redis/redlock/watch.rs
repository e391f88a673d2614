//! What a process does by itself while somebody in it waits: it listens to the
//! locks' channels at every node, and once a second looks at all the locks that
//! are waited for. A message can be lost, and a holder that dies sends none; one
//! `MGET` a second and node shows both, however many wait.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ServerError, Value};
use tokio_util::sync::CancellationToken;

use super::super::commands;
use super::super::connections::Lane;
use super::super::lost::Lost;
use super::super::servers::Servers;
use super::common::Common;
use super::nodes::Node;
use super::waiters::Waiters;
use crate::backend::clock::{Backoff, Deadline};

const PERIOD: Duration = Duration::from_secs(1);

/// So many keys are asked for in one command: the server does nothing else
/// meanwhile.
const KEYS_AT_ONCE: usize = 1000;

/// How long the slower nodes are waited for once a majority has answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

/// Looks at the locks that are waited for, until the backend stops.
pub(super) async fn keep_watch(common: Arc<Common>, stopping: CancellationToken) {
    let mut changes = common.waiters.changes();
    let watch = async {
        loop {
            changes.borrow_and_update();
            if common.waiters.keys().is_empty() {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            tokio::time::sleep(PERIOD).await;
            look(&common).await;
        }
    };
    tokio::select! {
        () = watch => {}
        () = stopping.cancelled() => {}
    }
}

async fn look(common: &Common) {
    let keys = common.waiters.keys();
    let asked = Instant::now();
    let mut silent = common.chosen();
    let mut questions: FuturesUnordered<_> = silent
        .iter()
        .map(|node| values(node, &common.nodes[node], &keys))
        .collect();
    let mut answers: Vec<Vec<Value>> = Vec::with_capacity(common.nodes.len());
    let mut deadline = Deadline::after(common.patience());
    while let Ok(Some((node, values))) = common.clock.bound(deadline, questions.next()).await {
        if let Some(values) = values {
            silent.remove(node);
            answers.push(values);
        }
        if answers.len() >= common.majority() {
            deadline = deadline.within(FOR_THE_OTHERS);
        }
    }
    drop(questions);
    common.doubt(silent);
    if answers.len() < common.majority() {
        // Each waiter now finds out for itself, and fails if the outage lasts
        // for the request timeout.
        common.waiters.wake_all();
        return;
    }
    common.waiters.heard(asked);
    for (index, key) in keys.iter().enumerate() {
        let values = answers.iter().map(|values| match values.get(index) {
            Some(Value::BulkString(value)) => Some(value.as_slice()),
            // It is free, or of another type, which asking shows.
            _ => None,
        });
        common.waiters.look(key, values);
    }
}

/// What these locks hold at a node.
async fn values(number: usize, node: &Node, keys: &[Arc<str>]) -> (usize, Option<Vec<Value>>) {
    (
        number,
        ask_for_values(node.servers(), &node.one.lane, keys).await,
    )
}

async fn ask_for_values(servers: &Servers, lane: &Lane, keys: &[Arc<str>]) -> Option<Vec<Value>> {
    let deadline = Deadline::after(servers.connector.settings.patience());
    let connection = lane.connection(deadline).await.ok()?;
    let looks = keys
        .chunks(KEYS_AT_ONCE)
        .map(|keys| commands::values(servers.space(), keys.iter().map(|key| &**key)));
    let Ok(answers) = connection
        .run_all(&commands::pipeline(looks), deadline)
        .await
    else {
        lane.discard(&connection);
        return None;
    };
    let mut values = Vec::with_capacity(keys.len());
    for answer in answers {
        match answer {
            Value::Array(some) => values.extend(some),
            Value::ServerError(error) => {
                if servers.connector.redirected(&error, connection.address()) {
                    lane.discard(&connection);
                    return None;
                }
                let error = servers.connector.place.refused(&error);
                tracing::warn!(target: "dlock::store", "dlock cannot look after its waiters: {error}");
                return None;
            }
            _ => return None,
        }
    }
    Some(values)
}

/// Listens to the channels of the keys that are waited for, at one node.
pub(super) async fn listen(
    node: usize,
    ear: Arc<Lane>,
    waiters: Arc<Waiters>,
    stopping: CancellationToken,
) {
    let listen = async {
        let mut changes = waiters.changes();
        let mut channels = Channels::default();
        let mut backoff = new_backoff();
        loop {
            changes.borrow_and_update();
            if channels.follow(node, &ear, &waiters).await {
                backoff = new_backoff();
                if changes.changed().await.is_err() {
                    return;
                }
            } else {
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    };
    tokio::select! {
        () = listen => {}
        () = stopping.cancelled() => {}
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), PERIOD)
}

/// The keys whose channels a connection is subscribed to.
#[derive(Default)]
struct Channels {
    connection: Option<u64>,
    keys: HashSet<Arc<str>>,
}

impl Channels {
    /// Subscribes to what is waited for now, and to nothing else. Whether that
    /// was done.
    async fn follow(&mut self, node: usize, ear: &Lane, waiters: &Waiters) -> bool {
        let wanted: HashSet<_> = waiters.keys().into_iter().collect();
        if wanted.is_empty() && self.keys.is_empty() {
            return true;
        }
        let connector = ear.connector();
        let space = &connector.settings.space;
        let deadline = Deadline::after(connector.settings.patience());
        let Ok(connection) = ear.connection(deadline).await else {
            return false;
        };
        if self.connection != Some(connection.id()) {
            self.connection = Some(connection.id());
            self.keys.clear();
        }
        let new: Vec<_> = wanted.difference(&self.keys).cloned().collect();
        let old: Vec<_> = self.keys.difference(&wanted).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(KEYS_AT_ONCE) {
                let channels: Vec<_> = keys.iter().map(|key| space.freed_channel(key)).collect();
                let done = connection.subscribe(&channels, listens, deadline).await;
                if let Err(lost) = done {
                    tracing::debug!(target: "dlock::store", "{}: {lost:?}", connector.place);
                    if let Lost::Broken(error) = lost
                        && let Ok(error) = ServerError::try_from(error)
                    {
                        connector.redirected(&error, connection.address());
                    }
                    // What it is subscribed to is not known any more.
                    ear.discard(&connection);
                    return false;
                }
            }
        }
        waiters.listens(node, wanted.iter());
        self.keys = wanted;
        true
    }
}
