//! A master with two replicas, and three sentinels that replace it.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::redis::{LOGIN, PASSWORD, tells_time};
use super::{Inflicted, ServerFault, Setting, Topology, set_clock};
use crate::support::machine::Machine;
use crate::support::redis::RedisServer;
use crate::support::sentinel::{Deployment, Passwords, url};

pub(crate) struct Sentinels {
    deployment: Deployment,
    setting: Setting,
    /// Of all but the sentinels: they are to agree within a second.
    machine: Option<Machine>,
}

impl Sentinels {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        let password = setting.secure.then_some(PASSWORD);
        let passwords = Passwords {
            servers: password,
            sentinels: password,
        };
        let machine = setting.machine();
        Self {
            deployment: Deployment::watchful_on(machine.as_ref(), &passwords).await,
            setting,
            machine,
        }
    }
}

#[async_trait(?Send)]
impl Topology for Sentinels {
    fn url(&self) -> String {
        if !self.setting.secure {
            return self.deployment.url("?replicas=1");
        }
        let sentinels = self.deployment.sentinels.iter();
        let ports: Vec<_> = sentinels.map(RedisServer::port).collect();
        url(LOGIN, &ports, "?replicas=1&sentinel_password=p%40ss%2Fword")
    }

    fn faults(&self) -> Vec<ServerFault> {
        self.setting.faults(
            &[ServerFault::LeaderKilled, ServerFault::Paused],
            &[ServerFault::ClockAhead, ServerFault::ClockBack],
        )
    }

    /// Replication is asynchronous: a replica that becomes the master may lack what
    /// another replica had confirmed.
    fn may_forget(&self, fault: ServerFault) -> bool {
        matches!(fault, ServerFault::LeaderKilled | ServerFault::Paused)
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
            ServerFault::ClockAhead | ServerFault::ClockBack => {
                let machine = self.machine.as_ref().expect("a machine of its own");
                set_clock(machine, fault, draws);
                sleep(lasting).await;
                for server in &self.deployment.servers {
                    tells_time(server, machine).await;
                }
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
