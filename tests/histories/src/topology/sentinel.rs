//! A master with two replicas, and three sentinels that replace it.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::redis::{LOGIN, PASSWORD, tells_time};
use super::{Inflicted, ServerFault, Setting, Topology, set_clock};
use crate::support::machine::Machine;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::sentinel::{Deployment, LONG, Passwords, SHORT, url};

pub(crate) struct Sentinels {
    deployment: Deployment,
    setting: Setting,
    /// Of all but the sentinels: they are to agree within a second.
    machine: Option<Machine>,
    /// When a master was replaced for the last time, as far as is known.
    epoch: u64,
}

impl Sentinels {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        let password = setting.secure.then_some(PASSWORD);
        let passwords = Passwords {
            servers: password,
            sentinels: password,
        };
        let machine = setting.machine();
        // Where nothing may be forgotten, the sentinels leave the master alone.
        let down_after = if setting.lasting { LONG } else { SHORT };
        let on = machine.as_ref();
        let deployment = Deployment::behind_proxies(on, &passwords, down_after).await;
        Self {
            epoch: deployment.epoch().await,
            deployment,
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

    /// Not in front of the sentinels: clients reach them.
    fn proxies(&self) -> &[Proxy] {
        &self.deployment.proxies
    }

    fn faults(&self) -> Vec<ServerFault> {
        let own: &[_] = match self.setting.lasting {
            true => &[ServerFault::Paused],
            false => &[ServerFault::LeaderKilled, ServerFault::Paused],
        };
        self.setting
            .faults(own, &[ServerFault::ClockAhead, ServerFault::ClockBack])
    }

    /// Replication is asynchronous: a replica that becomes the master may lack what
    /// another replica had confirmed.
    fn may_forget(&self, fault: ServerFault) -> bool {
        let may_replace = matches!(fault, ServerFault::LeaderKilled | ServerFault::Paused);
        may_replace && !self.setting.lasting
    }

    /// The sentinels may give up a master that they do not hear.
    fn network_may_forget(&self) -> bool {
        !self.setting.lasting
    }

    /// Another is the master.
    async fn has_forgotten(&mut self) -> bool {
        let epoch = self.deployment.epoch().await;
        std::mem::replace(&mut self.epoch, epoch) != epoch
    }

    async fn settles(&mut self) {
        self.deployment.revive().await;
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
