//! One connection to the server, from finding it to the first usable command.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, ServerError, Value};

use super::commands;
use super::connection::{Connection, Shards};
use super::durability;
use super::errors::{Place, RetryPolicy, classify};
use super::listener::Listener;
use super::locate::Locator;
use super::names::Keyspace;
use super::settings::Settings;
use super::socket::{self, Driver, closed};
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::stores::address::Address;
use crate::stores::tier::FoundTier;

/// Makes connections.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) locator: Locator,
    pub(super) space: Keyspace,
    pub(super) place: Place,
    pub(super) clock: Time,
    /// The highest token that was had. A server that has lost its last writes,
    /// or has replaced one that did not pass them on, is told of it.
    pub(super) highest_token: AtomicU64,
    /// What the server's tokens are worth.
    pub(super) tokens: FoundTier,
}

impl Connector {
    pub(super) fn new(settings: Settings, locator: Locator, clock: Time) -> Arc<Self> {
        Arc::new(Self {
            space: locator.space(),
            place: locator.place(&settings),
            locator,
            settings,
            clock,
            highest_token: AtomicU64::new(0),
            tokens: FoundTier::unknown(),
        })
    }

    /// Connects, logs in, lifts the token counter, and looks whether the server
    /// keeps it. The whole takes no longer than until the deadline.
    pub(super) async fn open(
        &self,
        listener: Option<&Arc<Listener>>,
        deadline: Deadline,
    ) -> Result<(Connection, Driver), BackendError> {
        let opening = async {
            loop {
                let address = self.locate(deadline).await?;
                tokio::select! {
                    biased;
                    opened = self.open_at(&address, listener) => return opened,
                    () = self.moves_from(&address) => {}
                }
            }
        };
        match self.clock.bound(deadline, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(self.place.silent_at_first()),
        }
    }

    /// Where the server is. A master may have moved since it was last asked.
    async fn locate(&self, deadline: Deadline) -> Result<Address, BackendError> {
        match &self.locator {
            Locator::At(address) | Locator::Node(address) => Ok(address.clone()),
            Locator::Slot(map, slot, _) => map.locate(*slot, &self.clock, deadline).await,
            Locator::Sentinels(sentinels) => {
                // The rest of the time is for the master itself.
                let deadline = deadline.within(self.settings.patience() / 2);
                sentinels.locate(&self.place, &self.clock, deadline).await
            }
            // There are connections to its nodes only.
            Locator::Cluster(_) => Err(self.place.nonsense()),
        }
    }

    async fn open_at(
        &self,
        address: &Address,
        listener: Option<&Arc<Listener>>,
    ) -> Result<(Connection, Driver), BackendError> {
        let place = self.place.found_at(address);
        let shards = listener.filter(|_| self.space != Keyspace::Server);
        let shards = shards.map(|_| Arc::<Shards>::default());
        let hear = {
            let (listener, shards) = (listener.cloned(), shards.clone());
            move |push: &PushInfo| match (&push.kind, &shards, &listener) {
                (PushKind::SUnsubscribe, Some(shards), _) => shards.ended(),
                (_, _, Some(listener)) => listener.hear(push),
                _ => {}
            }
        };
        let (mut client, mut driver) = socket::open(address, &self.settings, &place, hear).await?;
        let channel = listener.and_then(|listener| listener.channel.as_deref());
        let token_floor = tokio::select! {
            biased;
            floor = self.set_up(&mut client, address, &place, channel) => floor?,
            () = &mut driver => return Err(place.unreachable(closed())),
        };
        if let Some(shards) = shards.clone() {
            driver = Box::pin(async move {
                tokio::select! {
                    () = driver => {}
                    () = shards.cut_off() => {}
                }
            });
        }
        let (address, clock) = (address.clone(), self.clock.clone());
        let settings = &self.settings;
        let connection =
            Connection::new(client, address, place, token_floor, settings, clock, shards);
        Ok((connection, driver))
    }

    /// No token that is drawn over this connection may be this or lower.
    async fn set_up(
        &self,
        client: &mut MultiplexedConnection,
        address: &Address,
        place: &Place,
        channel: Option<&str>,
    ) -> Result<u64, BackendError> {
        let unreachable = |error| place.unreachable(error);
        if let Locator::Sentinels(_) = self.locator {
            check_role(client, place).await?;
        }
        if let Some(channel) = channel {
            client.subscribe(channel).await.map_err(unreachable)?;
        }
        if self.space == Keyspace::Slots {
            // Each slot has its own counter, which is lifted with each draw.
            return Ok(0);
        }
        let lift = commands::lift_tokens(&self.space, self.highest_token.load(Ordering::Relaxed));
        // Behind sentinels and in a cluster, a replica is meant to take over, whatever
        // the settings of the server.
        let decides = matches!(self.locator, Locator::At(_));
        let asked = decides.then(durability::questions);
        let commands = commands::pipeline([lift].into_iter().chain(asked.into_iter().flatten()));
        let answers = client.send_packed_commands(&commands, 0, commands.len());
        let mut answers = answers.await.map_err(unreachable)?.into_iter();
        let floor = answers.next().unwrap_or_default();
        self.tokens.set(durability::tier(answers.collect()));
        let error = match floor {
            Value::Int(floor) => return Ok(floor.unsigned_abs()),
            Value::ServerError(error) => error,
            _ => return Err(place.nonsense()),
        };
        match classify(&error) {
            RetryPolicy::Foreign | RetryPolicy::ForeignCounter => Err(place.foreign_counter("")),
            // The counter has gone ahead to the node that is about to get the
            // slot: there are no tokens here, and leases may be.
            RetryPolicy::Ask if matches!(self.locator, Locator::Slot(..)) => Ok(u64::MAX),
            _ => {
                self.redirected(&error, address);
                Err(place.refused(&error))
            }
        }
    }

    /// Resolves when it is known that the slot that is meant, if it is one, is
    /// not at this address any more: a server that says nothing does not say so.
    pub(super) async fn moves_from(&self, address: &Address) {
        match &self.locator {
            Locator::Slot(map, slot, _) => map.moves_from(*slot, address).await,
            _ => pending().await,
        }
    }

    /// The server has gone, or does not answer. If it is meant for a slot, that
    /// may be elsewhere by now.
    pub(super) fn is_in_doubt(&self) {
        if let Locator::Slot(map, ..) = &self.locator {
            map.refresh_soon();
        }
    }

    /// The server at this address has refused a command. Whether that is because the
    /// slot that is meant is not its own any more: then the next connection goes
    /// elsewhere.
    pub(super) fn redirected(&self, error: &ServerError, from: &Address) -> bool {
        use RetryPolicy::{Cluster, Moved, Reconnect};
        match (&self.locator, classify(error)) {
            (Locator::Slot(map, ..), Moved | Cluster | Reconnect) => {
                map.redirected(error, from);
                true
            }
            _ => false,
        }
    }
}

/// The sentinels' word is not enough: a server that they take for the master
/// may have become a replica meanwhile.
async fn check_role(client: &mut MultiplexedConnection, place: &Place) -> Result<(), BackendError> {
    let answer = client.send_packed_command(&commands::role()).await;
    match answer.map_err(|error| place.unreachable(error))? {
        Value::Array(role) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            Some(Value::BulkString(role)) => {
                Err(place.not_the_master(&String::from_utf8_lossy(role)))
            }
            _ => Err(place.nonsense()),
        },
        Value::ServerError(error) => Err(place.refused(&error)),
        _ => Err(place.nonsense()),
    }
}
