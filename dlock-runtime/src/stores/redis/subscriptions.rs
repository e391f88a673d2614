//! The channels to which this process listens: in a cluster, and on one server if each lock has a
//! channel of its own, as in Redisson's layout.
//!
//! A channel belongs to a slot as a key does. So there is one for each lock that this process
//! waits for, at the node that has the lock. It is subscribed to before the waiter enters the
//! queue, since the queue passes over waiters that do not listen. The subscription is kept for a
//! while after the last waiter has gone: usually the key is soon waited for again.
//!
//! A subscription is only as good as its connection, which must still be open and lead to the
//! node that has the slot. A request for a place checks that. Waiters ask again when a connection
//! is lost ([`Events::missed`](crate::engine::events::Events::missed)) or, at the next look, when
//! only the slot has moved.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batcher::Lost;
use super::connection::{Connection, Listen};
use super::names::{Keyspace, Topic};
use super::topology::SlotMap;
use super::values::Process;
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::store::Context;
use crate::sync::Mutex;

/// The subscriptions of this process.
pub(crate) struct Subscriptions {
    process: Process,
    space: Keyspace,
    /// Which node has a lock, if there is more than one node.
    map: Option<Arc<SlotMap>>,
    events: Events,
    time: Time,
    keys: Mutex<HashMap<Topic, Channel>>,
}

struct Channel {
    last_waited_for: Instant,
    /// The connection over which it was last subscribed to, and whether that was answered.
    over: (Connection, bool),
}

impl Subscriptions {
    pub(crate) fn new(
        process: Process,
        space: Keyspace,
        map: Option<Arc<SlotMap>>,
        context: &Context,
    ) -> Self {
        Self {
            process,
            space,
            map,
            events: context.events.clone(),
            time: context.time.clone(),
            keys: Mutex::default(),
        }
    }

    /// Whether messages for this lock are received.
    pub(crate) fn is_subscribed(&self, heard: &Topic) -> bool {
        self.subscription_state(heard) == Some(true)
    }

    /// Whether messages for this lock were received, but now are not.
    pub(crate) fn is_disconnected(&self, heard: &Topic) -> bool {
        self.subscription_state(heard) == Some(false)
    }

    fn subscription_state(&self, heard: &Topic) -> Option<bool> {
        let keys = self.keys.lock();
        let (connection, true) = &keys.get(heard)?.over else {
            return None;
        };
        let leads_there = self.map.as_ref().is_none_or(|map| {
            let owner = map.owner(self.space.slot(&heard.key));
            owner.is_some_and(|owner| *owner == *connection.address())
        });
        Some(leads_there && connection.is_open())
    }

    /// Subscribes to messages for this lock, over a connection to its node.
    pub(crate) async fn listen(
        &self,
        heard: &Topic,
        connection: &Connection,
        deadline: Deadline,
    ) -> Result<(), Lost> {
        loop {
            let asked = {
                let mut keys = self.keys.lock();
                let channel = Channel {
                    last_waited_for: self.time.now(),
                    over: (connection.clone(), false),
                };
                let before = keys.insert(heard.clone(), channel);
                if let Some(Channel { over: (old, _), .. }) = before
                    && !old.is(connection)
                {
                    // The node has another address now, or the slot another node. Nothing would
                    // unsubscribe there, and a process that listens counts as a waiter.
                    old.discard();
                }
                // Sent under the mutex, so that the commands have the same order as the changes
                // of the table.
                self.ask(heard, connection, true)
            };
            let mut done = true;
            for asked in asked {
                done &= connection.listened(asked, deadline).await?;
            }
            if done {
                break;
            }
        }
        if let Some(channel) = self.keys.lock().get_mut(heard) {
            let (over, is_answered) = &mut channel.over;
            *is_answered |= over.is(connection);
        }
        Ok(())
    }

    /// Subscribes to messages for a lock, to see whether that is allowed.
    pub(crate) async fn try_out(
        &self,
        key: &str,
        connection: &Connection,
        deadline: Deadline,
    ) -> Result<(), Lost> {
        let heard = Topic {
            key: Arc::from(key),
            owner: None,
        };
        let mut done = false;
        while !done {
            done = true;
            for asked in self.ask(&heard, connection, true) {
                done &= connection.listened(asked, deadline).await?;
            }
        }
        Ok(())
    }

    /// Leaves the channels that nobody has waited for during the time `after`, and returns their
    /// keys.
    pub(crate) async fn leave_idle(&self, after: Duration, deadline: Deadline) -> Vec<Arc<str>> {
        let (gone, leaving) = self.leave(after);
        for (asked, connection) in leaving {
            if connection.listened(asked, deadline).await.is_err() {
                // It is not known any more to what it is subscribed.
                connection.discard();
            }
        }
        gone
    }

    /// Sends the commands for that under the mutex, so that they have the same order as the
    /// changes of the table.
    fn leave(&self, after: Duration) -> (Vec<Arc<str>>, Vec<(Listen, Connection)>) {
        let (mut gone, mut left, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        let now = self.time.now();
        let mut keys = self.keys.lock();
        keys.retain(|heard, channel| {
            let Topic { key, owner } = heard;
            let is_waited_for = match *owner {
                Some(owner) => self.events.waiters().is_waiting(owner, key),
                None => self.events.waiters().has(key),
            };
            if is_waited_for {
                channel.last_waited_for = now;
            }
            let idle = now.saturating_duration_since(channel.last_waited_for);
            let is_kept = is_waited_for || idle < after;
            if !is_kept {
                gone.push(Arc::clone(key));
                let (connection, _) = &channel.over;
                if connection.is_open() {
                    left.push((heard.clone(), connection.clone()));
                }
            }
            is_kept
        });
        for (heard, connection) in left {
            let channel = self
                .space
                .wake_channel(self.process, &heard.key, heard.owner);
            // Some keys share a channel.
            let (of_lock, owner) = self.space.split_channel(&channel);
            let mut of_channel = self.space.freed_keys(of_lock).map(|key| Topic {
                key: Arc::from(key),
                owner,
            });
            if of_channel.all(|other| !keys.contains_key(&other)) {
                let asked = self.ask(&heard, &connection, false).into_iter();
                leaving.extend(asked.map(|asked| (asked, connection.clone())));
            }
        }
        (gone, leaving)
    }

    /// Sends the command that subscribes to this lock's channel, or unsubscribes.
    fn ask(&self, heard: &Topic, connection: &Connection, listens: bool) -> Vec<Listen> {
        let channel = self
            .space
            .wake_channel(self.process, &heard.key, heard.owner);
        let mut asked = vec![connection.listen(&channel, listens)];
        if self.space.redisson().is_some() && self.map.is_some() {
            // In a cluster, older services publish on the channel of the same name that belongs
            // to no slot.
            asked.push(connection.listen_everywhere(&channel, listens));
        }
        asked
    }
}

#[cfg(all(test, feature = "redis-cluster"))]
mod tests {
    use std::pin::pin;
    use std::task::{Context as TaskContext, Waker};

    use tokio::io::AsyncReadExt;

    use super::super::connection::tests::silent;
    use super::super::endpoint::Endpoint;
    use super::super::errors::Role;
    use super::super::topology::View;
    use super::*;
    use crate::backend::Owner;

    fn listening(connection: &Connection) -> Subscriptions {
        let map = SlotMap::new(Endpoint::new(Role::Cluster, "c", Keyspace::Slots, None));
        map.update(View {
            owners: vec![Some(Arc::new(connection.address().clone())); 16384],
            ..View::default()
        });
        let context = crate::engine::context();
        let map = Some(Arc::new(map));
        Subscriptions::new(Process::unique(), Keyspace::Slots, map, &context)
    }

    /// A node that is known by two names has two connections of this process, and a subscription
    /// over both would count as two waiters.
    #[tokio::test]
    async fn what_is_heard_over_another_connection_is_heard_over_that_alone() {
        let (old, _old_driver, _old_server) = silent(Duration::from_secs(60)).await;
        let (new, _new_driver, _new_server) = silent(Duration::from_secs(60)).await;
        let subscriptions = listening(&old);
        let heard = Keyspace::Slots.topic(&Arc::from("key"), Owner::unique());
        let task = &mut TaskContext::from_waker(Waker::noop());
        for (connection, is_open) in [(&old, true), (&old, true), (&new, false)] {
            let mut asked = pin!(subscriptions.listen(&heard, connection, Deadline::never()));
            assert!(asked.as_mut().poll(task).is_pending());
            assert_eq!(old.is_open(), is_open);
        }
        assert!(new.is_open());
    }

    /// A key that is waited for again is subscribed to after the end of its earlier subscription,
    /// even though neither was answered.
    #[tokio::test]
    async fn what_is_waited_for_again_is_heard() {
        let (connection, driver, mut server) = silent(Duration::from_secs(60)).await;
        let subscriptions = listening(&connection);
        let heard = Keyspace::Slots.topic(&Arc::from("key"), Owner::unique());
        let (key, deadline) = (heard, Deadline::never());
        let task = &mut TaskContext::from_waker(Waker::noop());
        let mut first = Box::pin(subscriptions.listen(&key, &connection, deadline));
        assert!(first.as_mut().poll(task).is_pending());
        assert!(!subscriptions.is_subscribed(&key), "it was not answered");
        let mut left = pin!(subscriptions.leave_idle(Duration::ZERO, deadline));
        assert!(left.as_mut().poll(task).is_pending());
        let mut again = pin!(subscriptions.listen(&key, &connection, deadline));
        assert!(again.as_mut().poll(task).is_pending());
        let mut sent = Vec::new();
        let words = |sent: &[u8]| -> Vec<String> {
            let text = String::from_utf8_lossy(sent);
            let words = text
                .split("\r\n")
                .filter(|word| word.ends_with("SUBSCRIBE"));
            words.map(str::to_owned).collect()
        };
        tokio::select! {
            () = connection.drive(driver) => panic!("it was closed"),
            () = async {
                while words(&sent).len() < 3 {
                    server.read_buf(&mut sent).await.expect("a command");
                }
            } => {}
        }
        assert_eq!(words(&sent), ["SSUBSCRIBE", "SUNSUBSCRIBE", "SSUBSCRIBE"]);
    }
}
