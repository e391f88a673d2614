//! Real `etcd` servers of the test's own, alone or three of them as a cluster.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::port::{free_port, hosts};
use super::process::command;
use super::server::{Kind, Server, Shared};
use super::start::{ATTEMPTS, all_up};
use super::tls::Certificates;
use super::wait::{HANG, eventually, within};

/// How a server is set up, the same again at each restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    tls: Option<Certificates>,
    more: Vec<String>,
}

impl Setup {
    /// Clients speak TLS, and the server shows this certificate.
    pub(crate) fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = Some(certificates.clone());
        self
    }

    /// One more argument of the command line.
    pub(crate) fn with(mut self, argument: &str) -> Self {
        self.more.push(argument.to_owned());
        self
    }

    /// A server alone. Its leases may be as short as a second.
    pub(crate) async fn start(self) -> EtcdServer {
        let setup = self
            .with("--heartbeat-interval=20")
            .with("--election-timeout=200");
        Server::of(Etcd::new("m0".to_owned(), setup)).await
    }
}

pub(crate) type EtcdServer = Server<Etcd>;

#[derive(Debug)]
pub(crate) struct Etcd {
    name: String,
    port: u16,
    peer_port: u16,
    /// `--initial-cluster`.
    peers: String,
    setup: Setup,
    /// What it shows its peers, and whom of them it trusts.
    peer_tls: Option<Certificates>,
}

impl EtcdServer {
    pub(crate) async fn start() -> Self {
        Setup::default().start().await
    }

    pub(crate) async fn shared() -> Arc<Self> {
        static SHARED: Shared<EtcdServer> = Shared::none();
        SHARED.or_start(Self::start()).await
    }
}

impl Etcd {
    fn new(name: String, setup: Setup) -> Self {
        Self {
            name,
            port: 0,
            peer_port: 0,
            peers: String::new(),
            setup,
            peer_tls: None,
        }
    }

    fn peer_url(&self) -> String {
        url(self.peer_tls.as_ref(), self.peer_port)
    }

    fn as_peer(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    /// Runs `etcdctl`, as an operator would who has the time that a busy machine needs.
    pub(crate) async fn control(&self, words: &[&str]) -> String {
        let patient = ["--dial-timeout=60s", "--command-timeout=60s"];
        let output = self.try_control(&[&patient[..], words].concat()).await;
        assert!(
            output.status.success(),
            "etcdctl {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) async fn try_control(&self, words: &[&str]) -> Output {
        let mut control = self.etcdctl(words);
        let output = tokio::task::spawn_blocking(move || control.output());
        within(HANG, output)
            .await
            .expect("no panic")
            .expect("`etcdctl` is needed: apt-get install etcd-client")
    }

    /// The command itself.
    pub(crate) fn etcdctl(&self, words: &[&str]) -> Command {
        etcdctl(&[self.port], self.setup.tls.as_ref(), words)
    }

    /// All keys that begin with `prefix`.
    pub(crate) async fn keys(&self, prefix: &str) -> Vec<String> {
        let keys = self
            .control(&["get", "--prefix", "--keys-only", prefix])
            .await;
        keys.lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The sum of what a metric counts in all series whose labels hold this
    /// text.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> u64 {
        self.measured(name, labels).await as u64
    }

    /// The same of one that measures.
    pub(crate) async fn measured(&self, name: &str, labels: &str) -> f64 {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port))
            .await
            .expect("a connection to our own etcd");
        let request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
        let written = connection.write_all(request.as_bytes()).await;
        written.expect("a request");
        let mut text = String::new();
        let read = connection.read_to_string(&mut text);
        within(HANG, read).await.expect("an answer");
        text.lines()
            .filter(|line| line.starts_with(name) && line.contains(labels))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }
}

impl Kind for Etcd {
    const NAME: &'static str = "etcd";
    const PACKAGE: &'static str = "etcd-server";

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port = free_port();
        self.peer_port = free_port();
        self.peers = self.as_peer();
    }

    fn command(&self, dir: &Path) -> Command {
        let clients = url(self.setup.tls.as_ref(), self.port);
        let peers = self.peer_url();
        let mut server = command("etcd");
        server
            .args(["--name", &self.name, "--initial-cluster", &self.peers])
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--unsafe-no-fsync", "--log-level=error", "--logger=zap"])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .args(&self.setup.more);
        if let Some(tls) = &self.setup.tls {
            server.arg("--cert-file").arg(&tls.certificate);
            server.arg("--key-file").arg(&tls.key);
        }
        if let Some(tls) = &self.peer_tls {
            server.arg("--peer-client-cert-auth");
            server.arg("--peer-cert-file").arg(&tls.certificate);
            server.arg("--peer-key-file").arg(&tls.key);
            server.arg("--peer-trusted-ca-file").arg(&tls.authority);
        }
        server
    }

    async fn answers(&self, _: u32, _: &Path) -> Result<(), String> {
        let health = self.try_control(&["endpoint", "health"]).await;
        let errors = String::from_utf8_lossy(&health.stderr);
        match health.status.success() || errors.contains("user name is empty") {
            true => Ok(()),
            false => Err(errors.into_owned()),
        }
    }
}

fn url(tls: Option<&Certificates>, port: u16) -> String {
    let scheme = if tls.is_some() { "https" } else { "http" };
    format!("{scheme}://127.0.0.1:{port}")
}

fn etcdctl(ports: &[u16], tls: Option<&Certificates>, words: &[&str]) -> Command {
    let mut control = command("etcdctl");
    control
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", hosts(ports)))
        .args(["--dial-timeout=5s", "--command-timeout=10s"])
        .stdin(Stdio::null());
    if let Some(tls) = tls {
        control.arg("--cacert").arg(&tls.authority);
        // For a server that wants to know its clients.
        control.arg("--cert").arg(&tls.certificate);
        control.arg("--key").arg(&tls.key);
    }
    control.args(words);
    control
}

/// Three servers that are one store. What they say to each other is encrypted,
/// so that one of them can be [cut off](Self::cut_off).
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) servers: Vec<EtcdServer>,
    peers: Certificates,
    strangers: Certificates,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::set_up(Setup::default()).await
    }

    pub(crate) async fn set_up(setup: Setup) -> Self {
        let (peers, strangers) = (Certificates::create(), Certificates::create());
        // Elections are as quick as they can be on a busy machine.
        let setup = setup
            .with("--heartbeat-interval=100")
            .with("--election-timeout=1000");
        for attempt in 1..=ATTEMPTS {
            let mut servers: Vec<_> = (0..3)
                .map(|number| {
                    let mut server = Etcd::new(format!("m{number}"), setup.clone());
                    server.peer_tls = Some(peers.clone());
                    Server::not_started(server)
                })
                .collect();
            let all: Vec<_> = servers.iter().map(|server| server.as_peer()).collect();
            for server in &mut servers {
                server.peers = all.join(",");
                // They wait for each other.
                server.spawn();
            }
            if all_up(&mut servers, attempt).await {
                return Self {
                    servers,
                    peers,
                    strangers,
                };
            }
        }
        panic!("three etcd servers did not start in {ATTEMPTS} attempts");
    }

    /// Which of those that run the others follow.
    pub(crate) async fn leader(&self) -> usize {
        eventually("a member leads", async || {
            for (number, server) in self.servers.iter().enumerate() {
                if !server.is_running() {
                    continue;
                }
                let status = ["endpoint", "status", "--write-out=fields"];
                let status = server.try_control(&status).await;
                let status = String::from_utf8_lossy(&status.stdout).into_owned();
                let field = |name: &str| {
                    let line = status.lines().find(|line| line.contains(name))?;
                    Some(line.rsplit_once(' ')?.1.to_owned())
                };
                if field("\"MemberID\"").is_some_and(|id| field("\"Leader\"") == Some(id)) {
                    return Some(number);
                }
            }
            None
        })
        .await
    }

    /// The member still serves clients, but neither hears its peers nor is heard
    /// by them.
    pub(crate) async fn cut_off(&mut self, member: usize) {
        let strangers = self.strangers.clone();
        let server = &mut self.servers[member];
        server.kill();
        server.peer_tls = Some(strangers);
        server.spawn();
        eventually("it listens", async || {
            TcpStream::connect(("127.0.0.1", server.port)).await.ok()
        })
        .await;
    }

    /// Ends it.
    pub(crate) async fn join(&mut self, member: usize) {
        self.servers[member].peer_tls = Some(self.peers.clone());
        self.servers[member].restart().await;
    }

    /// Has a member say to clients that it is on this port, which it is not.
    pub(crate) async fn misleads_to(&mut self, member: usize, port: u16) {
        let server = &mut self.servers[member];
        server.kill();
        let advertised = format!("--advertise-client-urls=http://127.0.0.1:{port}");
        server.setup.more.push(advertised);
        server.restart().await;
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(EtcdServer::port).collect()
    }
}

/// Members on these ports, or proxies to them.
pub(crate) fn etcd_url(ports: &[u16]) -> String {
    format!("etcd://{}", hosts(ports))
}
