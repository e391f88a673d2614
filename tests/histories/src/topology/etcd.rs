//! Three etcd members.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Topology};
use crate::support::etcd::{Cluster, etcd_url};
use crate::support::proxy::Proxy;

pub(crate) struct Members {
    cluster: Cluster,
    proxies: Vec<Proxy>,
}

impl Members {
    pub(crate) async fn start(_: &mut Rng) -> Self {
        let cluster = Cluster::start().await;
        let proxies = cluster.ports().into_iter().map(Proxy::to).collect();
        Self { cluster, proxies }
    }
}

#[async_trait(?Send)]
impl Topology for Members {
    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        etcd_url(&ports)
    }

    fn url_past_proxies(&self) -> String {
        etcd_url(&self.cluster.ports())
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    fn faults(&self) -> &'static [ServerFault] {
        &[
            ServerFault::Killed,
            ServerFault::Paused,
            ServerFault::LeaderKilled,
            ServerFault::CutOff,
        ]
    }

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        let hit = match fault {
            ServerFault::LeaderKilled => self.cluster.leader().await,
            _ => draws.usize(..self.cluster.servers.len()),
        };
        match fault {
            ServerFault::CutOff => {
                self.cluster.cut_off(hit).await;
                sleep(lasting).await;
                self.cluster.join(hit).await;
            }
            ServerFault::Paused => {
                self.cluster.servers[hit].pause();
                sleep(lasting).await;
                self.cluster.servers[hit].resume();
            }
            _ => {
                self.cluster.servers[hit].kill();
                sleep(lasting).await;
                self.cluster.servers[hit].restart().await;
            }
        }
        Inflicted::SOME_ANSWERED
    }
}
