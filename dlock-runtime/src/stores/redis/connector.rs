//! One connection to the server, from finding it to the first usable command; and what is heard
//! over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};

use super::commands;
use super::connection::{Connection, Shards};
use super::durability;
use super::endpoint::Endpoint;
use super::errors::{RetryPolicy, classify};
use super::locate::Locator;
use super::names::Keyspace;
use super::scripts;
use super::settings::Settings;
use super::socket::{self, Driver, closed};
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::stores::address::Address;

/// Opens connections.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) locator: Locator,
    pub(super) space: Keyspace,
    pub(super) endpoint: Endpoint,
    pub(super) time: Time,
    /// The highest token that was granted. A server that has lost its last writes, or that has
    /// replaced another one without getting them, is raised to it.
    pub(super) highest_token: AtomicU64,
    /// Whether tokens are strict, by the settings of the server that was connected to last. They
    /// are read before the connection is used, so what is read here after a grant holds for it.
    pub(super) is_strict: AtomicBool,
}

impl Connector {
    pub(super) fn new(settings: Settings, locator: Locator, time: Time) -> Arc<Self> {
        Arc::new(Self {
            space: locator.space(&settings),
            endpoint: locator.endpoint(&settings),
            locator,
            settings,
            time,
            highest_token: AtomicU64::new(0),
            is_strict: AtomicBool::new(false),
        })
    }

    /// Notes that this token was granted: a server that is connected to later grants only higher
    /// ones.
    pub(super) fn given(&self, token: u64) {
        self.highest_token.fetch_max(token, Ordering::Relaxed);
    }

    /// Connects, logs in, raises the token counter, and finds out whether the server keeps it.
    /// All of this must be done by the deadline.
    pub(super) fn open<'a>(
        &'a self,
        listener: Option<&'a Arc<Listener>>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(Connection, Driver), BackendError>> {
        Box::pin(async move {
            let Self {
                settings,
                locator,
                endpoint,
                time,
                ..
            } = self;
            let opening = async {
                loop {
                    let located = locator.locate(endpoint, settings, time, deadline);
                    let address = located.await?;
                    tokio::select! {
                        biased;
                        opened = self.open_at(&address, listener) => return opened,
                        () = locator.moves_from(&address) => {}
                    }
                }
            };
            match time.bound(deadline, opening).await {
                Ok(opened) => opened,
                Err(_) => Err(endpoint.silent_at_first()),
            }
        })
    }

    async fn open_at(
        &self,
        address: &Address,
        listener: Option<&Arc<Listener>>,
    ) -> Result<(Connection, Driver), BackendError> {
        let endpoint = self.endpoint.found_at(address);
        let shards = listener.filter(|_| self.space.is_in_slots());
        let shards = shards.map(|_| Arc::<Shards>::default());
        let hear = {
            let (listener, shards) = (listener.cloned(), shards.clone());
            move |push: &PushInfo| match (&push.kind, &shards, &listener) {
                (PushKind::SUnsubscribe, Some(shards), _) => shards.ended(),
                (_, _, Some(listener)) => listener.hear(push),
                _ => {}
            }
        };
        let (mut client, mut driver) =
            socket::open(address, &self.settings, &endpoint, hear).await?;
        let channel = listener.and_then(|listener| listener.channel.as_deref());
        let token_floor = tokio::select! {
            biased;
            floor = self.set_up(&mut client, address, &endpoint, channel) => floor?,
            () = &mut driver => return Err(endpoint.unreachable(closed())),
        };
        if let Some(shards) = shards.clone() {
            driver = Box::pin(async move {
                tokio::select! {
                    () = driver => {}
                    () = shards.cut_off() => {}
                }
            });
        }
        let (address, time) = (address.clone(), self.time.clone());
        let settings = &self.settings;
        let connection = Connection::new(
            client,
            address,
            endpoint,
            token_floor,
            settings,
            time,
            shards,
        );
        Ok((connection, driver))
    }

    /// Returns the token floor: all tokens that are drawn over this connection must be above it.
    async fn set_up(
        &self,
        client: &mut MultiplexedConnection,
        address: &Address,
        endpoint: &Endpoint,
        channel: Option<&str>,
    ) -> Result<u64, BackendError> {
        let unreachable = |error| endpoint.unreachable(error);
        if let Some(label) = &self.settings.label {
            // If the user lacks the permission, the connections remain without a name.
            let name = commands::name(label);
            socket::send_one(client, &name).await.map_err(unreachable)?;
        }
        if let Locator::Sentinels(_) = self.locator {
            check_role(client, endpoint).await?;
        }
        if let Some(channel) = channel {
            client.subscribe(channel).await.map_err(unreachable)?;
        }
        if let Keyspace::Slots | Keyspace::Redisson(_) = self.space {
            // Each slot has its own counter, which every draw raises. The counters of Redisson's
            // layout, one for each lock, are never raised.
            return Ok(0);
        }
        let lift =
            commands::raise_to_clock(&self.space, self.highest_token.load(Ordering::Relaxed));
        // With sentinels and in a cluster, a replica is meant to take over, so the settings of
        // one server do not decide what its tokens are worth.
        let decides = matches!(self.locator, Locator::At(_));
        let asked = decides.then(durability::questions);
        let commands = commands::pipeline([lift].into_iter().chain(asked.into_iter().flatten()));
        let answers = socket::send(client, &commands).await;
        let mut answers = answers.map_err(unreachable)?.into_iter();
        let floor = answers.next().unwrap_or_default();
        let is_strict = durability::is_strict(answers.collect());
        self.is_strict.store(is_strict, Ordering::Release);
        let error = match floor {
            Value::Int(floor) => {
                let floor = scripts::number(floor);
                return floor.ok_or_else(|| endpoint.foreign_counter(""));
            }
            Value::ServerError(error) => error,
            _ => return Err(endpoint.unexpected_answer()),
        };
        match classify(&error) {
            RetryPolicy::Foreign | RetryPolicy::ForeignCounter => Err(endpoint.foreign_counter("")),
            // The counter has already moved to the node that is about to get the slot. No tokens
            // can be drawn here, but there may still be leases.
            RetryPolicy::Ask if matches!(self.locator, Locator::Slot(..)) => Ok(u64::MAX),
            _ => {
                self.locator.redirected(&error, address);
                Err(endpoint.refused(&error))
            }
        }
    }
}

/// Checks that the server is a master: the one that the sentinels name may have become a replica
/// meanwhile.
async fn check_role(
    client: &mut MultiplexedConnection,
    endpoint: &Endpoint,
) -> Result<(), BackendError> {
    let answer = socket::send_one(client, &commands::role()).await;
    match answer.map_err(|error| endpoint.unreachable(error))? {
        Value::ServerError(error) => Err(endpoint.refused(&error)),
        answer => match durability::role(&answer) {
            Some((b"master", _)) => Ok(()),
            Some((role, _)) => Err(endpoint.not_the_master(&String::from_utf8_lossy(role))),
            None => Err(endpoint.unexpected_answer()),
        },
    }
}

/// Passes on the messages that come over a connection.
pub(super) struct Listener {
    pub(super) space: Keyspace,
    pub(super) events: Events,
    /// The channel to which each new connection subscribes. Subscriptions to other channels come
    /// and go with the waiters.
    pub(super) channel: Option<String>,
}

impl Listener {
    pub(super) fn hear(&self, push: &PushInfo) {
        let (PushKind::Message | PushKind::SMessage, [channel, message]) =
            (&push.kind, &push.data[..])
        else {
            return;
        };
        let (Some(channel), Some(message)) = (text(channel), text(message)) else {
            return;
        };
        if let Some((entry, owner, key)) = self.space.parse_wake(message) {
            self.events.granted(owner, key, entry);
        } else {
            let (channel, owner) = self.space.split_channel(channel);
            for key in self.space.freed_keys(channel) {
                match owner {
                    Some(owner) => self.events.wake(owner, key),
                    #[cfg(feature = "quorum")]
                    None => self.events.freed_by(message, key),
                    #[cfg(not(feature = "quorum"))]
                    None => self.events.freed(key),
                }
            }
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}
