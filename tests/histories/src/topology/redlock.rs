//! Five Redis servers that know nothing of each other, and keep what they have
//! confirmed.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Topology};
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::proxy::Proxy;
use crate::support::redis::Setup;

const NODES: usize = 5;

pub(crate) struct FiveNodes {
    nodes: Nodes,
    proxies: Vec<Proxy>,
}

impl FiveNodes {
    pub(crate) async fn start(_: &mut Rng) -> Self {
        let nodes = Nodes::set_up(vec![Setup::default().append_only(); NODES]).await;
        let proxies = nodes.ports().into_iter().map(Proxy::to).collect();
        Self { nodes, proxies }
    }
}

#[async_trait(?Send)]
impl Topology for FiveNodes {
    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        redlock_url(&ports)
    }

    fn url_past_proxies(&self) -> String {
        self.nodes.url()
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    fn faults(&self) -> &'static [ServerFault] {
        &[ServerFault::Killed, ServerFault::Paused]
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
                _ => node.pause(),
            }
        }
        sleep(lasting).await;
        for (_, node) in hit {
            match fault {
                ServerFault::Killed => node.restart().await,
                _ => node.resume(),
            }
        }
        Inflicted::SOME_ANSWERED
    }
}
