//! Stores of the simulator: each a small `Store` over a simulated server.

mod client;
mod database;
mod listening;
mod listing;
mod polling;
pub(crate) mod queue;
mod quorum;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use dlock::{Config as LockConfig, Engine};
use dlock_runtime::store::Store;

use self::client::Config;
use self::database::{Database, DatabaseServer};
use self::polling::{Polling, PollingServer};
use self::queue::{Queue, QueueServer};
use self::quorum::Electorate;
use self::sessions::{SessionServer, Sessions};
use crate::checker::bounds::REQUEST_TIMEOUT;
use crate::network::{Machine, Server, ServerId, Service, Witness};
use crate::world::{Process, World};

/// The longest.
const TTL: Duration = Duration::from_secs(2);

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Queue,
    Polling,
    Sessions,
    Database,
    Quorum,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Queue,
        Self::Polling,
        Self::Sessions,
        Self::Database,
        Self::Quorum,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Polling => "polling",
            Self::Sessions => "sessions",
            Self::Database => "database",
            Self::Quorum => "quorum",
        }
    }

    /// Whether processes are served in the order in which they came.
    pub(crate) fn is_fair(self) -> bool {
        matches!(self, Self::Queue | Self::Sessions | Self::Database)
    }

    /// Whether who is next is granted the lock, or has to ask.
    pub(crate) fn hands_on(self) -> bool {
        matches!(self, Self::Queue | Self::Sessions)
    }

    /// Within this time a lock that is free is had by who waits for it, whatever is wrong
    /// with others.
    pub(crate) fn wakes_late(self) -> Duration {
        match self {
            // It is kept for the first for a while, who may have died.
            Self::Database => Duration::from_millis(4_000),
            _ => Duration::from_millis(2_500),
        }
    }

    /// Its nodes' votes are counted with a ttl that is known.
    pub(crate) fn longest_ttl(self) -> Duration {
        match self {
            Self::Quorum => TTL,
            _ => Duration::MAX,
        }
    }

    /// Within this time a lock that is free is had by who waits for it, when nothing is
    /// wrong.
    pub(crate) fn wakes_within(self) -> Duration {
        match self {
            // The longest pause between two looks, with its jitter.
            Self::Polling | Self::Database => Duration::from_millis(500),
            _ => Duration::from_millis(120),
        }
    }

    /// Whether a server of this kind may lose what it has written last.
    pub(crate) fn loses_writes(self) -> bool {
        matches!(self, Self::Queue | Self::Polling | Self::Quorum)
    }
}

/// What the locks of a store can do.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    pub(crate) readers: bool,
    pub(crate) permits: bool,
    pub(crate) once: bool,
}

/// The servers of a run.
#[derive(Clone)]
pub(crate) enum Stores {
    Queue(Arc<Server<QueueServer>>),
    Polling(Arc<Server<PollingServer>>),
    Sessions(Arc<Server<SessionServer>>),
    Database(Arc<Server<DatabaseServer>>),
    Quorum(Arc<Electorate>),
}

impl Stores {
    pub(crate) fn start(kind: Kind, world: &Arc<World>) -> Self {
        let id = ServerId(0);
        match kind {
            Kind::Queue => Self::Queue(Server::start(id, world, QueueServer::default())),
            Kind::Polling => Self::Polling(Server::start(id, world, PollingServer::default())),
            Kind::Sessions => Self::Sessions(Server::start(id, world, SessionServer::default())),
            Kind::Database => Self::Database(Server::start(id, world, DatabaseServer::default())),
            Kind::Quorum => Self::Quorum(Electorate::start(world)),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Queue(_) => Kind::Queue,
            Self::Polling(_) => Kind::Polling,
            Self::Sessions(_) => Kind::Sessions,
            Self::Database(_) => Kind::Database,
            Self::Quorum(_) => Kind::Quorum,
        }
    }

    pub(crate) fn machines(&self) -> Vec<Arc<dyn Machine>> {
        match self {
            Self::Queue(server) => vec![Arc::clone(server) as _],
            Self::Polling(server) => vec![Arc::clone(server) as _],
            Self::Sessions(server) => vec![Arc::clone(server) as _],
            Self::Database(server) => vec![Arc::clone(server) as _],
            Self::Quorum(electorate) => electorate.machines(),
        }
    }

    /// What the checks see of them.
    pub(crate) fn witness(&self) -> Arc<dyn Witness> {
        match self {
            Self::Queue(server) => Arc::clone(server) as _,
            Self::Polling(server) => Arc::clone(server) as _,
            Self::Sessions(server) => Arc::clone(server) as _,
            Self::Database(server) => Arc::clone(server) as _,
            Self::Quorum(electorate) => Arc::clone(electorate) as _,
        }
    }

    /// A server that has lost what it wrote last does no harm if it stays away for so
    /// long.
    pub(crate) fn stays_away(&self) -> Option<Duration> {
        match self {
            Self::Quorum(_) => Some(TTL.mul_f64(1.05)),
            _ => None,
        }
    }

    /// The way of a process to them.
    pub(crate) fn config(&self, process: &Arc<Process>) -> LockConfig {
        let process = Arc::clone(process);
        match self {
            Self::Queue(server) => connected::<Queue, _>(server, process),
            Self::Polling(server) => connected::<Polling, _>(server, process),
            Self::Sessions(server) => connected::<Sessions, _>(server, process),
            Self::Database(server) => connected::<Database, _>(server, process),
            Self::Quorum(electorate) => electorate.config(&process),
        }
    }

    pub(crate) fn can(&self) -> Abilities {
        let alone = !matches!(self, Self::Quorum(_));
        let shares = !matches!(self, Self::Polling(_));
        Abilities {
            readers: shares,
            permits: shares && alone,
            once: alone,
        }
    }
}

fn connected<S, V>(server: &Arc<Server<V>>, process: Arc<Process>) -> LockConfig
where
    S: Store<Config = Config<V>>,
    V: Service,
{
    let server = Arc::clone(server);
    let engine = Engine::<S>::new(Config { server, process });
    LockConfig::with_backend(engine.request_timeout(REQUEST_TIMEOUT))
}
