//! Three ZooKeeper servers of the test's own that are one store, and the ways between them.

use super::port::{free_port, hosts};
use super::proxy::Proxy;
use super::server::Server;
use super::start::{ATTEMPTS, all_up};
use super::wait::eventually;
use super::zookeeper::{Peer, Setup, ZooKeeper, ZooKeeperServer};

/// Three servers that keep one state by majority.
#[derive(Debug)]
pub(crate) struct Ensemble(pub(crate) Vec<ZooKeeperServer>);

impl Ensemble {
    /// Up, with a leader.
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let (ensemble, _) = Self::of(setup.tidy(), Cuts::none).await;
        ensemble
    }

    /// The same, of servers that can be cut off from one another.
    pub(crate) async fn start_divisible() -> (Self, Cuts) {
        Self::divisible(Setup::default()).await
    }

    pub(crate) async fn divisible(setup: Setup) -> (Self, Cuts) {
        let setup = Setup {
            patient: true,
            ..setup.tidy()
        };
        Self::of(setup, Cuts::between).await
    }

    /// Each server has a view of its own of where the others are.
    async fn of(setup: Setup, views: impl Fn(Vec<Peer>) -> ([Vec<Peer>; 3], Cuts)) -> (Self, Cuts) {
        for attempt in 1..=ATTEMPTS {
            let (views, cuts) = views(peers());
            let mut servers = Vec::new();
            for (number, peers) in views.into_iter().enumerate() {
                let mut server = Server::not_started(ZooKeeper::new(Setup {
                    member: Some((number, peers)),
                    ..setup.clone()
                }));
                // They wait for each other.
                server.spawn();
                servers.push(server);
            }
            if all_up(&mut servers, attempt).await {
                let ensemble = Self(servers);
                ensemble.is_whole().await;
                return (ensemble, cuts);
            }
        }
        panic!("three ZooKeeper servers did not start in {ATTEMPTS} attempts");
    }

    /// Waits until every server serves.
    pub(crate) async fn is_whole(&self) {
        eventually("the ensemble serves", async || {
            let modes = self.0.iter().map(|server| server.mode());
            let serving = modes.flatten().filter(|mode| mode != "looking").count();
            (serving == self.0.len()).then_some(())
        })
        .await;
    }

    /// The number of the leader.
    pub(crate) async fn leader(&self) -> usize {
        eventually("the ensemble has a leader", async || {
            self.0
                .iter()
                .position(|server| server.mode().as_deref() == Some("leader"))
        })
        .await
    }

    pub(crate) fn hosts(&self) -> String {
        let ports: Vec<_> = self.0.iter().map(ZooKeeperServer::port).collect();
        hosts(&ports)
    }
}

fn peers() -> Vec<Peer> {
    let peer = |_| Peer {
        quorum: free_port(),
        election: free_port(),
    };
    (0..3).map(peer).collect()
}

/// The ways between the servers of an ensemble.
#[derive(Debug)]
pub(crate) struct Cuts(Vec<([usize; 2], Proxy)>);

impl Cuts {
    /// All see each other where they are.
    fn none(peers: Vec<Peer>) -> ([Vec<Peer>; 3], Self) {
        ([peers.clone(), peers.clone(), peers], Self(Vec::new()))
    }

    /// Each sees the others by proxies of its own.
    fn between(peers: Vec<Peer>) -> ([Vec<Peer>; 3], Self) {
        let mut cuts = Self(Vec::new());
        let views = [0, 1, 2].map(|from| {
            let mut view = peers.clone();
            for (to, peer) in view.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                for port in [&mut peer.quorum, &mut peer.election] {
                    let proxy = Proxy::to(*port);
                    *port = proxy.port();
                    cuts.0.push(([from, to], proxy));
                }
            }
            view
        });
        (views, cuts)
    }

    /// Nothing passes from or to this server: the others do not hear of it, nor
    /// does it of them, and no connection breaks.
    pub(crate) fn cut_off(&self, server: usize, cut_off: bool) {
        for (ends, proxy) in &self.0 {
            if ends.contains(&server) {
                proxy.stall(cut_off);
            }
        }
    }
}
