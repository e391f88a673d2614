//! One memcached server, which forgets all when it dies.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;

use super::{Inflicted, ServerFault, Setting, Topology};
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::proxy::Proxy;

pub(crate) struct OneCache {
    server: MemcachedServer,
    proxy: Proxy,
}

impl OneCache {
    pub(crate) async fn start(_: Setting, _: &mut Rng) -> Self {
        let server = MemcachedServer::start().await;
        let proxy = Proxy::to(server.port());
        Self { server, proxy }
    }
}

#[async_trait(?Send)]
impl Topology for OneCache {
    fn url(&self) -> String {
        memcached_url(self.proxy.port())
    }

    fn url_past_proxies(&self) -> String {
        self.server.url()
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    /// Its clock is the monotonic one, and it has no disk.
    fn faults(&self) -> Vec<ServerFault> {
        vec![ServerFault::Killed, ServerFault::Paused]
    }

    fn may_forget(&self, fault: ServerFault) -> bool {
        fault == ServerFault::Killed
    }

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        super::harm(&mut self.server, fault, lasting, draws).await
    }
}
