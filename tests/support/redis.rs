//! A real `redis-server` of the test's own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult};

use super::machine::Machine;
use super::port::free_port;
use super::process::command;
use super::server::{Kind, Server};
use super::tls::Certificates;
use super::wait::{HANG, eventually, until};

/// Where each server listens besides its port, within its folder.
const SOCKET: &str = "redis.sock";

/// How the server is set up, the same again at each restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    append_only: bool,
    password: Option<String>,
    tls: bool,
    replica_of: Option<u16>,
    in_cluster: Option<Duration>,
    without: &'static [&'static str],
    watches: Option<Watched>,
    machine: Option<Machine>,
}

/// What a sentinel is told of a master.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    pub(crate) password: Option<String>,
    /// How long the master may be silent.
    pub(crate) down_after: Duration,
}

/// What it knows from the start.
impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port, .. } = self;
        writeln!(f, "sentinel monitor {name} 127.0.0.1 {port} 2")?;
        let down_after = self.down_after.as_millis();
        writeln!(f, "sentinel down-after-milliseconds {name} {down_after}")?;
        if let Some(password) = &self.password {
            writeln!(f, "sentinel auth-pass {name} {password}")?;
        }
        writeln!(f, "sentinel failover-timeout {name} 3000")
    }
}

/// Where that is, and what a sentinel learns.
const SENTINEL: &str = "sentinel.conf";

impl Setup {
    /// Writes each command to disk before it answers, so that a restart loses
    /// nothing.
    pub(crate) fn append_only(mut self) -> Self {
        self.append_only = true;
        self
    }

    pub(crate) fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Listens for TLS as well, on a port of its own.
    pub(crate) fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Follows the master on this port, which has the same password.
    pub(crate) fn replica_of(mut self, port: u16) -> Self {
        self.replica_of = Some(port);
        self
    }

    /// Is a node of a cluster, in which a master may be silent for so long.
    pub(crate) fn in_cluster(mut self, node_timeout: Duration) -> Self {
        self.in_cluster = Some(node_timeout);
        self
    }

    /// Does not know these commands, as an older server.
    pub(crate) fn without(mut self, commands: &'static [&'static str]) -> Self {
        self.without = commands;
        self
    }

    /// Is a sentinel of this master.
    pub(crate) fn watches(mut self, watched: Watched) -> Self {
        self.watches = Some(watched);
        self
    }

    pub(crate) fn on(mut self, machine: &Machine) -> Self {
        self.machine = Some(machine.clone());
        self
    }

    pub(crate) async fn start(self) -> RedisServer {
        Server::of(Redis {
            port: 0,
            tls_port: 0,
            bus_port: 0,
            announced: None,
            tls: self.tls.then(Certificates::create),
            setup: self,
        })
        .await
    }
}

pub(crate) type RedisServer = Server<Redis>;

#[derive(Debug)]
pub(crate) struct Redis {
    port: u16,
    tls_port: u16,
    /// Where the nodes of a cluster speak to each other.
    bus_port: u16,
    /// Where a cluster or sentinels say that it is, if that is not its port.
    announced: Option<u16>,
    setup: Setup,
    tls: Option<Certificates>,
}

impl Redis {
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port
    }

    /// How long a master of its cluster may be silent.
    pub(crate) fn node_timeout(&self) -> Duration {
        self.setup.in_cluster.unwrap_or_default()
    }

    /// From now on it says that it is on another port: to the nodes of its cluster, or to its
    /// master, from which sentinels know it.
    pub(crate) async fn announce(&mut self, port: u16) {
        self.announced = Some(port);
        let words = ["CONFIG", "SET", self.announces(), &port.to_string()];
        self.command::<()>(&words).await;
    }

    fn announces(&self) -> &'static str {
        match self.setup.in_cluster {
            Some(_) => "cluster-announce-port",
            None => "replica-announce-port",
        }
    }

    /// Where clients find it, password included.
    pub(crate) fn url(&self) -> String {
        self.url_through(self.port)
    }

    /// The same, by way of a proxy on `port`.
    pub(crate) fn url_through(&self, port: u16) -> String {
        match &self.setup.password {
            Some(password) => format!("redis://:{}@127.0.0.1:{port}/", percent_encoded(password)),
            None => format!("redis://127.0.0.1:{port}/"),
        }
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.setup.password.as_deref()
    }

    /// The encrypted port, and what a client must trust to use it.
    pub(crate) fn tls(&self) -> (u16, &Certificates) {
        let certificates = self.tls.as_ref();
        (self.tls_port, certificates.expect("a server with TLS"))
    }

    /// A connection of the test's own, past every proxy.
    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        self.connect()
            .await
            .expect("a connection to our own server")
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(HANG))
            .set_response_timeout(Some(HANG));
        redis::Client::open(self.url())?
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// Sends one command, as an operator would with `redis-cli`.
    pub(crate) async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connection().await;
        let mut command = redis::Cmd::new();
        let answer = command.arg(words).query_async(&mut connection).await;
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same, if it answers.
    pub(crate) async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let mut connection = self.connect().await.ok()?;
        let mut command = redis::Cmd::new();
        command.arg(words).query_async(&mut connection).await.ok()
    }

    /// Sends one command from code that is not async.
    pub(crate) fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        let answer = command.arg(words).query(&mut self.blocking_connection());
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(crate) fn blocking_connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// How often it has run this command.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info: String = self.run(&["INFO", "commandstats"]);
        let stats = format!("cmdstat_{command}:calls=");
        let calls = info.lines().find_map(|line| line.strip_prefix(&*stats));
        let calls = calls.and_then(|calls| calls.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    /// Commands so far, those that scripts call included, without our own.
    pub(crate) async fn commands_so_far(&self) -> u64 {
        let info: String = self.command(&["INFO", "commandstats"]).await;
        info.lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
            // What this connects and asks with, and what replicas say.
            .filter(|(name, _)| !["info", "hello", "client|setinfo", "replconf"].contains(name))
            .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
            .sum()
    }

    /// Every key in the server.
    pub(crate) async fn keys(&self) -> Vec<String> {
        self.command(&["KEYS", "*"]).await
    }

    /// These replicas hear no more of it.
    pub(crate) async fn loses(&self, replicas: &[&RedisServer]) {
        for replica in replicas {
            // It is refused whenever it comes back.
            let words = ["CONFIG", "SET", "masterauth", "wrong"];
            replica.command::<()>(&words).await;
        }
        let words = ["CLIENT", "KILL", "TYPE", "replica"];
        self.command::<u32>(&words).await;
        let role = async || self.command::<Vec<redis::Value>>(&["ROLE"]).await;
        let none = redis::Value::Array(Vec::new());
        until("it has no replica", role, |role| role.get(2) == Some(&none)).await;
    }

    /// Waits until so many replicas have all that was written before, by a mark that is
    /// gone again.
    pub(crate) async fn has_told(&self, replicas: usize, mark: &str) {
        let mut connection = self.connection().await;
        // It speaks of what its own connection has written.
        let mut commands = redis::pipe();
        commands.cmd("SET").arg(mark).arg("here").ignore();
        commands.cmd("DEL").arg(mark).ignore();
        commands.cmd("WAIT").arg(replicas).arg(100);
        let have = async || {
            commands
                .query_async(&mut connection)
                .await
                .expect("an answer")
        };
        let enough = |&(have,): &(usize,)| have >= replicas;
        until("the replicas follow", have, enough).await;
    }

    async fn answering_process(&self) -> RedisResult<String> {
        let mut connection = self.connect().await?;
        let mut command = redis::cmd("INFO");
        let info: String = command.arg("server").query_async(&mut connection).await?;
        let mut lines = info.lines();
        let process = lines.find_map(|line| line.strip_prefix("process_id:"));
        Ok(process.unwrap_or("of no number").trim().to_owned())
    }
}

impl Kind for Redis {
    const NAME: &'static str = "redis-server";
    const PACKAGE: &'static str = "redis-server";

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port = free_port();
        self.tls_port = if self.setup.tls { free_port() } else { 0 };
        self.bus_port = free_port();
    }

    fn install(&self, dir: &Path) {
        if let Some(watched) = &self.setup.watches {
            let file = std::fs::write(dir.join(SENTINEL), watched.to_string());
            file.expect("our own directory");
        }
    }

    fn machine(&self) -> Option<&Machine> {
        self.setup.machine.as_ref()
    }

    fn command(&self, dir: &Path) -> Command {
        let mut server = command("redis-server");
        if self.setup.watches.is_some() {
            server.arg(dir.join(SENTINEL)).arg("--sentinel");
        }
        server
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .arg("--unixsocket")
            .arg(dir.join(SOCKET))
            .arg("--dir")
            .arg(dir);
        if self.setup.watches.is_none() {
            server.args(["--save", "", "--repl-diskless-sync-delay", "0"]);
        }
        if let Some(master) = self.setup.replica_of {
            server.args(["--replicaof", "127.0.0.1", &master.to_string()]);
        }
        if self.setup.append_only {
            server.args(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        if let Some(password) = &self.setup.password {
            server.args(["--requirepass", password]);
            if self.setup.watches.is_none() {
                // For when it is a replica.
                server.args(["--masterauth", password]);
            }
        }
        if let Some(timeout) = self.setup.in_cluster {
            let timeout = timeout.as_millis().to_string();
            server
                .args(["--cluster-enabled", "yes"])
                .args(["--cluster-node-timeout", &timeout])
                .args(["--cluster-port", &self.bus_port.to_string()])
                .args(["--cluster-allow-replica-migration", "no"])
                // However long it took to copy a master, its replica may follow it.
                .args(["--cluster-replica-validity-factor", "0"]);
        }
        if let Some(port) = self.announced {
            server.arg(format!("--{}", self.announces()));
            server.arg(port.to_string());
        }
        for command in self.setup.without {
            server.args(["--rename-command", command, ""]);
        }
        if let Some(tls) = &self.tls {
            server.args(["--tls-port", &self.tls_port.to_string()]);
            server.args(["--tls-auth-clients", "no"]);
            server.arg("--tls-ca-cert-file").arg(&tls.authority);
            server.arg("--tls-cert-file").arg(&tls.certificate);
            server.arg("--tls-key-file").arg(&tls.key);
        }
        server
    }

    async fn answers(&self, process: u32, _: &Path) -> Result<(), String> {
        match self.answering_process().await {
            Ok(answering) if answering == process.to_string() => Ok(()),
            Ok(answering) => Err(format!("process {answering} has answered")),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl RedisServer {
    /// A plain server that keeps nothing on disk.
    pub(crate) async fn start() -> Self {
        Setup::default().start().await
    }

    /// Where it listens for programs of its machine.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir().join(SOCKET)
    }

    /// `SHUTDOWN`, as when an operator stops the service.
    pub(crate) async fn shut_down(&mut self) {
        // It ends without an answer.
        self.try_command::<()>(&["SHUTDOWN"]).await;
        self.has_ended().await;
    }

    /// Starts it again, with all that it has confirmed.
    pub(crate) async fn restart_saved(&mut self) {
        // While a replica gets its copy, the server is saving already, and refuses to save again.
        eventually("it is saved", async || {
            self.try_command::<String>(&["SAVE"]).await
        })
        .await;
        self.restart().await;
    }

    /// From now on it keeps nothing on disk.
    pub(crate) async fn restart_forgetful(&mut self) {
        self.setup.append_only = false;
        self.restart().await;
    }
}

/// For the password in a URL.
fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
