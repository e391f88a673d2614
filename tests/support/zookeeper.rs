//! Real ZooKeeper servers of the test's own, and what an operator does with them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error};

pub(crate) use super::ensemble::{Cuts, Ensemble};
use super::machine::Machine;
use super::port::free_port;
use super::process::command;
use super::program::Program;
use super::server::{Kind, Server, Shared};
use super::tls::Certificates;
use super::wait::eventually_blocking;

/// What sessions are measured by, in milliseconds: short, so that the end of one
/// is seen within a test.
const TICK: u64 = 200;

/// How a server is set up, the same again at each restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// User and password for SASL.
    pub(super) login: Option<(&'static str, &'static str)>,
    pub(super) tls: bool,
    /// How often it removes empty containers, and nodes whose time is over: once a minute if
    /// that is not said.
    pub(super) tidies: Option<Duration>,
    /// Has nodes that end after a time.
    pub(super) extended: bool,
    /// A server that hears nothing of the leader takes long to notice.
    pub(super) patient: bool,
    /// Its number in an ensemble, and all peers of that.
    pub(super) member: Option<(usize, Vec<Peer>)>,
    pub(super) machine: Option<Machine>,
}

/// Where a member of an ensemble is found by the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) quorum: u16,
    pub(super) election: u16,
}

impl Setup {
    pub(crate) fn login(mut self, user: &'static str, password: &'static str) -> Self {
        self.login = Some((user, password));
        self
    }

    /// Listens for TLS as well, on a port of its own.
    pub(crate) fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    pub(crate) fn tidy(mut self) -> Self {
        self.tidies = Some(Duration::from_millis(200));
        self
    }

    /// For as long as any test runs, it removes nothing.
    pub(crate) fn untidy(mut self) -> Self {
        self.tidies = Some(Duration::from_secs(24 * 60 * 60));
        self
    }

    /// Has nodes that end after a time, which servers do not have by default.
    pub(crate) fn extended(mut self) -> Self {
        self.extended = true;
        self
    }

    pub(crate) fn on(mut self, machine: &Machine) -> Self {
        self.machine = Some(machine.clone());
        self
    }

    pub(crate) async fn start(self) -> ZooKeeperServer {
        Server::of(ZooKeeper::new(self)).await
    }
}

pub(crate) type ZooKeeperServer = Server<ZooKeeper>;

#[derive(Debug)]
pub(crate) struct ZooKeeper {
    port: u16,
    tls_port: u16,
    setup: Setup,
    certificates: Option<Certificates>,
}

impl ZooKeeperServer {
    /// A Java machine for each test would cost more than the tests.
    pub(crate) async fn shared() -> Arc<Self> {
        static SHARED: Shared<ZooKeeperServer> = Shared::none();
        SHARED
            .or_start(Setup::default().tidy().extended().start())
            .await
    }

    /// Starts it again as one that removes empty containers as soon as it sees
    /// them.
    pub(crate) async fn restart_tidy(&mut self) {
        self.setup = self.setup.clone().tidy();
        self.restart().await;
    }

    /// Starts it again as one that makes no nodes that end after a time.
    pub(crate) async fn restart_not_extended(&mut self) {
        self.setup.extended = false;
        self.restart().await;
    }

    /// Starts it again with a folder that is as old as this: the next node in it
    /// has this number.
    pub(crate) async fn age(&mut self, folder: &str, next: i32) {
        self.kill();
        let mut program = command("java");
        program
            .args(["-XX:TieredStopAtLevel=1", "-cp", &libraries(), NEXT_NUMBER])
            .args([self.dir().as_os_str(), folder.as_ref()])
            .arg(next.to_string());
        let mut program = Program::start(program);
        let output = program.end().await;
        assert!(output.status.success(), "{folder} was not aged: {output:?}");
        self.restart().await;
    }
}

impl ZooKeeper {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            port: 0,
            tls_port: 0,
            certificates: setup.tls.then(Certificates::create),
            setup,
        }
    }

    /// The encrypted port, and what a client must trust to use it.
    pub(crate) fn tls(&self) -> (u16, &Certificates) {
        let certificates = self.certificates.as_ref();
        (self.tls_port, certificates.expect("a server with TLS"))
    }

    /// A client of the test's own, past every proxy.
    pub(crate) async fn client(&self) -> Client {
        client(&format!("127.0.0.1:{}", self.port)).await
    }

    /// One of the server's four-letter words, if it answers.
    pub(crate) fn asked(&self, word: &str) -> Option<String> {
        asked(self.port, word).ok()
    }

    /// A number among those that the server gives out of itself.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let all = self.asked("mntr")?;
        let mut lines = all.lines().filter_map(|line| line.split_once('\t'));
        let (_, number) = lines.find(|(known, _)| *known == name)?;
        number
            .trim()
            .parse::<f64>()
            .ok()
            .map(|number| number as u64)
    }

    /// How many transactions the server has done so far in its present life.
    pub(crate) fn transactions(&self) -> u64 {
        let answer = eventually_blocking("it says what it has done", || self.asked("srvr"));
        let zxid = answer
            .lines()
            .find_map(|line| line.strip_prefix("Zxid: 0x"));
        let zxid = zxid.and_then(|zxid| u64::from_str_radix(zxid.trim(), 16).ok());
        // Above are the elections.
        zxid.expect("a number") & 0xFFFF_FFFF
    }

    /// `leader`, `follower` or `standalone`, if it serves.
    pub(super) fn mode(&self) -> Option<String> {
        let answer = self.asked("srvr")?;
        let mode = answer
            .lines()
            .find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.trim().to_owned())
    }
}

impl Kind for ZooKeeper {
    const NAME: &'static str = "ZooKeeper";
    const PACKAGE: &'static str = "default-jdk-headless libzookeeper-java";

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port = free_port();
        self.tls_port = if self.setup.tls { free_port() } else { 0 };
    }

    fn machine(&self) -> Option<&Machine> {
        self.setup.machine.as_ref()
    }

    fn command(&self, dir: &Path) -> Command {
        let mut config = format!(
            "tickTime={TICK}\nminSessionTimeout={}\nmaxSessionTimeout=60000\ndataDir={}\n\
             clientPort={}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             maxClientCnxns=0\n4lw.commands.whitelist=*\n",
            2 * TICK,
            dir.display(),
            self.port,
        );
        if let Some((number, peers)) = &self.setup.member {
            let limit = if self.setup.patient { 50 } else { 10 };
            // Milliseconds, and in so many a busy machine does connect.
            config += &format!("initLimit=50\nsyncLimit={limit}\ncnxTimeout=1000\n");
            for (index, peer) in peers.iter().enumerate() {
                let Peer { quorum, election } = peer;
                config += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", index + 1);
            }
            std::fs::write(dir.join("myid"), (number + 1).to_string()).expect("our own directory");
        }
        let mut server = command("java");
        // Of a machine that serves a few tests, and starts soon.
        server.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        // A crash of the machine is no part of the tests.
        server.arg("-Dzookeeper.forceSync=no");
        // A vote that got lost is sent again after a pause that doubles, up to a
        // minute.
        server.arg("-Dzookeeper.fastleader.maxNotificationInterval=1000");
        server.arg(format!("-Dzookeeper.log.dir={}", dir.display()));
        if let Some(tidies) = self.setup.tidies {
            let pause = tidies.as_millis();
            server.arg(format!("-Dznode.container.checkIntervalMs={pause}"));
        }
        if self.setup.extended {
            server.arg("-Dzookeeper.extendedTypesEnabled=true");
        }
        if let Some((user, password)) = self.setup.login {
            let jaas = dir.join("jaas.conf");
            let text = format!(
                "Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required \
                 user_{user}=\"{password}\"; }};"
            );
            std::fs::write(&jaas, text).expect("our own directory");
            config += "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
                       enforce.auth.enabled=true\nenforce.auth.schemes=sasl\n";
            server.arg(format!(
                "-Djava.security.auth.login.config={}",
                jaas.display()
            ));
        }
        if let Some(certificates) = &self.certificates {
            let joined = dir.join("server.pem");
            let read = |path: &Path| std::fs::read_to_string(path).expect("a certificate");
            let both = read(&certificates.key) + &read(&certificates.certificate);
            std::fs::write(&joined, both).expect("our own directory");
            config += &format!(
                "secureClientPort={}\n\
                 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
                 ssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth=none\n",
                self.tls_port,
                joined.display(),
                certificates.authority.display(),
            );
        }
        let file = dir.join("zoo.cfg");
        std::fs::write(&file, config).expect("our own directory");
        server
            .args(["-cp", &libraries()])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(file);
        server
    }

    async fn answers(&self, _: u32, dir: &Path) -> Result<(), String> {
        let conf = asked(self.port, "conf").map_err(|error| error.to_string())?;
        if !conf.contains(&*dir.to_string_lossy()) {
            return Err(format!("another folder, or none: {conf:?}"));
        }
        if self.setup.tls {
            // Its encrypted port comes after the other one.
            let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, self.tls_port));
            connected.map_err(|error| format!("its encrypted port: {error}"))?;
        }
        Ok(())
    }
}

/// Debian's libzookeeper-java, and what it needs, for TLS too.
const LIBRARIES: [&str; 10] = [
    "zookeeper",
    "slf4j-simple",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
];

fn libraries() -> String {
    let libraries = LIBRARIES.map(|name| format!("/usr/share/java/{name}.jar"));
    libraries.join(":")
}

/// Changes what a server that is stopped has kept on disk.
const NEXT_NUMBER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/NextNumber.java");

/// A client of the test's own.
pub(crate) async fn client(hosts: &str) -> Client {
    Client::connector()
        .with_session_timeout(Duration::from_secs(10))
        .connect(hosts)
        .await
        .expect("a connection to our own server")
}

/// The nodes in a folder, in the order of their numbers; none if it is not there.
pub(crate) async fn nodes(client: &Client, folder: &str) -> Vec<String> {
    let mut names = match client.list_children(folder).await {
        Ok(names) => names,
        Err(Error::NoNode) => Vec::new(),
        Err(error) => panic!("{folder}: {error}"),
    };
    names.sort_by_key(|name| name.get(name.len().saturating_sub(10)..).map(str::to_owned));
    names
}

/// Makes a node, and those around it.
pub(crate) async fn make(client: &Client, path: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(path, &options).await.expect("a new node");
}

fn asked(port: u16, word: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    // While nobody listens, a connection may come about with itself.
    if connection.local_addr()? == connection.peer_addr()? {
        return Err(std::io::ErrorKind::ConnectionRefused.into());
    }
    // Somebody else may have taken the port.
    connection.set_read_timeout(Some(Duration::from_secs(2)))?;
    connection.write_all(word.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
