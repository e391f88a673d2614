//! One database server that keeps what it has confirmed.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;

use super::{Inflicted, ServerFault, Topology};
use crate::databases::server::{DURABLE, Kind, Server};
use crate::support::proxy::Proxy;

pub(crate) struct OneDatabase<D: Kind> {
    server: Server<D>,
    database: String,
    proxy: Proxy,
}

impl<D: Kind> OneDatabase<D> {
    pub(crate) async fn start(_: &mut Rng) -> Self {
        let server = Server::<D>::start(DURABLE).await;
        Self {
            database: server.database().await,
            proxy: Proxy::to(server.port()),
            server,
        }
    }

    fn url_at(&self, port: u16) -> String {
        let url = self.server.url(&self.database, port);
        format!("{url}?create_tables=true")
    }
}

#[async_trait(?Send)]
impl<D: Kind> Topology for OneDatabase<D> {
    fn url(&self) -> String {
        self.url_at(self.proxy.port())
    }

    fn url_past_proxies(&self) -> String {
        self.url_at(self.server.port())
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn faults(&self) -> &'static [ServerFault] {
        &[ServerFault::Killed, ServerFault::Paused]
    }

    async fn inflict(&mut self, fault: ServerFault, lasting: Duration, _: &mut Rng) -> Inflicted {
        let inflicted = super::kill_or_pause(&mut self.server, fault, lasting).await;
        match fault {
            ServerFault::Killed => inflicted,
            // A server of many processes answers those that it has.
            _ => Inflicted::SOME_ANSWERED,
        }
    }
}
