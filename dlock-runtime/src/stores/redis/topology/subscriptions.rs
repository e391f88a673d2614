//! Hearing of grants in a cluster.
//!
//! A channel belongs to a slot as a key does, so there is one for each lock that
//! this process waits for, at the node that has the lock; it is subscribed to
//! before the waiter enters the queue, as the queue passes over who does not
//! listen. The subscription is kept for a while after the last waiter has gone:
//! a key that was waited for is waited for again as a rule.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::ServerError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::connection::Connection;
use super::super::connector::Listener;
use super::super::errors::{Remedy, remedy};
use super::super::lost::Lost;
use super::super::names::Keyspace;
use super::super::process::Process;
use super::map::{ListenerAt, Node, Topology};
use crate::deadline::{Backoff, Deadline};
use crate::engine::events::Events;
use crate::stores::address::Address;

/// How long a subscription outlives its last waiter.
const LINGERS: Duration = Duration::from_secs(3);

/// So many channels are subscribed to in one go.
const AT_ONCE: usize = 500;

const SPACE: Keyspace = Keyspace::Slots;

/// What this process listens to.
pub(crate) struct Subscriptions {
    process: Process,
    events: Events,
    keys: Mutex<HashMap<Arc<str>, Channel>>,
    /// Changes with the keys, and when what was heard may not have been all.
    changes: watch::Sender<()>,
}

struct Channel {
    slot: u16,
    waiters: usize,
    idle_since: Instant,
    /// The node at which it is subscribed to.
    heard_at: watch::Sender<Option<Address>>,
}

/// The channel of a key is listened to until this is dropped, and a little longer.
pub(crate) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    key: Arc<str>,
    heard_at: watch::Receiver<Option<Address>>,
}

/// Hears what one node says.
struct NodeListener {
    node: Address,
    subscriptions: Arc<Subscriptions>,
}

impl Listener for NodeListener {
    /// They come and go with the waiters.
    fn channel(&self) -> Option<String> {
        None
    }

    fn hear(&self, _channel: &str, message: &str) {
        if let Some((entry, owner, key)) = SPACE.parse_wake(message) {
            self.subscriptions.events.granted(owner, key, entry);
        }
    }

    fn missed(&self) {
        self.subscriptions.disconnected(&self.node);
    }
}

impl Subscriptions {
    pub(crate) fn new(process: Process, events: Events) -> Arc<Self> {
        Arc::new(Self {
            process,
            events,
            keys: Mutex::default(),
            changes: watch::Sender::new(()),
        })
    }

    /// Hears what the nodes tell the waiters.
    pub(crate) fn listeners(self: &Arc<Self>) -> ListenerAt {
        let subscriptions = Arc::clone(self);
        Box::new(move |node| {
            Arc::new(NodeListener {
                node: node.clone(),
                subscriptions: Arc::clone(&subscriptions),
            })
        })
    }

    /// Whether grants of this lock would be heard of.
    pub(crate) fn hears(&self, key: &str) -> bool {
        let keys = self.keys();
        keys.get(key)
            .is_some_and(|channel| channel.heard_at.borrow().is_some())
    }

    pub(crate) fn subscribe(self: &Arc<Self>, key: &Arc<str>) -> Subscription {
        let mut keys = self.keys();
        let mut is_new = false;
        let channel = keys.entry(Arc::clone(key)).or_insert_with(|| {
            is_new = true;
            Channel {
                slot: SPACE.slot(key),
                waiters: 0,
                idle_since: Instant::now(),
                heard_at: watch::Sender::new(None),
            }
        });
        channel.waiters += 1;
        let heard_at = channel.heard_at.subscribe();
        drop(keys);
        if is_new {
            self.changes.send_replace(());
        }
        Subscription {
            subscriptions: Arc::clone(self),
            key: Arc::clone(key),
            heard_at,
        }
    }

    /// Takes out what nobody has waited for for a while.
    pub(crate) fn sweep(&self) -> Vec<Arc<str>> {
        self.take_idle(LINGERS)
    }

    /// Takes out what nobody waits for.
    pub(crate) fn sweep_all(&self) -> Vec<Arc<str>> {
        self.take_idle(Duration::ZERO)
    }

    fn take_idle(&self, after: Duration) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        self.keys().retain(|key, channel| {
            let kept = channel.waiters > 0 || channel.idle_since.elapsed() < after;
            if !kept {
                gone.push(Arc::clone(key));
            }
            kept
        });
        if !gone.is_empty() {
            self.changes.send_replace(());
        }
        gone
    }

    /// The connection over which this node is listened to has gone, or is new.
    fn disconnected(&self, node: &Address) {
        for channel in self.keys().values() {
            channel.is_not_heard_at(node);
        }
        self.changes.send_replace(());
        self.events.missed();
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Channel>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn is_not_heard_at(&self, node: &Address) {
        self.heard_at.send_if_modified(|at| {
            let there = at.as_ref() == Some(node);
            if there {
                *at = None;
            }
            there
        });
    }
}

impl Subscription {
    /// Waits until grants are heard of.
    pub(crate) async fn is_heard(&mut self) {
        // It is there for as long as this is.
        let _ = self.heard_at.wait_for(Option::is_some).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(channel) = self.subscriptions.keys().get_mut(&self.key) {
            channel.waiters -= 1;
            channel.idle_since = Instant::now();
        }
    }
}

/// Listens at every node that has slots, until the backend stops.
pub(super) async fn listen(
    topology: Arc<Topology>,
    subscriptions: Arc<Subscriptions>,
    stopping: CancellationToken,
) {
    let mut listening = JoinSet::new();
    let mut at: HashMap<Address, tokio::task::AbortHandle> = HashMap::new();
    let mut changes = topology.changes();
    let work = async {
        loop {
            changes.borrow_and_update();
            let masters = topology.masters();
            at.retain(|address, task| {
                let stays = masters.iter().any(|node| node.address == *address);
                if !stays {
                    task.abort();
                }
                stays
            });
            for node in masters {
                at.entry(node.address.clone()).or_insert_with(|| {
                    listening.spawn(listen_at(
                        node,
                        Arc::clone(&topology),
                        Arc::clone(&subscriptions),
                    ))
                });
            }
            if changes.changed().await.is_err() {
                return;
            }
            while listening.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = work => {}
        () = stopping.cancelled() => {}
    }
}

async fn listen_at(node: Arc<Node>, topology: Arc<Topology>, subscriptions: Arc<Subscriptions>) {
    let new_backoff = || Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    let mut keys = subscriptions.changes.subscribe();
    let mut slots = topology.changes();
    let mut channels = Channels::default();
    let mut backoff = new_backoff();
    loop {
        keys.borrow_and_update();
        slots.borrow_and_update();
        if channels.follow(&node, &topology, &subscriptions).await {
            backoff = new_backoff();
            tokio::select! {
                Ok(()) = keys.changed() => {}
                Ok(()) = slots.changed() => {}
                else => return,
            }
        } else {
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}

/// The keys whose channels a connection is subscribed to.
#[derive(Default)]
struct Channels {
    connection: Option<u64>,
    keys: HashSet<Arc<str>>,
}

impl Channels {
    /// Subscribes to what is waited for at this node now, and to nothing else.
    /// Whether that was done.
    async fn follow(
        &mut self,
        node: &Node,
        topology: &Topology,
        subscriptions: &Subscriptions,
    ) -> bool {
        let wanted: HashSet<Arc<str>> = {
            let keys = subscriptions.keys();
            let is_here = |slot| topology.address(slot).as_ref() == Some(&node.address);
            let here = keys.iter().filter(|(_, channel)| is_here(channel.slot));
            here.map(|(key, _)| Arc::clone(key)).collect()
        };
        if wanted.is_empty() && self.keys.is_empty() {
            return true;
        }
        let lane = &node.one.ear;
        let deadline = Deadline::after(node.connector.settings.patience());
        let Ok(connection) = lane.connection(deadline).await else {
            topology.refresh_soon();
            return false;
        };
        if self.connection != Some(connection.id()) {
            self.connection = Some(connection.id());
            self.keys.clear();
        }
        let old: Vec<_> = self.keys.difference(&wanted).cloned().collect();
        for key in &old {
            // Before it is so: a waiter must not take it for heard.
            if let Some(channel) = subscriptions.keys().get(key) {
                channel.is_not_heard_at(&node.address);
            }
        }
        let new: Vec<_> = wanted.difference(&self.keys).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(AT_ONCE) {
                let channels: Vec<_> = keys
                    .iter()
                    .map(|key| SPACE.wake_channel(subscriptions.process, key))
                    .collect();
                match connection.subscribe(&channels, listens, deadline).await {
                    Ok(()) => {}
                    // The slot has moved already, and what it was subscribed to
                    // there has ended with that.
                    Err(Lost::Broken(error)) if !listens && is_moved(&error).is_some() => {}
                    Err(lost) => {
                        if let Lost::Broken(error) = &lost
                            && let Some(error) = is_moved(error)
                            && let Some(key) = keys.first()
                        {
                            topology.moved(SPACE.slot(key), &error, &node.address);
                        }
                        tracing::debug!(
                            target: "dlock::store",
                            "{}: {lost:?}", node.connector.place
                        );
                        // What it is subscribed to is not known any more.
                        lane.discard(&connection);
                        return false;
                    }
                }
            }
        }
        self.keys = wanted;
        // A node goes deaf under the same lock, after its connection is taken out.
        let channels = subscriptions.keys();
        let is_ours = |ready: Connection| Some(ready.id()) == self.connection;
        if !lane.ready().is_some_and(is_ours) {
            return false;
        }
        self.are_heard(&channels, &node.address);
        true
    }

    /// All of them, and not only those that are new here: one that was given up
    /// and is waited for again before its subscription has ended knows nothing
    /// of that.
    fn are_heard(&self, channels: &HashMap<Arc<str>, Channel>, node: &Address) {
        for channel in self.keys.iter().filter_map(|key| channels.get(key)) {
            channel.heard_at.send_if_modified(|at| {
                let changes = at.as_ref() != Some(node);
                if changes {
                    *at = Some(node.clone());
                }
                changes
            });
        }
    }
}

fn is_moved(error: &redis::RedisError) -> Option<ServerError> {
    let error = ServerError::try_from(error.clone()).ok()?;
    (remedy(&error) == Remedy::Moved).then_some(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::ManagerClock;
    use crate::engine::time::Time;

    #[tokio::test]
    async fn a_key_that_is_waited_for_again_is_heard() {
        let time = Time::of_the_machine(ManagerClock::of_this_runtime().expect("a runtime"));
        let subscriptions =
            Subscriptions::new(Process::unique(), Events::new(time, Duration::from_secs(8)));
        let node = Address {
            host: "h".to_owned(),
            port: 1,
        };
        let key: Arc<str> = "key".into();
        let mut channels = Channels::default();
        channels.keys.insert(Arc::clone(&key));
        for _ in 0..2 {
            let subscription = subscriptions.subscribe(&key);
            assert!(!subscriptions.hears(&key));
            channels.are_heard(&subscriptions.keys(), &node);
            assert!(subscriptions.hears(&key));
            drop(subscription);
            subscriptions.keys().remove(&key);
        }
    }
}
