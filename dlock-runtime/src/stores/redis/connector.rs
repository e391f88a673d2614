//! One connection to the server, from the socket to the first usable command.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, ServerError, Value};

use super::commands;
use super::connection::{Connection, Driver, Opened, Shards, closed};
use super::durability;
use super::errors::{Place, Remedy, remedy};
use super::locate::Locator;
use super::names::Keyspace;
use super::settings::Settings;
use super::socket::{Socket, dial};
use crate::backend::BackendError;
use crate::deadline::{Deadline, ManagerClock};
use crate::stores::address::Address;
use crate::stores::tier::FoundTier;

/// So many commands of other tasks may wait for the connection to take them.
/// The client's 50 are fewer than a busy service has tasks, each of which would
/// be put to sleep and woken once more.
const PIPELINE_BUFFER: usize = 1024;

/// Makes connections.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) locator: Locator,
    pub(super) place: Place,
    pub(super) clock: ManagerClock,
    /// The highest token that was had. A server that has lost its last writes,
    /// or has replaced one that did not pass them on, is told of it.
    pub(super) highest_token: AtomicU64,
    /// What the server's tokens are worth.
    pub(super) tokens: FoundTier,
}

/// Whom the messages that come over a connection are for.
pub(super) trait Listener: Send + Sync {
    /// What each new connection subscribes to.
    fn channel(&self) -> Option<String>;

    fn hear(&self, channel: &str, message: &str);

    /// A connection was made or has broken: messages may have been missed.
    fn missed(&self);
}

impl Connector {
    /// Connects, logs in, lifts the token counter, and looks whether the server
    /// keeps it. The whole takes no longer than until the deadline.
    pub(super) async fn open(
        &self,
        listener: Option<&Arc<dyn Listener>>,
        deadline: Deadline,
    ) -> Result<Opened, BackendError> {
        match self
            .clock
            .bound(deadline, self.open_unbounded(listener, deadline))
            .await
        {
            Ok(opened) => opened,
            Err(_) => Err(self.place.silent_at_first()),
        }
    }

    async fn open_unbounded(
        &self,
        listener: Option<&Arc<dyn Listener>>,
        deadline: Deadline,
    ) -> Result<Opened, BackendError> {
        loop {
            let address = self.locate(deadline).await?;
            let place = self.place.found_at(&address);
            let opened = async {
                let socket = dial(&address, &self.settings)
                    .await
                    .map_err(|error| place.no_connection(error))?;
                self.log_in(socket, address.clone(), &place, listener).await
            };
            tokio::select! {
                biased;
                opened = opened => return opened,
                () = self.moves_from(&address) => {}
            }
        }
    }

    /// Where the server is. A master may have moved since it was last asked.
    async fn locate(&self, deadline: Deadline) -> Result<Address, BackendError> {
        match &self.locator {
            Locator::At(address) => Ok(address.clone()),
            Locator::OfSlot(map, slot) => map.locate(*slot, deadline).await,
            Locator::Sentinels(sentinels) => {
                // The rest of the time is for the master itself.
                let deadline = deadline.within(self.settings.patience() / 2);
                sentinels.locate(&self.place, &self.clock, deadline).await
            }
        }
    }

    async fn log_in(
        &self,
        socket: Box<dyn Socket>,
        address: Address,
        place: &Place,
        listener: Option<&Arc<dyn Listener>>,
    ) -> Result<Opened, BackendError> {
        let unreachable = |error| place.unreachable(error);
        let mut config = AsyncConnectionConfig::new()
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            // Each call has a deadline of its own.
            .set_response_timeout(None);
        let space = &self.settings.space;
        let mut shards = None;
        if let Some(listener) = listener {
            let listener = Arc::clone(listener);
            let subscribed = match space {
                Keyspace::Server => None,
                Keyspace::Slots | Keyspace::Vote(_) => Some(Arc::<Shards>::default()),
            };
            shards.clone_from(&subscribed);
            config = config.set_push_sender(move |push: PushInfo| {
                match (&push.kind, &subscribed) {
                    (PushKind::SUnsubscribe, Some(shards)) => shards.ended(),
                    _ => hear(&*listener, &push),
                }
                Ok::<_, std::convert::Infallible>(())
            });
        }
        let (mut multiplexed, driver) =
            MultiplexedConnection::new_with_config(&self.settings.login, socket, config)
                .await
                .map_err(unreachable)?;
        let mut driver: Driver = Box::pin(driver);
        let lowest = self.highest_token.load(Ordering::Relaxed);
        let set_up = async {
            if self.settings.has_sentinels() {
                check_role(&mut multiplexed, place).await?;
            }
            if let Some(channel) = listener.and_then(|listener| listener.channel()) {
                multiplexed.subscribe(channel).await.map_err(unreachable)?;
            }
            if *space == Keyspace::Slots {
                // Each slot has its own, which is lifted with each draw.
                return Ok(0);
            }
            let lift = commands::lift_tokens(space, lowest);
            let asked = durability::is_asked(&self.settings).then(durability::questions);
            let commands =
                commands::pipeline([lift].into_iter().chain(asked.into_iter().flatten()));
            let count = commands.len();
            let mut answers = multiplexed
                .send_packed_commands(&commands, 0, count)
                .await
                .map_err(unreachable)?
                .into_iter();
            let floor = answers.next().unwrap_or_default();
            self.tokens.set(durability::tier(answers.collect()));
            match floor {
                Value::Int(floor) => Ok(floor.unsigned_abs()),
                Value::ServerError(error)
                    if matches!(remedy(&error), Remedy::Foreign | Remedy::ForeignCounter) =>
                {
                    Err(place.foreign_counter(""))
                }
                // The counter has gone ahead to the node that is about to get the
                // slot: there are no tokens here, and leases may be.
                Value::ServerError(error)
                    if matches!(space, Keyspace::Vote(_)) && remedy(&error) == Remedy::Ask =>
                {
                    Ok(u64::MAX)
                }
                Value::ServerError(error) => {
                    self.redirected(&error, &address);
                    Err(place.refused(&error))
                }
                _ => Err(place.nonsense()),
            }
        };
        let token_floor = tokio::select! {
            biased;
            floor = set_up => floor?,
            () = &mut driver => return Err(unreachable(closed())),
        };
        let patience = self.settings.patience();
        let clock = self.clock.clone();
        if let Some(shards) = &shards {
            let shards = Arc::clone(shards);
            driver = Box::pin(async move {
                tokio::select! {
                    () = driver => {}
                    () = shards.cut_off() => {}
                }
            });
        }
        let connection =
            Connection::new(multiplexed, address, token_floor, patience, clock, shards);
        Ok(Opened { connection, driver })
    }

    /// Resolves when it is known that the slot that is meant, if it is one, is
    /// not at this address any more: a server that says nothing does not say so.
    pub(super) async fn moves_from(&self, address: &Address) {
        match &self.locator {
            Locator::OfSlot(map, slot) => map.moves_from(*slot, address).await,
            Locator::At(_) | Locator::Sentinels(_) => std::future::pending().await,
        }
    }

    /// The server has gone, or does not answer. If it is meant for a slot, that
    /// may be elsewhere by now.
    pub(super) fn is_in_doubt(&self) {
        if let Locator::OfSlot(map, _) = &self.locator {
            map.refresh_soon();
        }
    }

    /// The server at this address has refused a command. If it is because the
    /// slot that is meant is not its own any more, the next connection goes
    /// elsewhere.
    pub(super) fn redirected(&self, error: &ServerError, from: &Address) -> bool {
        let Locator::OfSlot(map, slot) = &self.locator else {
            return false;
        };
        match remedy(error) {
            Remedy::Moved => map.moved(*slot, error, from),
            Remedy::Cluster | Remedy::Reconnect => map.refresh_soon(),
            _ => return false,
        }
        true
    }
}

/// The sentinels' word is not enough: a server that they take for the master
/// may have become a replica meanwhile.
async fn check_role(
    multiplexed: &mut MultiplexedConnection,
    place: &Place,
) -> Result<(), BackendError> {
    let answer = multiplexed
        .send_packed_command(&commands::role())
        .await
        .map_err(|error| place.unreachable(error))?;
    match answer {
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

fn hear(listener: &dyn Listener, push: &PushInfo) {
    if let (
        PushKind::Message | PushKind::SMessage,
        [Value::BulkString(channel), Value::BulkString(message)],
    ) = (&push.kind, &push.data[..])
        && let (Ok(channel), Ok(message)) =
            (std::str::from_utf8(channel), std::str::from_utf8(message))
    {
        listener.hear(channel, message);
    }
}
