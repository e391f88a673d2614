//! A Redis Cluster. In every second history its masters are replaced; in the others
//! its slots move, behind a network that fails.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::redis::{LOGIN, PASSWORD, tells_time};
use super::{Inflicted, ServerFault, Setting, Topology, set_clock};
use crate::support::cluster::{Cluster, MASTERS, SHORT};
use crate::support::machine::Machine;
use crate::support::proxy::Proxy;
use crate::support::redis::Setup;
use crate::support::wait::eventually;

/// A key of the histories: whose slot has something happen to it.
const KEY: &str = "{counter:0}";

pub(crate) struct Slots {
    cluster: Cluster,
    options: &'static str,
    setting: Setting,
    /// Of all: they are to agree within a second.
    machine: Option<Machine>,
    /// Where the slot of the key is, in a cluster whose slots move.
    at: Option<usize>,
}

impl Slots {
    pub(crate) async fn start(setting: Setting, draws: &mut Rng) -> Self {
        Self::with("", setting, draws).await
    }

    /// Locks count when more than half of the masters have them.
    pub(crate) async fn start_quorum(setting: Setting, draws: &mut Rng) -> Self {
        Self::with("?quorum=masters", setting, draws).await
    }

    async fn with(options: &'static str, setting: Setting, draws: &mut Rng) -> Self {
        let machine = setting.machine();
        let mut setup = Setup::default();
        if setting.secure {
            setup = setup.password(PASSWORD);
        }
        if let Some(machine) = &machine {
            setup = setup.on(machine);
        }
        let moves = draws.bool();
        let cluster = if moves {
            Cluster::set_up_behind_proxies(setup).await
        } else {
            Cluster::set_up(setup, SHORT).await
        };
        let slot = cluster.slot(KEY).await;
        let at = moves.then_some(slot * MASTERS / 16384);
        Self {
            cluster,
            options,
            setting,
            machine,
            at,
        }
    }

    /// The number of the server that has the key's slot.
    async fn master(&self) -> usize {
        let port = self.cluster.owner(KEY).await.port();
        let mut servers = self.cluster.servers.iter();
        let found = servers.position(|server| server.port() == port);
        found.expect("one of our servers")
    }
}

#[async_trait(?Send)]
impl Topology for Slots {
    fn url(&self) -> String {
        let url = self.cluster.url(self.options);
        match self.setting.secure {
            true => url.replace("://", &format!("://{LOGIN}")),
            false => url,
        }
    }

    fn proxies(&self) -> &[Proxy] {
        &self.cluster.proxies
    }

    fn faults(&self) -> Vec<ServerFault> {
        let own = match self.at {
            Some(_) => ServerFault::SlotMoved,
            None => ServerFault::LeaderKilled,
        };
        self.setting.faults(
            &[own, ServerFault::Paused],
            &[ServerFault::ClockAhead, ServerFault::ClockBack],
        )
    }

    /// Replication is asynchronous. Slots that move lose nothing, and neither does a
    /// master that nobody replaces.
    fn may_forget(&self, _: ServerFault) -> bool {
        self.at.is_none()
    }

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        match (fault, &mut self.at) {
            (ServerFault::SlotMoved, Some(at)) => {
                let to = (*at + draws.usize(1..MASTERS)) % MASTERS;
                let slot = self.cluster.slot(KEY).await;
                self.cluster.open_slot(slot, *at, to).await;
                sleep(lasting).await;
                self.cluster.move_slot(slot, *at, to).await;
                *at = to;
            }
            (ServerFault::LeaderKilled, _) => {
                let master = self.master().await;
                self.cluster.servers[master].kill();
                sleep(lasting).await;
                eventually("another has the slot", async || {
                    (self.master().await != master).then_some(())
                })
                .await;
                self.cluster.servers[master].restart().await;
                self.cluster.is_whole().await;
            }
            (ServerFault::ClockAhead | ServerFault::ClockBack, _) => {
                let machine = self.machine.as_ref().expect("a machine of its own");
                set_clock(machine, fault, draws);
                sleep(lasting).await;
                for server in &self.cluster.servers {
                    tells_time(server, machine).await;
                }
                self.cluster.is_whole().await;
            }
            _ => {
                let hit = draws.usize(..self.cluster.servers.len());
                self.cluster.servers[hit].pause();
                sleep(lasting).await;
                self.cluster.servers[hit].resume();
                self.cluster.is_whole().await;
            }
        }
        Inflicted::SOME_ANSWERED
    }
}
