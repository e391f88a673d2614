//! Three ZooKeeper servers.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Setting, Topology, set_clock};
use crate::support::dir::TempDir;
use crate::support::machine::Machine;
use crate::support::port::hosts;
use crate::support::proxy::Proxy;
use crate::support::zookeeper::{Cuts, Ensemble, Setup};

/// In seconds. Some pauses of a process last longer, whatever the ttl.
const SESSION_TIMEOUT: u64 = 6;

pub(crate) struct Servers {
    ensemble: Ensemble,
    cuts: Cuts,
    proxies: Vec<Proxy>,
    setting: Setting,
    /// Of all three.
    machine: Option<Machine>,
    /// Whom to trust.
    dir: TempDir,
}

impl Servers {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        let machine = setting.machine();
        let mut setup = Setup::default();
        if setting.secure {
            setup = setup.login("alice", "hunter2").tls();
        }
        if let Some(machine) = &machine {
            setup = setup.on(machine);
        }
        let (ensemble, cuts) = Ensemble::divisible(setup).await;
        let mut all = Self {
            ensemble,
            cuts,
            proxies: Vec::new(),
            setting,
            machine,
            dir: TempDir::default(),
        };
        all.proxies = all.ports().into_iter().map(Proxy::to).collect();
        if setting.secure {
            let authority = |path| std::fs::read_to_string(path).expect("a certificate");
            let servers = all.ensemble.0.iter();
            let authorities: String = servers
                .map(|server| authority(&server.tls().1.authority))
                .collect();
            std::fs::write(all.authorities(), authorities).expect("our own directory");
        }
        all
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().join("authorities.pem")
    }

    /// Where clients find the servers.
    fn ports(&self) -> Vec<u16> {
        let servers = self.ensemble.0.iter();
        servers
            .map(|server| match self.setting.secure {
                true => server.tls().0,
                false => server.port(),
            })
            .collect()
    }

    fn url_at(&self, ports: &[u16]) -> String {
        let hosts = hosts(ports);
        if !self.setting.secure {
            return format!("zookeeper://{hosts}/histories?session_timeout={SESSION_TIMEOUT}s");
        }
        let authorities = self.authorities();
        let authorities = authorities.display();
        format!(
            "zookeeper+tls://alice:hunter2@{hosts}/histories\
             ?session_timeout={SESSION_TIMEOUT}s&ca={authorities}"
        )
    }
}

#[async_trait(?Send)]
impl Topology for Servers {
    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        self.url_at(&ports)
    }

    fn url_past_proxies(&self) -> String {
        self.url_at(&self.ports())
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    fn faults(&self) -> Vec<ServerFault> {
        self.setting.faults(
            &[
                ServerFault::Killed,
                ServerFault::Paused,
                ServerFault::LeaderKilled,
                ServerFault::CutOff,
            ],
            &[
                ServerFault::ClockAhead,
                ServerFault::ClockBack,
                ServerFault::DiskFull,
            ],
        )
    }

    /// A lease ends with its session.
    fn longest_lease(&self, setting: Setting) -> Duration {
        setting.ttl().min(Duration::from_secs(SESSION_TIMEOUT))
    }

    /// Sessions are measured by the monotonic clock.
    fn ends_leases(&self, _: ServerFault) -> bool {
        false
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
            ServerFault::ClockAhead | ServerFault::ClockBack => {
                let machine = self.machine.as_ref().expect("a machine of its own");
                set_clock(machine, fault, draws);
                sleep(lasting).await;
            }
            ServerFault::DiskFull => {
                super::harm(&mut self.ensemble.0[hit], fault, lasting, draws).await;
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
