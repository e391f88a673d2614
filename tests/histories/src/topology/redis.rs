//! One Redis server that keeps what it has confirmed.

use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;

use super::{Inflicted, ServerFault, Setting, Topology};
use crate::support::machine::Machine;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, Setup};
use crate::support::server::Kind as _;

/// Of every server that has one.
pub(super) const PASSWORD: &str = "p@ss/word";
pub(super) const LOGIN: &str = ":p%40ss%2Fword@";

pub(crate) struct OneServer {
    server: RedisServer,
    proxy: Proxy,
    setting: Setting,
}

/// A server that keeps what it has confirmed.
pub(super) fn durable(setting: Setting) -> Setup {
    let mut setup = Setup::default().append_only();
    if setting.secure {
        setup = setup.tls().password(PASSWORD);
    }
    match setting.machine() {
        Some(machine) => setup.on(&machine),
        None => setup,
    }
}

/// Where clients find a server.
pub(super) fn client_port(server: &RedisServer, setting: Setting) -> u16 {
    match setting.secure {
        true => server.tls().0,
        false => server.port(),
    }
}

/// The server's clock is the machine's.
pub(super) async fn tells_time(server: &RedisServer, machine: &Machine) {
    let before = machine.now();
    let (seconds, micros): (u64, u64) = server.command(&["TIME"]).await;
    let told = Duration::from_secs(seconds) + Duration::from_micros(micros);
    machine.is_between(before, told);
}

impl OneServer {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        let server = durable(setting).start().await;
        let proxy = Proxy::to(client_port(&server, setting));
        Self {
            server,
            proxy,
            setting,
        }
    }

    fn url_at(&self, port: u16) -> String {
        if !self.setting.secure {
            return format!("redis://127.0.0.1:{port}");
        }
        let (_, certificates) = self.server.tls();
        let authority = certificates.authority.display();
        format!("rediss://{LOGIN}127.0.0.1:{port}/?ca={authority}")
    }
}

#[async_trait(?Send)]
impl Topology for OneServer {
    fn url(&self) -> String {
        self.url_at(self.proxy.port())
    }

    fn url_past_proxies(&self) -> String {
        self.url_at(client_port(&self.server, self.setting))
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
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

    async fn inflict(
        &mut self,
        fault: ServerFault,
        lasting: Duration,
        draws: &mut Rng,
    ) -> Inflicted {
        let inflicted = super::harm(&mut self.server, fault, lasting, draws).await;
        if let Some(machine) = self.server.machine() {
            tells_time(&self.server, machine).await;
        }
        inflicted
    }
}
