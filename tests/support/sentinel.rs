//! A master, its replicas and its sentinels: real ones, of the test's own.

use std::collections::HashMap;
use std::time::Duration;

pub(crate) use super::cluster::{LONG, SHORT};
use super::machine::Machine;
use super::port::hosts;
use super::proxy::Proxy;
use super::redis::{RedisServer, Setup, Watched};
use super::wait::eventually;

pub(crate) const MASTER: &str = "mymaster";

/// Three servers and three sentinels.
#[derive(Debug)]
pub(crate) struct Deployment {
    /// The first of them was the master when it all began.
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) sentinels: Vec<RedisServer>,
    /// Where the sentinels find the servers, if that is not where they are.
    pub(crate) proxies: Vec<Proxy>,
    /// How long a master may be silent while nobody has it replaced.
    down_after: Duration,
}

/// Passwords of a deployment, if it has any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passwords {
    pub(crate) servers: Option<&'static str>,
    pub(crate) sentinels: Option<&'static str>,
}

fn set_up(password: Option<&str>) -> Setup {
    match password {
        Some(password) => Setup::default().password(password),
        None => Setup::default(),
    }
}

impl Passwords {
    fn server(&self, machine: Option<&Machine>) -> Setup {
        let setup = set_up(self.servers);
        match machine {
            Some(machine) => setup.on(machine),
            None => setup,
        }
    }

    /// A sentinel of the master that is found on this port.
    pub(crate) async fn sentinel(&self, port: u16, down_after: Duration) -> RedisServer {
        let watched = Watched {
            name: MASTER,
            port,
            password: self.servers.map(str::to_owned),
            down_after,
        };
        set_up(self.sentinels).watches(watched).start().await
    }
}

impl Deployment {
    /// One whose sentinels leave the master alone. They find it on another port
    /// than its own if `master_port` says so.
    pub(crate) async fn calm(passwords: &Passwords, master_port: impl FnOnce(u16) -> u16) -> Self {
        Self::start(passwords, master_port, LONG).await
    }

    async fn start(
        passwords: &Passwords,
        master_port: impl FnOnce(u16) -> u16,
        down_after: Duration,
    ) -> Self {
        let server = || passwords.server(None);
        let master = server().start().await;
        let port = master.port();
        let replica = async || server().replica_of(port).start().await;
        let watched = master_port(port);
        let sentinel = async || passwords.sentinel(watched, down_after).await;
        let (first, second, a, b, c) =
            tokio::join!(replica(), replica(), sentinel(), sentinel(), sentinel());
        Self {
            servers: vec![master, first, second],
            sentinels: vec![a, b, c],
            proxies: Vec::new(),
            down_after,
        }
    }

    /// One whose master is replaced when it is silent for so long, with all servers on one
    /// machine but for the sentinels. All find the servers behind proxies.
    pub(crate) async fn behind_proxies(
        machine: Option<&Machine>,
        passwords: &Passwords,
        down_after: Duration,
    ) -> Self {
        let server = || passwords.server(machine);
        let mut master = server().start().await;
        let to_master = Proxy::to(master.port());
        master.announce(to_master.port()).await;
        let mut all = vec![master];
        let mut proxies = vec![to_master];
        for _ in 0..2 {
            let mut replica = server().replica_of(proxies[0].port()).start().await;
            let proxy = Proxy::to(replica.port());
            replica.announce(proxy.port()).await;
            all.push(replica);
            proxies.push(proxy);
        }
        // They say where they are when they connect, and may have begun that before.
        replicated(&all[0], 2).await;
        let words = ["CLIENT", "KILL", "TYPE", "replica"];
        all[0].command::<u32>(&words).await;
        eventually(
            "the master knows its replicas by their proxies",
            async || {
                let info: String = all[0].command(&["INFO", "replication"]).await;
                let is_known = |proxy: &Proxy| info.contains(&format!("port={},", proxy.port()));
                proxies[1..].iter().all(is_known).then_some(())
            },
        )
        .await;
        let sentinel = async || passwords.sentinel(proxies[0].port(), down_after).await;
        let (a, b, c) = tokio::join!(sentinel(), sentinel(), sentinel());
        let deployment = Self {
            servers: all,
            sentinels: vec![a, b, c],
            proxies,
            down_after,
        };
        deployment.is_ready().await;
        deployment
    }

    /// One that replaces its master when a test has it do so, and never takes a busy
    /// machine for a dead master.
    pub(crate) async fn watchful() -> Self {
        let all = Self::start(&Passwords::default(), |port| port, LONG).await;
        all.is_ready().await;
        all
    }

    async fn is_ready(&self) {
        replicated(&self.servers[0], 2).await;
        for sentinel in &self.sentinels {
            // What it does every second or ten, so that no test waits for that. And one
            // that stood still for two seconds would do nothing for the next thirty.
            let periods = "publish-period 200 ask-period 200 info-period 1000 tilt-trigger 600000";
            let command = format!("SENTINEL DEBUG {periods}");
            let words: Vec<_> = command.split(' ').collect();
            sentinel.command::<()>(&words).await;
        }
        for sentinel in &self.sentinels {
            eventually("a sentinel knows all others", async || {
                let known: HashMap<String, String> =
                    sentinel.command(&["SENTINEL", "MASTER", MASTER]).await;
                (known["num-slaves"] == "2" && known["num-other-sentinels"] == "2").then_some(())
            })
            .await;
        }
    }

    /// Where clients find it; `more` stands behind the name of the master.
    pub(crate) fn url(&self, more: &str) -> String {
        let ports: Vec<_> = self.sentinels.iter().map(RedisServer::port).collect();
        url("", &ports, more)
    }

    /// The server that most sentinels call the master, if they agree and it
    /// agrees.
    pub(crate) async fn master(&self) -> Option<&RedisServer> {
        let mut votes = HashMap::<u16, usize>::new();
        for sentinel in &self.sentinels {
            let (_, port): (String, u16) = sentinel
                .command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
                .await;
            *votes.entry(port).or_default() += 1;
        }
        let (port, _) = votes.into_iter().find(|(_, votes)| *votes == 3)?;
        let master = self
            .servers
            .iter()
            .find(|server| self.seen(server) == port)?;
        let role: Vec<redis::Value> = master.try_command(&["ROLE"]).await?;
        let is_master = role.first() == Some(&redis::Value::BulkString(b"master".into()));
        is_master.then_some(master)
    }

    /// Where the sentinels find it.
    fn seen(&self, server: &RedisServer) -> u16 {
        let number = self.servers.iter().position(|s| s.port() == server.port());
        let proxy = number.and_then(|number| self.proxies.get(number));
        proxy.map_or(server.port(), Proxy::port)
    }

    /// A number that rises whenever the sentinels replace a master.
    pub(crate) async fn epoch(&self) -> u64 {
        let mut newest = 0;
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "MASTER", MASTER];
            let known: HashMap<String, String> = sentinel.command(&words).await;
            let epoch = known["config-epoch"].parse().expect("a number");
            newest = newest.max(epoch);
        }
        newest
    }

    /// Kills the master, and waits until another is. Its port.
    pub(crate) async fn fail_over(&mut self) -> u16 {
        let master = eventually("there is a master", async || {
            self.master().await.map(RedisServer::port)
        })
        .await;
        let mut servers = self.servers.iter_mut();
        let leader = servers.find(|server| server.port() == master);
        leader.expect("one of our servers").kill();
        self.may_be_silent(SHORT).await;
        let next = eventually("another is the master", async || {
            self.master().await.map(RedisServer::port)
        });
        let next = next.await;
        self.may_be_silent(self.down_after).await;
        next
    }

    /// Has another made the master, whether or not the one on this port is well.
    pub(crate) async fn replace(&self, port: u16) -> &RedisServer {
        eventually("another is the master", async || {
            let asked = &self.sentinels[0];
            let known: HashMap<String, String> =
                asked.command(&["SENTINEL", "MASTER", MASTER]).await;
            let is_busy = known["flags"].contains("failover_in_progress");
            if known["port"] == port.to_string() && !is_busy {
                // On a machine that stood still it may refuse, and it gives up what takes
                // long: neither is tried again by itself.
                let words = ["SENTINEL", "FAILOVER", MASTER];
                asked.try_command::<()>(&words).await;
            }
            let master = self.master().await?;
            (master.port() != port).then_some(master)
        })
        .await
    }

    async fn may_be_silent(&self, down_after: Duration) {
        let millis = down_after.as_millis().to_string();
        let words = [
            "SENTINEL",
            "SET",
            MASTER,
            "down-after-milliseconds",
            &millis,
        ];
        for sentinel in &self.sentinels {
            sentinel.command::<()>(&words).await;
        }
    }

    /// Starts those again that were killed, and waits until they follow the
    /// master.
    pub(crate) async fn revive(&mut self) {
        let servers = self.servers.iter_mut();
        for server in servers.filter(|server| !server.is_running()) {
            server.restart().await;
        }
        for server in &self.servers {
            eventually("all but one follow", async || {
                let master = self.seen(self.master().await?);
                let role: Vec<redis::Value> = server.try_command(&["ROLE"]).await?;
                let follows = role.get(2) == Some(&redis::Value::Int(master.into()))
                    && role.get(3) == Some(&redis::Value::BulkString(b"connected".into()));
                (self.seen(server) == master || follows).then_some(())
            })
            .await;
        }
    }

    /// The server on this port.
    pub(crate) fn server(&self, port: u16) -> &RedisServer {
        let server = self.servers.iter().find(|server| server.port() == port);
        server.expect("one of our servers")
    }
}

/// Waits until so many replicas follow this master.
pub(crate) async fn replicated(master: &RedisServer, replicas: usize) {
    master.has_told(replicas, "mark").await;
}

/// A URL of sentinels on these ports. `login` ends in an `@`, if there is one.
pub(crate) fn url(login: &str, ports: &[u16], more: &str) -> String {
    format!("redis+sentinel://{login}{}/{MASTER}{more}", hosts(ports))
}
