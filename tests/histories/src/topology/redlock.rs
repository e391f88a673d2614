//! Five Redis servers that know nothing of each other, and keep what they have
//! confirmed.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::redis::{LOGIN, client_port, durable, tells_time};
use super::{Inflicted, ServerFault, Setting, Topology, room, set_clock};
use crate::support::dir::TempDir;
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::port::hosts;
use crate::support::proxy::Proxy;
use crate::support::server::Kind as _;

const NODES: usize = 5;

pub(crate) struct FiveNodes {
    nodes: Nodes,
    proxies: Vec<Proxy>,
    setting: Setting,
    /// Whom to trust.
    dir: TempDir,
}

impl FiveNodes {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        // Each on a machine of its own.
        let setups = (0..NODES).map(|_| durable(setting)).collect();
        let nodes = Nodes::set_up(setups).await;
        let to = |node| Proxy::to(client_port(node, setting));
        let all = Self {
            proxies: nodes.iter().map(to).collect(),
            nodes,
            setting,
            dir: TempDir::default(),
        };
        if setting.secure {
            let authority = |path| std::fs::read_to_string(path).expect("a certificate");
            let all_of_them = all.nodes.iter();
            let authorities: String = all_of_them
                .map(|node| authority(&node.tls().1.authority))
                .collect();
            std::fs::write(all.authorities(), authorities).expect("our own directory");
        }
        all
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().join("authorities.pem")
    }

    fn url_at(&self, ports: &[u16]) -> String {
        if !self.setting.secure {
            return redlock_url(ports);
        }
        let (hosts, authorities) = (hosts(ports), self.authorities());
        let authorities = authorities.display();
        format!("rediss+redlock://{LOGIN}{hosts}?ca={authorities}")
    }
}

#[async_trait(?Send)]
impl Topology for FiveNodes {
    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        self.url_at(&ports)
    }

    fn url_past_proxies(&self) -> String {
        let nodes = self.nodes.iter();
        let ports: Vec<_> = nodes.map(|node| client_port(node, self.setting)).collect();
        self.url_at(&ports)
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    fn faults(&self) -> Vec<ServerFault> {
        self.setting.faults(
            &[ServerFault::Killed, ServerFault::Paused],
            &[
                ServerFault::ClockAhead,
                ServerFault::ClockBack,
                ServerFault::DiskFull,
            ],
        )
    }

    /// To any number of them: with three, no majority is left.
    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        let count = draws.usize(1..=3);
        let hit = draws.choose_multiple(0..NODES, count);
        let is_hit = |number: usize| hit.contains(&number);
        let nodes = self.nodes.iter_mut().enumerate();
        let mut hit: Vec<_> = nodes.filter(|(number, _)| is_hit(*number)).collect();
        for (_, node) in &mut hit {
            match fault {
                ServerFault::Killed => node.kill(),
                ServerFault::Paused => node.pause(),
                ServerFault::DiskFull => node.fill_disk(room(node.dir(), draws)),
                _ => set_clock(node.machine().expect("its own"), fault, draws),
            }
        }
        sleep(lasting).await;
        for (_, node) in hit {
            match fault {
                ServerFault::Killed => node.restart().await,
                ServerFault::Paused => node.resume(),
                ServerFault::DiskFull => node.empty_disk().await,
                _ => tells_time(node, node.machine().expect("its own")).await,
            }
        }
        Inflicted::SOME_ANSWERED
    }
}
