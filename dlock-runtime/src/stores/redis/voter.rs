//! One server, or one slot of a cluster, as a voter of a quorum.
//!
//! A vote is the lock on it, with the keys and scripts of a single server. Waiters listen on the
//! lock's own channel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{InfoDict, Value};

#[cfg(feature = "redis-cluster")]
use super::cluster::masters;
use super::commands;
use super::config::Config;
use super::connection::Connection;
use super::connections::RuntimeConnection;
use super::connector::Connector;
#[cfg(feature = "redis-cluster")]
use super::locate::Locator;
use super::names::Keyspace;
use super::servers::{Notes, RedisStore, unexpected_answer};
use super::values::LockValue;
use crate::backend::{BackendError, LockInfo, Request};
use crate::deadline::Deadline;
use crate::outlast::outlast;
use crate::quorum::voter::{Holder, Vote, Voter};
use crate::store::{Attempt, Attempted, Failure};

/// The most channels in one round of subscriptions.
const AT_ONCE: usize = 500;

impl Voter for RedisStore {
    type Connection = Connection;
    type Listening = Channels;

    async fn electorate(
        voters: Vec<Config>,
        request_timeout: Duration,
    ) -> Result<Vec<Config>, BackendError> {
        #[cfg(not(feature = "redis-cluster"))]
        let _ = request_timeout;
        match &voters[..] {
            #[cfg(feature = "redis-cluster")]
            [cluster] if matches!(cluster.locator, Locator::Cluster(_)) => {
                masters::elect(cluster, request_timeout).await
            }
            _ => Ok(voters),
        }
    }

    fn place(&self) -> String {
        self.connector.endpoint.to_string()
    }

    /// Some servers do not report their `run_id`. For a slot, there is nothing to compare.
    async fn identity(&self, deadline: Deadline) -> Option<String> {
        if *self.space() != Keyspace::Server {
            return None;
        }
        let answer = self.ask("", deadline, &|| commands::info("server"));
        let info = redis::from_redis_value::<InfoDict>(answer.await.ok()?.value);
        info.ok()?.get("run_id")
    }

    fn is_connected(&self) -> bool {
        let here = self.one().map(|one| one.here());
        matches!(here, Some(Ok(here)) if here.ready().is_some())
    }

    async fn vote(
        &self,
        request: &Request,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Vote> {
        self.check_electorate().map_err(Failure::refused)?;
        let answer = self.ask_for_lock(request, false, deadline, notes).await?;
        match &answer.value {
            Value::Int(last) => {
                let last = self.drawn(&answer.from, &request.key, *last)?;
                Ok(Vote::Yes { last })
            }
            held @ (Value::BulkString(_) | Value::Nil) => Ok(Vote::No(holder(held))),
            _ => Err(unexpected_answer(&answer.from)),
        }
    }

    async fn raise(&self, last: u64, deadline: Deadline) -> Attempted<()> {
        self.raise_counter("", last, deadline).await
    }

    fn given(&self, last: u64) {
        self.connector.given(last);
    }

    async fn values(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> Attempted<Vec<Option<Holder>>> {
        let values = self.values_of(keys, deadline).await;
        let values = values.into_iter();
        values.map(|value| Ok(holder(&value?))).collect()
    }

    async fn keys(
        &self,
        prefix: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<BTreeSet<String>>> {
        self.next_keys(prefix, deadline, notes).await
    }

    async fn look_at_each(&self, keys: &[String], deadline: Deadline) -> Attempted<Vec<LockInfo>> {
        self.look_at_all(keys, deadline).await
    }

    async fn listen(
        &self,
        keys: &BTreeSet<Arc<str>>,
        channels: &mut Channels,
        deadline: Deadline,
    ) -> Attempted<()> {
        let Some(one) = self.one() else {
            return Ok(());
        };
        let space = self.space();
        let channel_of = |key: &str| space.freed_channel(key);
        let following = channels.follow(one.of_manager(), keys, channel_of, deadline);
        following.await
    }

    fn asked_over(notes: &Notes) -> Option<Connection> {
        notes.in_flight.clone()
    }

    async fn ping(&self, connection: Option<&Connection>, deadline: Deadline) -> Attempted<()> {
        let (connector, is_given) = (&self.connector, connection.is_some());
        let pinged = async {
            let connection = match connection {
                Some(connection) => connection.clone(),
                None => self.connection("", deadline).await?,
            };
            let answer = connection.run_behind(commands::ping());
            let answer = connector.time.bound(deadline, answer).await;
            if let Ok(Ok(_)) = answer {
                return Ok(());
            }
            // Silence alone does not close the manager's connection, which may only be slow.
            if is_given || answer.is_ok() {
                connection.discard();
            }
            Err(Failure::not_sent())
        };
        // The slot may have moved.
        pinged
            .await
            .inspect_err(|_| connector.locator.refresh_if_slot())
    }
}

/// The holder of a lock, by the value of its key. `None`: the lock is free, or the key has
/// another type, which the next attempt to take it reports.
fn holder(value: &Value) -> Option<Holder> {
    let Value::BulkString(value) = value else {
        return None;
    };
    let LockValue { mode, owner, .. } = LockValue::parse(value)?;
    Some(Holder { mode, owner })
}

/// The keys whose channels a connection is subscribed to.
#[derive(Default)]
pub(crate) struct Channels {
    connection: Option<Connection>,
    keys: BTreeSet<Arc<str>>,
}

impl Channels {
    /// Subscribes to the channels of the wanted keys, and unsubscribes from all others.
    pub(super) async fn follow(
        &mut self,
        listening: &RuntimeConnection,
        wanted: &BTreeSet<Arc<str>>,
        channel_of: impl Fn(&str) -> String,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        if wanted.is_empty() && self.keys.is_empty() {
            return Ok(());
        }
        let connection = listening.connection(deadline).await?;
        let ours = self.connection.as_ref();
        if ours.is_none_or(|ours| !ours.is(&connection)) {
            self.connection = Some(connection.clone());
            self.keys.clear();
        }
        let old: Vec<_> = self.keys.difference(wanted).cloned().collect();
        let new: Vec<_> = wanted.difference(&self.keys).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(AT_ONCE) {
                let channels: Vec<_> = keys.iter().map(|key| channel_of(key)).collect();
                let Err(lost) = connection.subscribe(&channels, listens, deadline).await else {
                    continue;
                };
                outlast(|| {
                    tracing::debug!(target: "dlock::store", "{}: {lost:?}", connection.endpoint());
                });
                // It is not known any more to what it is subscribed.
                connection.discard();
                if let Some(error) = lost.refusal() {
                    let Connector { locator, .. } = &*listening.connector;
                    locator.redirected(&error, connection.address());
                }
                return Err(Failure::not_sent());
            }
        }
        self.keys.clone_from(wanted);
        Ok(())
    }
}
