//! A store with its contestants, and all that they do there.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::Mutex;

use crate::contestant::{Contestant, DLOCK, ON_REDIS, ON_ZOOKEEPER};
use crate::line::Line;
use crate::program::Program;
use crate::support::redis::RedisServer;
use crate::support::zookeeper::ZooKeeperServer;
use crate::{Asked, Effort, crowds, rates};

/// A store, and who locks there.
#[derive(Debug)]
pub(crate) struct Site {
    /// With its version.
    store: String,
    url: String,
    address: String,
    /// dlock is the first.
    pub(crate) contestants: Vec<Contestant>,
}

/// What was measured on one store.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) store: String,
    /// Who, and of which version.
    pub(crate) columns: Vec<(&'static str, String)>,
    pub(crate) lines: Vec<Line>,
}

/// A program of each contestant.
pub(crate) type Programs = [Mutex<Program>];

type Measured<'a> = Pin<Box<dyn Future<Output = Vec<Line>> + 'a>>;
type Measure = for<'a> fn(&'a Site, &'a Programs, &'a Effort) -> Measured<'a>;

/// The works, by the words that ask for them.
const WORKS: [(&str, Measure); 5] = [
    ("pair", |site, programs, effort| {
        Box::pin(rates::of(site, programs, effort, ("1 task", 1, 1)))
    }),
    ("64 keys", |site, programs, effort| {
        let work = ("64 tasks, 64 keys", 64, 64);
        Box::pin(rates::of(site, programs, effort, work))
    }),
    ("hot key", |site, programs, effort| {
        let work = ("64 tasks, one key", 64, 1);
        Box::pin(rates::of(site, programs, effort, work))
    }),
    ("processes", |site, _, effort| {
        Box::pin(crowds::contended(site, effort))
    }),
    ("in turn", |site, _, effort| {
        Box::pin(crowds::in_turn(site, effort))
    }),
];

impl Site {
    pub(crate) async fn redis(server: &RedisServer) -> Self {
        let info: String = server.command(&["INFO", "server"]).await;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        Self::new(
            format!("Redis {}", version.expect("its version").trim()),
            server.url(),
            server.port(),
            &ON_REDIS,
        )
    }

    pub(crate) fn zookeeper(server: &ZooKeeperServer) -> Self {
        let status = server.asked("srvr").expect("an answer");
        let version = status
            .lines()
            .find_map(|line| line.strip_prefix("Zookeeper version: "));
        let number = version.and_then(|version| version.split('-').next());
        Self::new(
            format!("ZooKeeper {}", number.expect("its version")),
            format!("zookeeper://127.0.0.1:{}", server.port()),
            server.port(),
            &ON_ZOOKEEPER,
        )
    }

    /// Peers that are not built are left out.
    fn new(store: String, url: String, port: u16, peers: &[Contestant]) -> Self {
        let mut contestants = vec![DLOCK];
        for peer in peers {
            if peer.is_built() {
                contestants.push(*peer);
            } else {
                let name = peer.name;
                println!("(nothing beside {name}: `benches/peers/build.sh` builds it)");
            }
        }
        Self {
            store,
            url,
            address: format!("127.0.0.1:{port}"),
            contestants,
        }
    }

    /// Where this contestant finds the store.
    pub(crate) fn server_of(&self, contestant: &Contestant) -> &str {
        if contestant.is_dlock() {
            &self.url
        } else {
            &self.address
        }
    }

    pub(crate) async fn measure(&self, asked: &Asked) -> Table {
        let mut programs = Vec::new();
        let mut columns = Vec::new();
        for contestant in &self.contestants {
            let server = self.server_of(contestant);
            let program = Program::start(contestant.command(), contestant.lock, server).await;
            columns.push((contestant.name, program.version().to_owned()));
            programs.push(Mutex::new(program));
        }
        let mut lines = Vec::new();
        for (name, measure) in WORKS {
            let name = format!("{name} on {}", self.store.to_lowercase());
            if asked.wants(&name) {
                eprintln!("{name} …");
                lines.extend(measure(self, &programs, &asked.effort).await);
            }
        }
        for program in programs {
            let status = program.into_inner().end().await;
            assert!(status.success(), "a contestant failed: {status}");
        }
        Table {
            store: self.store.clone(),
            columns,
            lines,
        }
    }
}
