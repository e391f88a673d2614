//! A Redis Cluster of the test's own: masters, each with a replica.

use std::sync::Mutex;
use std::time::Duration;

use super::lent::{Lendable, Pool};
use super::polls::join_all;
use super::port::hosts;
use super::proxy::Proxy;
use super::redis::{RedisServer, Setup};

use super::wait::{eventually, until};

/// How long a master may be silent in tests in which it is not meant to be
/// replaced.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// The same where it is: a busy machine must not be taken for a dead master.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);

const SLOTS: usize = 16384;

/// How many masters, and how many replicas.
pub(crate) const MASTERS: usize = 3;

/// Three masters and three replicas.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The masters come first, in the order of their slots, and then the replica
    /// of each.
    pub(crate) servers: Vec<RedisServer>,
    /// Where the nodes say that they are, if that is not where they are.
    pub(crate) proxies: Vec<Proxy>,
}

impl Cluster {
    pub(crate) async fn start(node_timeout: Duration) -> Self {
        Self::set_up(Setup::default(), node_timeout).await
    }

    pub(crate) async fn set_up(setup: Setup, node_timeout: Duration) -> Self {
        let setup = setup.in_cluster(node_timeout);
        Self::of(launch(setup, 2 * MASTERS).await).await
    }

    /// One that replaces its masters when a test has it do so, and never takes a busy machine for
    /// a dead master.
    pub(crate) async fn watchful() -> Self {
        Self::start(LONG).await
    }

    /// A calm one with so many masters, and as many replicas.
    pub(crate) async fn of_masters(count: usize) -> Self {
        let setup = Setup::default().in_cluster(LONG);
        Self::of(launch(setup, 2 * count).await).await
    }

    /// A calm one whose nodes are reached through proxies that can fail.
    pub(crate) async fn behind_proxies() -> Self {
        Self::set_up_behind_proxies(Setup::default(), LONG).await
    }

    pub(crate) async fn set_up_behind_proxies(setup: Setup, node_timeout: Duration) -> Self {
        let mut servers = launch(setup.in_cluster(node_timeout), 2 * MASTERS).await;
        let mut proxies = Vec::new();
        for server in &mut servers {
            let proxy = Proxy::to(server.port());
            server.announce(proxy.port()).await;
            proxies.push(proxy);
        }
        let cluster = Self {
            proxies,
            ..Self::of(servers).await
        };
        cluster.is_behind_its_proxies().await;
        cluster
    }

    /// Waits until each node names the others by their proxies: they met where they are.
    async fn is_behind_its_proxies(&self) {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        for server in &self.servers {
            eventually(
                "a node knows where the others say that they are",
                async || {
                    let nodes = nodes(server).await?;
                    let is_there = |node: &String| {
                        let says = |port: &u16| node.contains(&format!(":{port}@"));
                        ports.iter().any(says)
                    };
                    nodes.iter().all(is_there).then_some(())
                },
            )
            .await;
        }
    }

    /// Makes a cluster of servers, the first half of which become masters.
    async fn of(servers: Vec<RedisServer>) -> Self {
        let masters = servers.len() / 2;
        // They tell each other the more often, the sooner they would give one up.
        let node_timeout = servers[0].node_timeout().as_millis().to_string();
        let times_out = async |servers: &[RedisServer], timeout: &str, no_failover: &str| {
            let timeout = ["cluster-node-timeout", timeout];
            let no_failover = ["cluster-replica-no-failover", no_failover];
            let words = [["CONFIG", "SET"], timeout, no_failover].concat();
            for server in servers {
                server.command::<()>(&words).await;
            }
        };
        // And not too soon: what is given up on a busy machine stays so for long. No replica
        // takes over from it.
        times_out(&servers, "5000", "yes").await;
        for (number, server) in servers[..masters].iter().enumerate() {
            let first = number * SLOTS / masters;
            let last = (number + 1) * SLOTS / masters - 1;
            let (first, last) = (first.to_string(), last.to_string());
            let words = ["CLUSTER", "ADDSLOTSRANGE", &first, &last];
            server.command::<()>(&words).await;
        }
        for (number, server) in servers.iter().enumerate() {
            let epoch = (number + 1).to_string();
            let words = ["CLUSTER", "SET-CONFIG-EPOCH", &epoch];
            server.command::<()>(&words).await;
        }
        for server in &servers[1..] {
            let (port, bus) = (server.port().to_string(), server.bus_port().to_string());
            let words = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus];
            servers[0].command::<()>(&words).await;
        }
        for server in &servers {
            eventually("a node knows all others", async || {
                let nodes = nodes(server).await?;
                let known = nodes.iter().filter(|node| !node.contains("handshake"));
                (known.count() == servers.len()).then_some(())
            })
            .await;
        }
        for (master, replica) in servers[..masters].iter().zip(&servers[masters..]) {
            let id: String = master.command(&["CLUSTER", "MYID"]).await;
            let words = ["CLUSTER", "REPLICATE", &id];
            replica.command::<()>(&words).await;
        }
        for replica in &servers[masters..] {
            follows(replica).await;
        }
        for server in &servers {
            eventually("a node knows all replicas", async || {
                let nodes = nodes(server).await?;
                let replicas = nodes.iter().filter(|node| node.contains("slave"));
                (replicas.count() == servers.len() - masters).then_some(())
            })
            .await;
        }
        let cluster = Self {
            servers,
            proxies: Vec::new(),
        };
        cluster.is_whole().await;
        times_out(&cluster.servers, &node_timeout, "no").await;
        cluster.is_whole().await;
        cluster
    }

    /// Waits until all nodes that run agree that every slot has a master.
    pub(crate) async fn is_whole(&self) {
        for server in self.servers.iter().filter(|server| server.is_running()) {
            let state = async || {
                let info: Option<String> = server.try_command(&["CLUSTER", "INFO"]).await;
                info.unwrap_or_default()
            };
            let ok = |info: &String| info.contains("cluster_state:ok");
            until("the cluster is up", state, ok).await;
        }
    }

    pub(crate) fn masters(&self) -> &[RedisServer] {
        &self.servers[..self.servers.len() / 2]
    }

    /// Where clients find it; `more` stands behind the hosts.
    pub(crate) fn url(&self, more: &str) -> String {
        let ports: Vec<_> = match &self.proxies[..] {
            [] => self.servers.iter().map(RedisServer::port).collect(),
            proxies => proxies.iter().map(Proxy::port).collect(),
        };
        url(&ports, more)
    }

    /// The server that has the slot of a name now.
    pub(crate) async fn owner(&self, name: &str) -> &RedisServer {
        let slot = self.slot(name).await;
        eventually("the slot has an owner", async || {
            for server in self.servers.iter().filter(|server| server.is_running()) {
                let info: Option<String> = server.try_command(&["INFO", "replication"]).await;
                let nodes = nodes(server).await?;
                let me = nodes.iter().find(|node| node.contains("myself"))?;
                if info?.contains("role:master") && has_slot(me, slot) {
                    return Some(server);
                }
            }
            None
        })
        .await
    }

    pub(crate) async fn slot(&self, name: &str) -> usize {
        let server = self.servers.iter().find(|server| server.is_running());
        let server = server.expect("a running node");
        server.command(&["CLUSTER", "KEYSLOT", name]).await
    }

    /// Kills the master of this number, and waits until its replica has taken
    /// over.
    pub(crate) async fn fail_over(&mut self, number: usize) {
        self.servers[number].kill();
        self.may_be_silent(SHORT, number).await;
        self.has_replaced(number).await;
        self.is_whole().await;
        self.is_patient_again(number).await;
    }

    /// Waits until the replica of this master is one itself. The old master may not answer.
    pub(crate) async fn replica_is_master(&self, number: usize) {
        self.may_be_silent(SHORT, number).await;
        self.has_replaced(number).await;
        self.is_patient_again(number).await;
    }

    /// For the nodes that run, but for this one, a master is dead that is silent for so long.
    async fn may_be_silent(&self, node_timeout: Duration, but_for: usize) {
        let millis = node_timeout.as_millis().to_string();
        let words = ["CONFIG", "SET", "cluster-node-timeout", &millis];
        for (number, server) in self.servers.iter().enumerate() {
            if number != but_for && server.is_running() {
                server.command::<()>(&words).await;
            }
        }
    }

    async fn is_patient_again(&self, but_for: usize) {
        self.may_be_silent(self.servers[but_for].node_timeout(), but_for)
            .await;
    }

    async fn has_replaced(&self, number: usize) {
        let replica = &self.servers[MASTERS + number];
        let role = async || {
            let role: Option<Vec<redis::Value>> = replica.try_command(&["ROLE"]).await;
            role.and_then(|role| role.into_iter().next())
        };
        let master = Some(redis::Value::BulkString(b"master".into()));
        until("it has taken over", role, |role| *role == master).await;
    }

    /// Moves a slot with all its keys from one master to another, step by step,
    /// as `redis-cli --cluster reshard` does.
    pub(crate) async fn move_slot(&self, slot: usize, from: usize, to: usize) {
        let number = slot.to_string();
        let [source, target] = [&self.servers[from], &self.servers[to]];
        let target_id: String = target.command(&["CLUSTER", "MYID"]).await;
        self.open_slot(slot, from, to).await;
        self.move_keys(slot, from, to, usize::MAX).await;
        // The others hear of it from these two as well.
        for server in [target, source].into_iter().chain(self.masters()) {
            let words = ["CLUSTER", "SETSLOT", &number, "NODE", &target_id];
            server.command::<()>(&words).await;
        }
    }

    /// The first step: the slot is on its way.
    pub(crate) async fn open_slot(&self, slot: usize, from: usize, to: usize) {
        let number = slot.to_string();
        let [source, target] = [&self.servers[from], &self.servers[to]];
        let source_id: String = source.command(&["CLUSTER", "MYID"]).await;
        let target_id: String = target.command(&["CLUSTER", "MYID"]).await;
        let importing = ["CLUSTER", "SETSLOT", &number, "IMPORTING", &source_id];
        target.command::<()>(&importing).await;
        let migrating = ["CLUSTER", "SETSLOT", &number, "MIGRATING", &target_id];
        source.command::<()>(&migrating).await;
    }

    /// Moves at most so many keys of a slot that is on its way. Which.
    pub(crate) async fn move_keys(
        &self,
        slot: usize,
        from: usize,
        to: usize,
        most: usize,
    ) -> Vec<String> {
        let number = slot.to_string();
        let [source, target] = [&self.servers[from], &self.servers[to]];
        let port = target.port().to_string();
        let mut moved = Vec::new();
        while moved.len() < most {
            let one = (most - moved.len()).min(10).to_string();
            let words = ["CLUSTER", "GETKEYSINSLOT", &number, &one];
            let keys: Vec<String> = source.command(&words).await;
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000"];
            words.extend(target.password().iter().flat_map(|own| ["AUTH", own]));
            words.push("KEYS");
            words.extend(keys.iter().map(String::as_str));
            source.command::<String>(&words).await;
            moved.extend(keys);
        }
        moved
    }

    /// Moves some of the keys of a slot that is on its way, in one go. How many.
    pub(crate) async fn go_ahead(
        &self,
        [slot, from, to]: [usize; 3],
        ahead: impl Fn(&str) -> bool,
    ) -> usize {
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"];
        let mut keys: Vec<String> = self.servers[from].command(&words).await;
        keys.retain(|key| ahead(key));
        let port = self.servers[to].port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        self.servers[from].command::<String>(&words).await;
        keys.len()
    }

    /// How often somebody was told to try again, as a slot is on its way.
    pub(crate) async fn told_to_try_again(&self) -> u32 {
        let mut told = 0;
        for server in self.masters() {
            let info: String = server.command(&["INFO", "errorstats"]).await;
            let count = info.split_once("errorstat_TRYAGAIN:count=");
            let count = count.and_then(|(_, rest)| rest.lines().next()?.parse::<u32>().ok());
            told += count.unwrap_or(0);
        }
        told
    }

    /// Every key on the masters that was written for a lock: not the token
    /// counters, nor which masters vote.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let mut all = Vec::new();
        for server in self.masters() {
            let keys = server.keys().await;
            all.extend(
                keys.into_iter().filter(|key| {
                    !key.starts_with("dlock:token") && !key.starts_with("dlock:voters")
                }),
            );
        }
        all
    }
}

/// A slot, the master that has it from the start, and one to which it may move.
pub(crate) fn may_move(slot: usize) -> [usize; 3] {
    let from = slot * MASTERS / SLOTS;
    [slot, from, (from + 1) % MASTERS]
}

async fn launch(setup: Setup, count: usize) -> Vec<RedisServer> {
    let starting = (0..count).map(|_| setup.clone().start());
    join_all(starting).await
}

async fn nodes(server: &RedisServer) -> Option<Vec<String>> {
    let nodes: String = server.try_command(&["CLUSTER", "NODES"]).await?;
    Some(nodes.lines().map(str::to_owned).collect())
}

/// Whether a line of `CLUSTER NODES` says that the node has a slot.
fn has_slot(node: &str, slot: usize) -> bool {
    node.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse(), last.parse());
        matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    })
}

/// Waits until a replica has caught up with its master.
pub(crate) async fn follows(replica: &RedisServer) {
    let role = async || replica.try_command::<Vec<redis::Value>>(&["ROLE"]).await;
    let connected = redis::Value::BulkString(b"connected".into());
    until("the replica follows", role, |role| {
        role.as_ref().and_then(|role| role.get(3)) == Some(&connected)
    })
    .await;
}

/// A URL of nodes on these ports.
pub(crate) fn url(ports: &[u16], more: &str) -> String {
    format!("redis+cluster://{}{more}", hosts(ports))
}

impl Lendable for Cluster {
    fn pool() -> &'static Mutex<Pool<Self>> {
        static POOL: Mutex<Pool<Cluster>> = Mutex::new(Pool::none());
        &POOL
    }

    async fn calm() -> Self {
        Self::behind_proxies().await
    }

    async fn clear(&self) {
        for server in self.masters() {
            server.command::<()>(&["FLUSHALL"]).await;
        }
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }
}
