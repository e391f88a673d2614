//! Three etcd members.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{AlarmAction, AlarmType, Certificate, Client, ConnectOptions, TlsOptions};
use fastrand::Rng;
use tokio::time::sleep;

use super::{Inflicted, ServerFault, Setting, Topology};
use crate::support::etcd::{Cluster, Setup, etcd_url};
use crate::support::port::hosts;
use crate::support::proxy::Proxy;
use crate::support::tls::Certificates;

pub(crate) struct Members {
    cluster: Cluster,
    proxies: Vec<Proxy>,
    certificates: Option<Certificates>,
}

impl Members {
    pub(crate) async fn start(setting: Setting, _: &mut Rng) -> Self {
        let certificates = setting.secure.then(Certificates::create);
        let setup = match &certificates {
            // A login is to take no second of a server on a busy machine.
            Some(certificates) => Setup::default().tls(certificates).with("--bcrypt-cost=4"),
            None => Setup::default(),
        };
        let cluster = Cluster::set_up(setup).await;
        let proxies = cluster.ports().into_iter().map(Proxy::to).collect();
        if setting.secure {
            let server = &cluster.servers[0];
            server.control(&["user", "add", "root:hunter2"]).await;
            server
                .control(&["user", "grant-role", "root", "root"])
                .await;
            server.control(&["auth", "enable"]).await;
        }
        Self {
            cluster,
            proxies,
            certificates,
        }
    }

    fn url_at(&self, ports: &[u16]) -> String {
        let Some(certificates) = &self.certificates else {
            return etcd_url(ports);
        };
        let (hosts, authority) = (hosts(ports), certificates.authority.display());
        format!("etcds://root:hunter2@{hosts}?ca={authority}")
    }

    async fn client(&self) -> Client {
        let mut options = ConnectOptions::new();
        let mut scheme = "http";
        if let Some(certificates) = &self.certificates {
            let authority = std::fs::read(&certificates.authority).expect("a certificate");
            let authority = TlsOptions::new().ca_certificate(Certificate::from_pem(authority));
            options = options.with_user("root", "hunter2").with_tls(authority);
            scheme = "https";
        }
        let ports = self.cluster.ports().into_iter();
        let endpoints: Vec<_> = ports
            .map(|port| format!("{scheme}://127.0.0.1:{port}"))
            .collect();
        let client = Client::connect(endpoints, Some(options)).await;
        client.expect("a connection to our own servers")
    }

    /// What etcd does when its database has come to its quota. It cannot go on when its
    /// log cannot be written, which is a member that was killed.
    async fn has_no_space(&self, alarm: AlarmAction) {
        let mut client = self.client().await;
        let told = client.alarm(alarm, AlarmType::Nospace, None).await;
        told.expect("our own servers");
    }
}

#[async_trait(?Send)]
impl Topology for Members {
    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        self.url_at(&ports)
    }

    fn url_past_proxies(&self) -> String {
        self.url_at(&self.cluster.ports())
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// Leases are measured by the monotonic clock, and a program of Go asks the system
    /// for the time past any library.
    fn faults(&self) -> Vec<ServerFault> {
        vec![
            ServerFault::Killed,
            ServerFault::Paused,
            ServerFault::LeaderKilled,
            ServerFault::CutOff,
            ServerFault::DiskFull,
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
            ServerFault::DiskFull => {
                self.has_no_space(AlarmAction::Activate).await;
                sleep(lasting).await;
                self.has_no_space(AlarmAction::Deactivate).await;
            }
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
