//! A Redis Cluster. In every second history its masters are replaced; in the others
//! its slots move, behind a network that fails.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Topology};
use crate::support::cluster::{Cluster, MASTERS, SHORT};
use crate::support::proxy::Proxy;
use crate::support::wait::eventually;

/// A key of the histories: whose slot has something happen to it.
const KEY: &str = "{counter:0}";

pub(crate) struct Slots {
    cluster: Cluster,
    options: &'static str,
    /// Where the slot of the key is, in a cluster whose slots move.
    at: Option<usize>,
}

impl Slots {
    pub(crate) async fn start(draws: &mut Rng) -> Self {
        Self::with("", draws).await
    }

    /// Locks count when more than half of the masters have them.
    pub(crate) async fn start_quorum(draws: &mut Rng) -> Self {
        Self::with("?quorum=masters", draws).await
    }

    async fn with(options: &'static str, draws: &mut Rng) -> Self {
        let moves = draws.bool();
        let cluster = if moves {
            Cluster::behind_proxies().await
        } else {
            Cluster::start(SHORT).await
        };
        let slot = cluster.slot(KEY).await;
        let at = moves.then_some(slot * MASTERS / 16384);
        Self {
            cluster,
            options,
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
        self.cluster.url(self.options)
    }

    fn proxies(&self) -> &[Proxy] {
        &self.cluster.proxies
    }

    fn faults(&self) -> &'static [ServerFault] {
        match self.at {
            Some(_) => &[ServerFault::SlotMoved, ServerFault::Paused],
            None => &[ServerFault::LeaderKilled, ServerFault::Paused],
        }
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
