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
use super::super::waiters::Waiters;
use super::topology::{ListenerAt, Node, Topology};
use crate::backend::address::Address;
use crate::backend::clock::{Backoff, Deadline};

/// How long a subscription outlives its last waiter.
const LINGERS: Duration = Duration::from_secs(3);

/// So many channels are subscribed to in one go.
const AT_ONCE: usize = 500;

const SPACE: Keyspace = Keyspace::Slots;

/// What this process listens for.
pub(crate) struct Ears {
    process: Process,
    waiters: Arc<Waiters>,
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

/// Listens for a key until it is dropped, and a little longer.
pub(crate) struct Attending<'a> {
    ears: &'a Ears,
    key: &'a Arc<str>,
    heard_at: watch::Receiver<Option<Address>>,
}

/// Hears what one node says.
struct Ear {
    node: Address,
    ears: Arc<Ears>,
}

impl Listener for Ear {
    /// They come and go with the waiters.
    fn channel(&self) -> Option<String> {
        None
    }

    fn hear(&self, _channel: &str, message: &str) {
        if let Some((entry, owner, key)) = SPACE.parse_wake(message) {
            self.ears.waiters.granted(key, owner, entry);
        }
    }

    fn missed(&self) {
        self.ears.is_deaf(&self.node);
    }
}

impl Ears {
    pub(super) fn new(process: Process, waiters: Arc<Waiters>) -> Arc<Self> {
        Arc::new(Self {
            process,
            waiters,
            keys: Mutex::default(),
            changes: watch::Sender::new(()),
        })
    }

    /// Hears what the nodes tell the waiters.
    pub(super) fn listeners(self: &Arc<Self>) -> ListenerAt {
        let ears = Arc::clone(self);
        Box::new(move |node| {
            Arc::new(Ear {
                node: node.clone(),
                ears: Arc::clone(&ears),
            })
        })
    }

    /// Whether grants of this lock would be heard of.
    pub(crate) fn listen_for(&self, key: &str) -> bool {
        let keys = self.keys();
        keys.get(key)
            .is_some_and(|channel| channel.heard_at.borrow().is_some())
    }

    /// Listens for a key.
    pub(crate) fn attend<'a>(&'a self, key: &'a Arc<str>) -> Attending<'a> {
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
        Attending {
            ears: self,
            key,
            heard_at,
        }
    }

    /// Takes out what nobody has waited for for a while.
    pub(super) fn sweep(&self) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        self.keys().retain(|key, channel| {
            let kept = channel.waiters > 0 || channel.idle_since.elapsed() < LINGERS;
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

    pub(super) fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// The connection over which this node is listened to has gone, or is new.
    fn is_deaf(&self, node: &Address) {
        for channel in self.keys().values() {
            channel.is_not_heard_at(node);
        }
        self.changes.send_replace(());
        self.waiters.wake_all();
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

impl Attending<'_> {
    /// Waits until grants are heard of.
    pub(crate) async fn is_heard(&mut self) {
        // It is there for as long as this is.
        let _ = self.heard_at.wait_for(Option::is_some).await;
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        if let Some(channel) = self.ears.keys().get_mut(self.key) {
            channel.waiters -= 1;
            channel.idle_since = Instant::now();
        }
    }
}

/// Listens at every node that has slots, until the backend stops.
pub(super) async fn listen(topology: Arc<Topology>, ears: Arc<Ears>, stopping: CancellationToken) {
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
                    listening.spawn(listen_at(node, Arc::clone(&topology), Arc::clone(&ears)))
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

async fn listen_at(node: Arc<Node>, topology: Arc<Topology>, ears: Arc<Ears>) {
    let new_backoff = || Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    let mut keys = ears.changes.subscribe();
    let mut slots = topology.changes();
    let mut channels = Channels::default();
    let mut backoff = new_backoff();
    loop {
        keys.borrow_and_update();
        slots.borrow_and_update();
        if channels.follow(&node, &topology, &ears).await {
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
    async fn follow(&mut self, node: &Node, topology: &Topology, ears: &Ears) -> bool {
        let wanted: HashSet<Arc<str>> = {
            let keys = ears.keys();
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
            if let Some(channel) = ears.keys().get(key) {
                channel.is_not_heard_at(&node.address);
            }
        }
        let new: Vec<_> = wanted.difference(&self.keys).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(AT_ONCE) {
                let channels: Vec<_> = keys
                    .iter()
                    .map(|key| SPACE.wake_channel(ears.process, key))
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
        let channels = ears.keys();
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

    #[test]
    fn a_key_that_is_waited_for_again_is_heard() {
        let ears = Ears::new(Process::unique(), Waiters::new());
        let node = Address {
            host: "h".to_owned(),
            port: 1,
        };
        let key: Arc<str> = "key".into();
        let mut channels = Channels::default();
        channels.keys.insert(Arc::clone(&key));
        for _ in 0..2 {
            let attending = ears.attend(&key);
            assert!(!ears.listen_for(&key));
            channels.are_heard(&ears.keys(), &node);
            assert!(ears.listen_for(&key));
            drop(attending);
            ears.keys().remove(&key);
        }
    }
}
