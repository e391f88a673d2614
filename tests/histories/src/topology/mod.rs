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

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use crate::moment::Moment;
use crate::support::machine::Machine;
use crate::support::proxy::Proxy;
use crate::support::server::{Kind, Server};
use crate::support::wait::HANG;
use crate::worker::REQUEST_TIMEOUT;

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
    /// The wall clock is set forward. It stays so.
    ClockAhead,
    /// The same, back.
    ClockBack,
    /// Nothing can be written until there is room again.
    DiskFull,
}

/// What a seed says of the servers of its history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setting {
    /// They want passwords, and connections to them are encrypted, as far as a store
    /// has that.
    pub(crate) secure: bool,
    /// Their clocks can be set, and their disks filled; those of the workers too.
    pub(crate) spoiled: bool,
    /// Leases outlast the history, so that nothing but a release ends them: what is not
    /// given back is seen. Nobody dies then, and no store forgets a grant or a release.
    pub(crate) lasting: bool,
}

impl Setting {
    fn draw(store: &str, draws: &mut Rng) -> Self {
        let has_secrets = !matches!(store, "sqlite" | "memcached");
        let (secure, spoiled) = (draws.bool(), draws.bool());
        let lasting = draws.u8(..3) == 0;
        Self {
            secure: secure && has_secrets,
            // A file that nobody may kill its writers for has too few other faults.
            spoiled: spoiled || (lasting && store == "sqlite"),
            lasting,
        }
    }

    pub(crate) fn ttl(self) -> Duration {
        match self.lasting {
            true => 20 * HANG,
            false => SHORT_TTL,
        }
    }

    /// Where no lease ends by itself it is longer than a request, so that what is
    /// forgotten while nobody answers is seen; and shorter than two, as databases look no
    /// longer for a script that may have arrived.
    pub(crate) fn longest_fault(self) -> Duration {
        match self.lasting {
            true => REQUEST_TIMEOUT.mul_f64(1.75),
            false => REQUEST_TIMEOUT.mul_f64(1.25),
        }
    }

    /// One more machine, if it can be spoiled.
    pub(crate) fn machine(self) -> Option<Machine> {
        self.spoiled.then(Machine::default)
    }

    /// Of those that are always possible, and those that a machine must be made for.
    fn faults(self, always: &[ServerFault], spoiled: &[ServerFault]) -> Vec<ServerFault> {
        let spoiled = if self.spoiled { spoiled } else { &[] };
        [always, spoiled].concat()
    }
}

/// Most leases are as short as they can be everywhere.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(3);

/// By how much a clock is set: for less than a lease, or for more.
pub(crate) fn clock_step(draws: &mut Rng) -> Duration {
    Duration::from_millis(draws.u64(200..8_000))
}

/// What became of a fault.
#[derive(Debug)]
pub(crate) struct Inflicted {
    /// From when to when nobody could be answered at all.
    pub(crate) dark: Option<(Moment, Moment)>,
    /// How many keys of locks have moved with a slot.
    pub(crate) moved: usize,
}

impl Inflicted {
    pub(crate) const SOME_ANSWERED: Self = Self {
        dark: None,
        moved: 0,
    };

    pub(crate) fn dark_since(from: Moment) -> Self {
        Self {
            dark: Some((from, Moment::now())),
            moved: 0,
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

    /// What can happen to its servers.
    fn faults(&self) -> Vec<ServerFault>;

    /// Whether the store may forget what it has granted by this, as its page says.
    /// What happens until a ttl after it is told from tokens at best.
    fn may_forget(&self, fault: ServerFault) -> bool {
        let _ = fault;
        false
    }

    /// The same of the faults of the network.
    fn network_may_forget(&self) -> bool {
        false
    }

    /// Whether it has forgotten something since this was asked before. Asked after a fault that
    /// [may make it](Self::may_forget), when that is over.
    async fn has_forgotten(&mut self) -> bool {
        true
    }

    /// Waits until its servers are together again after a fault of the network.
    async fn settles(&mut self) {}

    /// What a lease lasts that nobody renews.
    fn longest_lease(&self, setting: Setting) -> Duration {
        setting.ttl()
    }

    /// Whether leases may come back by this that were given back, until they end by
    /// themselves, as the store's page says.
    fn may_undo_releases(&self, fault: ServerFault) -> bool {
        let _ = fault;
        false
    }

    /// Whether leases may end early by this, as the store's page says: those that are
    /// measured by the wall clock of a server do.
    fn ends_leases(&self, fault: ServerFault) -> bool {
        fault == ServerFault::ClockAhead
    }

    /// Where the workers run, if they are what keeps the locks.
    fn machine_of_workers(&self) -> Option<&Machine> {
        None
    }

    /// How long a file of theirs can be when there is no room.
    fn disk_of_workers(&self, draws: &mut Rng) -> u64 {
        let _ = draws;
        0
    }

    /// Inflicts it for about so long, and heals it.
    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted;

    /// Whether it can be read who has a lock while nobody can write.
    fn is_readable_in_the_dark(&self) -> bool {
        false
    }

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
        pub(crate) async fn start(store: &str, draws: &mut Rng) -> (Box<dyn Topology>, Setting) {
            let setting = Setting::draw(store, draws);
            let topology: Box<dyn Topology> = match store {
                $($name => Box::new($start(setting, draws).await),)*
                _ => unreachable!("a store of the command line"),
            };
            (topology, setting)
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

/// What one server suffers.
async fn harm<K: Kind>(
    server: &mut Server<K>,
    fault: ServerFault,
    lasting: Duration,
    draws: &mut Rng,
) -> Inflicted {
    match fault {
        ServerFault::ClockAhead | ServerFault::ClockBack => {
            let machine = server.machine().expect("a machine of its own");
            set_clock(machine, fault, draws);
            sleep(lasting).await;
            Inflicted::SOME_ANSWERED
        }
        ServerFault::DiskFull => {
            server.fill_disk(room(server.dir(), draws));
            sleep(lasting).await;
            server.empty_disk().await;
            Inflicted::SOME_ANSWERED
        }
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

fn set_clock(machine: &Machine, fault: ServerFault, draws: &mut Rng) {
    let step = clock_step(draws);
    match fault {
        ServerFault::ClockAhead => machine.clock_ahead(step),
        _ => machine.clock_back(step),
    }
}

/// How long the files there can be when there is no room. Redis keeps one that grows,
/// and can be stopped in the middle of a command; others write in the middle of files.
fn room(dir: &Path, draws: &mut Rng) -> u64 {
    let more = draws.u64(..300);
    let files = std::fs::read_dir(dir.join("appendonlydir"));
    let lengths = files.into_iter().flatten().flatten();
    let lengths = lengths.filter_map(|file| Some(file.metadata().ok()?.len()));
    lengths.max().map_or(0, |longest| longest + more)
}
