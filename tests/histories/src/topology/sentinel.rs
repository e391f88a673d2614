//! A master with two replicas, and three sentinels that replace it.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Topology};
use crate::support::sentinel::Deployment;

pub(crate) struct Sentinels {
    deployment: Deployment,
}

impl Sentinels {
    pub(crate) async fn start(_: &mut Rng) -> Self {
        let deployment = Deployment::watchful().await;
        Self { deployment }
    }
}

#[async_trait(?Send)]
impl Topology for Sentinels {
    fn url(&self) -> String {
        self.deployment.url("?replicas=1")
    }

    fn faults(&self) -> &'static [ServerFault] {
        &[ServerFault::LeaderKilled, ServerFault::Paused]
    }

    /// Replication is asynchronous: a replica that becomes the master may lack what
    /// another replica had confirmed.
    fn may_forget(&self, _: ServerFault) -> bool {
        true
    }

    /// A paused master may be replaced, and come back as one for a moment.
    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        match fault {
            ServerFault::LeaderKilled => {
                self.deployment.fail_over().await;
            }
            _ => {
                let servers = &self.deployment.servers;
                let all: Vec<_> = servers.iter().chain(&self.deployment.sentinels).collect();
                let hit = all[draws.usize(..all.len())];
                hit.pause();
                sleep(lasting).await;
                hit.resume();
            }
        }
        self.deployment.revive().await;
        Inflicted::SOME_ANSWERED
    }
}
