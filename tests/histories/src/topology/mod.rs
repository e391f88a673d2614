//! What a history runs on: the servers of one store, and what can happen to them.

mod cluster;
mod databases;
mod etcd;
mod memcached;
mod redis;
mod redlock;
mod sentinel;
mod sqlite;
mod zookeeper;

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use crate::moment::Moment;
use crate::support::proxy::Proxy;
use crate::support::server::{Kind, Server};

/// What can happen to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerFault {
    /// `SIGKILL`, and started again with what is on its disk.
    Killed,
    /// `SIGSTOP`, and `SIGCONT` after a while.
    Paused,
    /// Whoever leads the others is killed: they choose another.
    LeaderKilled,
    /// One is kept from the others, and serves its clients.
    CutOff,
    /// A slot moves to another master, with its keys.
    SlotMoved,
    /// Another program keeps everybody from writing.
    Kept,
}

/// What became of a fault.
#[derive(Debug)]
pub(crate) struct Inflicted {
    /// From when to when nobody could be answered at all.
    pub(crate) dark: Option<(Moment, Moment)>,
}

impl Inflicted {
    pub(crate) const SOME_ANSWERED: Self = Self { dark: None };

    pub(crate) fn dark_since(from: Moment) -> Self {
        Self {
            dark: Some((from, Moment::now())),
        }
    }
}

#[async_trait(?Send)]
pub(crate) trait Topology {
    /// Leads the workers to it, by way of its proxies.
    fn url(&self) -> String;

    /// Leads there past them.
    fn url_past_proxies(&self) -> String {
        self.url()
    }

    /// What the network's faults are inflicted on.
    fn proxies(&self) -> &[Proxy] {
        &[]
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// What can happen to its servers.
    fn faults(&self) -> &'static [ServerFault];

    /// Whether the store may forget what it has granted by this, as its page says.
    /// What happens until a ttl after it is told from tokens at best.
    fn may_forget(&self, fault: ServerFault) -> bool {
        let _ = fault;
        false
    }

    /// Inflicts it for about so long, and heals it.
    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted;

    /// Whether a process that has been paused keeps all others from the store.
    async fn is_stuck(&self) -> bool {
        false
    }
}

macro_rules! stores {
    ($($name:literal => $start:expr,)*) => {
        /// All that there are, by the names of the command line.
        pub(crate) const STORES: &[&str] = &[$($name),*];

        /// Starts the servers of a store.
        pub(crate) async fn start(store: &str, draws: &mut Rng) -> Box<dyn Topology> {
            match store {
                $($name => Box::new($start(draws).await),)*
                _ => unreachable!("a store of the command line"),
            }
        }
    };
}

stores! {
    "redis" => redis::OneServer::start,
    "sentinel" => sentinel::Sentinels::start,
    "cluster" => cluster::Slots::start,
    "cluster-quorum" => cluster::Slots::start_quorum,
    "redlock" => redlock::FiveNodes::start,
    "etcd" => etcd::Members::start,
    "zookeeper" => zookeeper::Servers::start,
    "postgres" => databases::OneDatabase::<crate::databases::postgres::PostgreSql>::start,
    "mysql" => databases::OneDatabase::<crate::databases::mysql::MariaDb>::start,
    "sqlite" => sqlite::OneFile::start,
    "memcached" => memcached::OneCache::start,
}

/// What a server suffers that is the whole store.
async fn kill_or_pause<K: Kind>(
    server: &mut Server<K>,
    fault: ServerFault,
    lasting: Duration,
) -> Inflicted {
    match fault {
        ServerFault::Killed => {
            server.kill();
            let from = Moment::now();
            sleep(lasting).await;
            let inflicted = Inflicted::dark_since(from);
            server.restart().await;
            inflicted
        }
        _ => {
            server.pause();
            let from = Moment::now();
            sleep(lasting).await;
            let inflicted = Inflicted::dark_since(from);
            server.resume();
            inflicted
        }
    }
}
