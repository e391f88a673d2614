//! One Redis server that keeps what it has confirmed.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;

use super::{Inflicted, ServerFault, Topology};
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, Setup};

pub(crate) struct OneServer {
    server: RedisServer,
    proxy: Proxy,
}

impl OneServer {
    /// With a password in every second history.
    pub(crate) async fn start(draws: &mut Rng) -> Self {
        let mut setup = Setup::default().append_only();
        if draws.bool() {
            setup = setup.password("p@ss/word");
        }
        let server = setup.start().await;
        let proxy = Proxy::to(server.port());
        Self { server, proxy }
    }
}

#[async_trait(?Send)]
impl Topology for OneServer {
    fn url(&self) -> String {
        self.server.url_through(self.proxy.port())
    }

    fn url_past_proxies(&self) -> String {
        self.server.url()
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn faults(&self) -> &'static [ServerFault] {
        &[ServerFault::Killed, ServerFault::Paused]
    }

    async fn inflict(&mut self, fault: ServerFault, lasting: Duration, _: &mut Rng) -> Inflicted {
        super::kill_or_pause(&mut self.server, fault, lasting).await
    }
}
