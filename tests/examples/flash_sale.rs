//! The example `flash_sale`: what it prints, how it ends, and what becomes of the
//! sale when one of its processes is killed or paused.

use std::process::Output;

use crate::example::{explains, run};
#[cfg(any(
    feature = "etcd",
    feature = "memcached",
    feature = "sqlite",
    feature = "zookeeper"
))]
use crate::support;

/// What it has printed: the numbers by their labels.
struct Sale {
    output: Output,
    printed: String,
}

impl Sale {
    fn of(output: Output) -> Self {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        Self { output, printed }
    }

    fn run(arguments: &[&str]) -> Self {
        Self::of(run("flash_sale", arguments))
    }

    /// The first number of the line that begins with `label`, or 0.
    fn number(&self, label: &str) -> u64 {
        let lines = self.printed.lines();
        let mut lines = lines.filter_map(|line| line.trim().strip_prefix(label));
        lines.find_map(first_number).unwrap_or(0)
    }

    fn in_stock(&self) -> u64 {
        let stock = self.printed.split_once(" of ");
        let (_, stock) = stock.expect("how much was in stock");
        first_number(stock).expect("a number")
    }

    #[allow(dead_code, reason = "only a store has several processes")]
    fn has(&self, label: &str) {
        let number = self.number(label);
        assert!(number > 0, "no {label}: {}", self.printed);
    }

    fn failed_nobody(&self) {
        let lost = ["failed", "lost"].map(|label| self.number(label));
        let errors = String::from_utf8_lossy(&self.output.stderr);
        assert_eq!(lost, [0, 0], "{}\n{errors}", self.printed);
    }

    /// Everything that was there is sold, nothing twice, and every order is
    /// accounted for.
    fn sold_exactly_the_stock(&self) {
        let errors = String::from_utf8_lossy(&self.output.stderr);
        let all = format!("{}\n{errors}", self.printed);
        let status = self.output.status;
        assert!(status.success(), "{status}: {all}");
        assert_eq!(self.number("sold"), self.in_stock(), "{all}");
        assert_eq!(self.number("oversold"), 0, "{all}");
        let served = ["sold", "refused", "failed", "lost"].map(|label| self.number(label));
        assert_eq!(served.iter().sum::<u64>(), self.number("orders"), "{all}");
    }
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[test]
fn it_sells_exactly_the_stock() {
    let sale = Sale::run(&["--orders", "2000"]);
    sale.sold_exactly_the_stock();
    sale.failed_nobody();
    assert_eq!(sale.number("orders"), 2_000);
    let printed = &sale.printed;
    for label in ["sales a second", "wait p50", "wait p99", "process 1"] {
        assert!(printed.contains(label), "{label} is not in\n{printed}");
    }
    // Nobody takes locks in memory for those of several machines.
    let errors = String::from_utf8_lossy(&sale.output.stderr);
    for says in ["in the memory of this process", "--store redis://"] {
        assert!(errors.contains(says), "{says} is not in\n{errors}");
    }
}

#[test]
fn without_the_lock_it_oversells_and_says_by_how_many() {
    let sale = Sale::run(&["--orders", "2000", "--without-lock"]);
    let oversold = sale.number("oversold");
    assert!(oversold > 0, "{}", sale.printed);
    let sold = sale.number("sold");
    assert!(sold >= sale.in_stock() + oversold, "{}", sale.printed);
    // That was asked for; only a lock that fails is a failure.
    assert!(sale.output.status.success());
}

#[test]
fn what_it_is_told_wrong_it_explains() {
    explains(
        "flash_sale",
        &[
            (&["--orders", "many"], &["--orders cannot be `many`"]),
            (&["--tasks"], &["missing argument", "--tasks"]),
            (&["--orders", "0"], &["--orders"]),
            (&["--what"], &["--what"]),
            (&["--store", "nowhere"], &["store URL"]),
            (&["--store", "redis://127.0.0.1:1"], &["redis"]),
            (&["--processes", "3"], &["--store"]),
        ],
    );
}

/// Four processes sell over the store at this URL.
#[cfg(any(
    feature = "etcd",
    feature = "memcached",
    all(
        feature = "redis-cluster",
        feature = "redis-redlock",
        feature = "redis-sentinel"
    ),
    feature = "sqlite",
    feature = "zookeeper"
))]
async fn sells(url: String, orders: &'static str) {
    // Four processes are enough for a small machine.
    static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = ONE_AT_A_TIME.lock().await;
    let sale = tokio::task::spawn_blocking(move || {
        let mut sale = std::process::Command::new(crate::example::example("flash_sale"));
        sale.args(["--orders", orders, "--processes", "4", "--store", &url])
            .env_remove("DLOCK_URL")
            // A busy machine is not an outage.
            .env("DLOCK_REQUEST_TIMEOUT", "15s");
        sale.output().expect("the example")
    });
    let sale = Sale::of(sale.await.expect("no panic"));
    sale.sold_exactly_the_stock();
    sale.failed_nobody();
}

/// With no set-up but the feature.
#[cfg(feature = "etcd")]
#[tokio::test]
async fn four_processes_sell_exactly_the_stock_in_etcd() {
    let server = support::etcd::EtcdServer::start().await;
    sells(support::etcd::etcd_url(&[server.port()]), "400").await;
    assert_eq!(server.keys("").await, Vec::<String>::new());
}

#[cfg(feature = "memcached")]
#[tokio::test]
async fn four_processes_sell_exactly_the_stock_in_memcached() {
    let server = support::memcached::MemcachedServer::start().await;
    sells(server.url(), "400").await;
    // All that is left is what tells one start of the server from another.
    assert_eq!(server.items(), ["dlock-server".to_owned()].into());
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn four_processes_sell_exactly_the_stock_in_zookeeper() {
    let server = support::zookeeper::ZooKeeperServer::shared().await;
    sells(format!("zookeeper://127.0.0.1:{}", server.port()), "400").await;
    let left = support::zookeeper::nodes(&server.client().await, "/").await;
    let known = |name: &String| ["dlock", "zookeeper"].contains(&&**name);
    assert!(left.iter().all(known), "{left:?}");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn four_processes_sell_exactly_the_stock_in_a_file() {
    let dir = support::dir::TempDir::default();
    let file = dir.path().join("sale.db");
    sells(format!("sqlite:{}", file.display()), "400").await;
}

#[cfg(all(
    feature = "redis-cluster",
    feature = "redis-redlock",
    feature = "redis-sentinel"
))]
mod on_redis {
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::example::example;
    use crate::support::cluster::{Cluster, LONG};
    use crate::support::nodes::Nodes;
    use crate::support::process::command;
    use crate::support::program::Program;
    use crate::support::redis::RedisServer;
    use crate::support::sentinel::{Deployment, Passwords, replicated, url};
    use crate::support::wait::{eventually, until};

    /// The sale while it runs.
    struct Running {
        program: Program,
        processes: Vec<Pid>,
        server: RedisServer,
    }

    impl Running {
        async fn start(arguments: &[&str]) -> Self {
            Self::start_with(&[("DLOCK_TTL", "30s")], arguments).await
        }

        async fn start_with(settings: &[(&str, &str)], arguments: &[&str]) -> Self {
            let server = RedisServer::start().await;
            let mut sale = command(example("flash_sale"));
            sale.args(["--processes", "4"])
                .args(arguments)
                .env("DLOCK_URL", server.url())
                .envs(settings.iter().copied());
            let program = Program::start(sale);
            // It names its processes in the first line, as `[12, 13]` at the end.
            let processes = eventually("the sale has begun", async || {
                let errors = program.errors();
                let (_, list) = errors.lines().next()?.strip_suffix(']')?.rsplit_once('[')?;
                let pids = list.split(", ").map(str::parse);
                Some(
                    pids.map(|pid| Pid::from_raw(pid.expect("a process id")))
                        .collect(),
                )
            });
            let processes: Vec<_> = processes.await;
            assert_eq!(processes.len(), 4);
            Self {
                program,
                processes,
                server,
            }
        }

        /// Orders in the shop's book, which holds one empty line from the start.
        async fn booked(&self) -> u64 {
            let keys: Vec<String> = self.server.command(&["KEYS", "*:orders:book"]).await;
            let Some(book) = keys.first() else { return 0 };
            let lines: u64 = self.server.command(&["HLEN", book]).await;
            lines.saturating_sub(1)
        }

        async fn has_booked(&self, count: u64) {
            let booked = async || self.booked().await;
            until("the sale goes on", booked, |&now| now >= count).await;
        }

        fn signal(&self, process: usize, signal: Signal) {
            kill(self.processes[process], signal).expect("a running process");
        }

        async fn end(mut self) -> (Sale, RedisServer) {
            (Sale::of(self.program.end().await), self.server)
        }
    }

    #[tokio::test]
    async fn four_processes_sell_exactly_the_stock() {
        // A busy machine is not an outage, and a process may begin late there.
        let patient = [("DLOCK_TTL", "60s"), ("DLOCK_REQUEST_TIMEOUT", "15s")];
        let running = Running::start_with(&patient, &["--orders", "4000"]).await;
        let (sale, server) = running.end().await;
        sale.sold_exactly_the_stock();
        sale.failed_nobody();
        for process in ["process 1", "process 2", "process 3", "process 4"] {
            sale.has(process);
        }
        let left = server.keys().await;
        let of_the_sale = left.iter().any(|key| key.contains("flash-sale"));
        assert!(!of_the_sale, "{left:?}");
    }

    #[tokio::test]
    async fn four_processes_sell_exactly_the_stock_where_sentinels_say_it_is() {
        let passwords = Passwords {
            servers: Some("stock"),
            sentinels: Some("watch"),
        };
        let deployment = Deployment::calm(&passwords, |port| port).await;
        replicated(&deployment.servers[0], 2).await;
        let ports: Vec<_> = deployment.sentinels.iter().map(RedisServer::port).collect();
        let url = url(":stock@", &ports, "?replicas=1&sentinel_password=watch");
        sells(url, "400").await;
    }

    #[tokio::test]
    async fn four_processes_oversell_without_the_lock() {
        let running = Running::start(&["--orders", "4000", "--without-lock"]).await;
        let (sale, _server) = running.end().await;
        sale.has("oversold");
    }

    /// The locks are on a majority of five servers, the stock on one of them.
    #[tokio::test]
    async fn locks_on_five_servers_sell_exactly_the_stock() {
        let nodes = Nodes::start(5).await;
        sells(nodes.url(), "400").await;
        // Those who died would leave their locks to their ttl.
        assert!(nodes.keys().await.is_empty());
    }

    /// The locks are on all masters of a cluster, or on most of them each, and the
    /// stock is on one.
    #[tokio::test]
    async fn locks_in_a_cluster_sell_exactly_the_stock() {
        let cluster = Cluster::start(LONG).await;
        for more in ["", "?quorum=masters"] {
            sells(cluster.url(more), "400").await;
            let keys = async || cluster.keys().await;
            until("nothing is left", keys, Vec::is_empty).await;
        }
    }

    /// Also where one is killed and one is paused for longer than its ttl.
    #[tokio::test]
    async fn dead_and_paused_processes_change_nothing() {
        let arguments = ["--orders", "20000", "--tasks", "16"];
        let running = Running::start_with(&[("DLOCK_TTL", "3s")], &arguments).await;
        running.has_booked(500).await;
        running.signal(0, Signal::SIGSTOP);
        running.has_booked(1_000).await;
        running.signal(1, Signal::SIGKILL);
        // The ttl is three seconds: what the two held is sold on
        // by the others, and the paused one comes back late.
        tokio::time::sleep(Duration::from_secs(4)).await;
        running.signal(0, Signal::SIGCONT);
        let (sale, _server) = running.end().await;
        sale.sold_exactly_the_stock();
        // A process has no more orders in its hands than it has tasks.
        assert!(sale.number("lost") <= 16, "{}", sale.printed);
        sale.has("process 3");
        sale.has("process 4");
    }

    impl Sale {
        /// It ended early, and has said so and why.
        fn ended_early(&self) {
            let errors = String::from_utf8_lossy(&self.output.stderr);
            assert_eq!(self.output.status.code(), Some(1), "{errors}");
            assert!(errors.contains("ended early: "), "{errors}");
            assert!(!errors.contains("panicked"), "{errors}");
            assert_eq!(self.number("orders"), 20_000, "{}", self.printed);
        }
    }

    /// Every connection breaks. What was sold so far is in the book, and the
    /// table says it.
    #[tokio::test]
    async fn a_sale_that_loses_its_shop_says_what_was_sold() {
        let running = Running::start(&["--orders", "20000"]).await;
        running.has_booked(500).await;
        // A connection may be made again between the two.
        for _ in 0..2 {
            let words = ["CLIENT", "KILL", "TYPE", "normal"];
            let _: u64 = running.server.command(&words).await;
        }
        let (sale, server) = running.end().await;
        sale.ended_early();
        let served = ["sold", "refused", "failed"].map(|label| sale.number(label));
        assert!(served.iter().sum::<u64>() >= 500, "{}", sale.printed);
        assert_eq!(sale.number("oversold"), 0, "{}", sale.printed);
        assert!(sale.printed.contains("sales a second"), "{}", sale.printed);
        let left = async || server.keys().await;
        let of_the_sale = |left: &Vec<String>| !left.iter().any(|key| key.contains(":orders:"));
        until("nothing is left", left, of_the_sale).await;
    }

    /// And when the store is gone for good, what was seen of it.
    #[tokio::test]
    async fn a_sale_whose_store_is_gone_says_what_it_last_saw() {
        let mut running = Running::start(&["--orders", "20000"]).await;
        running.has_booked(500).await;
        running.server.kill();
        let (sale, _server) = running.end().await;
        sale.ended_early();
        sale.has("served");
        sale.has("sold");
    }

    /// However their parent ends, the processes do not sell on without it, and
    /// give back what they hold.
    #[tokio::test]
    async fn the_processes_end_with_their_parent() {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let mut running = Running::start(&["--orders", "1000000"]).await;
            running.has_booked(100).await;
            let parent = i32::try_from(running.program.process.id());
            let parent = Pid::from_raw(parent.expect("a process id"));
            kill(parent, signal).expect("a running process");
            running.program.end().await;
            let mut keys = running.server.keys().await;
            keys.retain(|key| key.starts_with("dlock:{"));
            assert!(keys.is_empty(), "{signal}: {keys:?}");
        }
    }
}
