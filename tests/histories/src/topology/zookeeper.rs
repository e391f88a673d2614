//! Three ZooKeeper servers.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Topology};
use crate::support::port::hosts;
use crate::support::proxy::Proxy;
use crate::support::zookeeper::{Cuts, Ensemble};

pub(crate) struct Servers {
    ensemble: Ensemble,
    cuts: Cuts,
    proxies: Vec<Proxy>,
}

impl Servers {
    pub(crate) async fn start(_: &mut Rng) -> Self {
        let (ensemble, cuts) = Ensemble::start_divisible().await;
        let servers = ensemble.0.iter();
        let proxies = servers.map(|server| Proxy::to(server.port())).collect();
        Self {
            ensemble,
            cuts,
            proxies,
        }
    }

    /// A session that a pause of its process outlives is of no use here.
    fn url_of(hosts: &str) -> String {
        format!("zookeeper://{hosts}/histories?session_timeout=6s")
    }
}

#[async_trait(?Send)]
impl Topology for Servers {
    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        Self::url_of(&hosts(&ports))
    }

    fn url_past_proxies(&self) -> String {
        Self::url_of(&self.ensemble.hosts())
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
            ServerFault::LeaderKilled => self.ensemble.leader().await,
            _ => draws.usize(..self.ensemble.0.len()),
        };
        match fault {
            ServerFault::CutOff => {
                self.cuts.cut_off(hit, true);
                sleep(lasting).await;
                self.cuts.cut_off(hit, false);
            }
            ServerFault::Paused => {
                self.ensemble.0[hit].pause();
                sleep(lasting).await;
                self.ensemble.0[hit].resume();
            }
            _ => {
                self.ensemble.0[hit].kill();
                sleep(lasting).await;
                self.ensemble.0[hit].restart().await;
            }
        }
        self.ensemble.is_whole().await;
        Inflicted::SOME_ANSWERED
    }
}
