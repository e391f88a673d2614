//! A Redis Cluster, behind a network that fails. In some histories its masters are replaced; in
//! the others its slots move.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::redis::{LOGIN, PASSWORD, tells_time};
use super::{Inflicted, ServerFault, Setting, Topology, set_clock};
use crate::support::cluster::{Cluster, LONG, MASTERS, SHORT};
use crate::support::machine::Machine;
use crate::support::proxy::Proxy;
use crate::support::redis::Setup;
use crate::support::wait::eventually;

/// The locks of the histories.
const LOCKS: [&str; 2] = ["{counter:0}", "{counter:1}"];

/// Where a cluster has written which slots vote.
const VOTERS: &str = "dlock:voters";

/// Before the names of locks and of votes for them.
const LOCK_NAMES: [&str; 2] = ["dlock:{", "dlock:vote:{"];

pub(crate) struct Slots {
    cluster: Cluster,
    /// Whether locks count when more than half of the masters have them.
    quorum: bool,
    setting: Setting,
    /// Of all: they are to agree within a second.
    machine: Option<Machine>,
    /// Whether slots move, and no master is replaced.
    moves: bool,
    /// The servers that are masters, as far as is known.
    masters: BTreeSet<usize>,
}

impl Slots {
    pub(crate) async fn start(setting: Setting, draws: &mut Rng) -> Self {
        Self::with(false, setting, draws).await
    }

    pub(crate) async fn start_quorum(setting: Setting, draws: &mut Rng) -> Self {
        Self::with(true, setting, draws).await
    }

    async fn with(quorum: bool, setting: Setting, draws: &mut Rng) -> Self {
        let machine = setting.machine();
        let mut setup = Setup::default();
        if setting.secure {
            setup = setup.password(PASSWORD);
        }
        if let Some(machine) = &machine {
            setup = setup.on(machine);
        }
        // Where nothing may be forgotten, no master is replaced.
        let moves = draws.bool() || setting.lasting;
        let node_timeout = if moves { LONG } else { SHORT };
        Self {
            cluster: Cluster::set_up_behind_proxies(setup, node_timeout).await,
            quorum,
            setting,
            machine,
            moves,
            masters: (0..MASTERS).collect(),
        }
    }

    /// A name in a slot that the locks of the history need.
    async fn name(&self, draws: &mut Rng) -> String {
        if !self.quorum {
            return LOCKS[draws.usize(..LOCKS.len())].to_owned();
        }
        let asked = self.cluster.owner(VOTERS).await;
        let voters: String = asked.command(&["GET", VOTERS]).await;
        let tags: Vec<_> = voters.split(' ').collect();
        assert_eq!(tags.len(), MASTERS, "{voters:?} vote");
        format!("{{{}}}", tags[draws.usize(..tags.len())])
    }

    /// The number of the server that has the slot of this name.
    async fn master(&self, name: &str) -> usize {
        let port = self.cluster.owner(name).await.port();
        let mut servers = self.cluster.servers.iter();
        let found = servers.position(|server| server.port() == port);
        found.expect("one of our servers")
    }

    /// The servers that say that they are masters.
    async fn all_masters(&self) -> BTreeSet<usize> {
        let mut all = BTreeSet::new();
        for (number, server) in self.cluster.servers.iter().enumerate() {
            let role: Vec<redis::Value> = server.command(&["ROLE"]).await;
            if role.first() == Some(&redis::Value::BulkString(b"master".into())) {
                all.insert(number);
            }
        }
        all
    }

    /// How many keys of locks have moved with it.
    async fn slot_moves(&self, lasting: Duration, draws: &mut Rng) -> usize {
        let name = self.name(draws).await;
        let slot = self.cluster.slot(&name).await;
        let from = self.master(&name).await;
        let to = (from + draws.usize(1..MASTERS)) % MASTERS;
        // At first with the keys that it had, then on its way without.
        let with_keys = match draws.bool() {
            true => Duration::ZERO,
            false => lasting.mul_f64(draws.f64()),
        };
        let number = slot.to_string();
        let words = ["CLUSTER", "GETKEYSINSLOT", &number, "100"];
        eventually("a lock is had in the slot that is to move", async || {
            let keys: Vec<String> = self.cluster.servers[from].command(&words).await;
            keys.iter().any(|key| is_of_lock(key)).then_some(())
        })
        .await;
        self.cluster.open_slot(slot, from, to).await;
        sleep(with_keys).await;
        let keys = self.cluster.move_keys(slot, from, to, usize::MAX).await;
        // Its counter of tokens is always there.
        assert!(!keys.is_empty(), "no lock has ever used the slot of {name}");
        sleep(lasting - with_keys).await;
        self.cluster.move_slot(slot, from, to).await;
        keys.iter().filter(|key| is_of_lock(key)).count()
    }
}

fn is_of_lock(key: &str) -> bool {
    LOCK_NAMES.iter().any(|name| key.starts_with(name))
}

#[async_trait(?Send)]
impl Topology for Slots {
    fn url(&self) -> String {
        let options = if self.quorum { "?quorum=masters" } else { "" };
        let url = self.cluster.url(options);
        match self.setting.secure {
            true => url.replace("://", &format!("://{LOGIN}")),
            false => url,
        }
    }

    fn proxies(&self) -> &[Proxy] {
        &self.cluster.proxies
    }

    fn faults(&self) -> Vec<ServerFault> {
        let own = match self.moves {
            true => ServerFault::SlotMoved,
            false => ServerFault::LeaderKilled,
        };
        self.setting.faults(
            &[own, ServerFault::Paused],
            &[ServerFault::ClockAhead, ServerFault::ClockBack],
        )
    }

    /// Replication is asynchronous. Slots that move lose nothing, and neither does a
    /// master that nobody replaces. The nodes find out by their wall clocks who is silent.
    fn may_forget(&self, _: ServerFault) -> bool {
        !self.moves
    }

    /// A replica has become a master. What one of them forgets, the others still know.
    async fn has_forgotten(&mut self) -> bool {
        let now = self.all_masters().await;
        let new = now.difference(&self.masters).count();
        self.masters = now;
        new > usize::from(self.quorum)
    }

    async fn settles(&mut self) {
        self.cluster.is_whole().await;
    }

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        match fault {
            ServerFault::SlotMoved => {
                return Inflicted {
                    dark: None,
                    moved: self.slot_moves(lasting, draws).await,
                };
            }
            ServerFault::LeaderKilled => {
                let name = self.name(draws).await;
                let master = self.master(&name).await;
                self.cluster.servers[master].kill();
                sleep(lasting).await;
                eventually("another has the slot", async || {
                    (self.master(&name).await != master).then_some(())
                })
                .await;
                self.cluster.servers[master].restart().await;
            }
            ServerFault::ClockAhead | ServerFault::ClockBack => {
                let machine = self.machine.as_ref().expect("a machine of its own");
                set_clock(machine, fault, draws);
                sleep(lasting).await;
                for server in &self.cluster.servers {
                    tells_time(server, machine).await;
                }
            }
            _ => {
                let hit = draws.usize(..self.cluster.servers.len());
                self.cluster.servers[hit].pause();
                sleep(lasting).await;
                self.cluster.servers[hit].resume();
            }
        }
        self.cluster.is_whole().await;
        Inflicted::SOME_ANSWERED
    }
}
