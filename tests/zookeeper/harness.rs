//! What the tests below share.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock::backend::zookeeper_client::{Acls, Client, CreateMode};
use dlock::{Config, LockManager};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::locks;
use crate::support::proxy::Proxy;
use crate::support::wait::until;
use crate::support::zookeeper::{ZooKeeperServer, nodes};

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(REQUEST_TIMEOUT)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}

/// A folder of one test's own in the server that others use too, and ways to it
/// that can fail.
pub(crate) struct Scene {
    pub(crate) server: Arc<ZooKeeperServer>,
    pub(crate) root: String,
}

impl Scene {
    pub(crate) async fn set() -> Self {
        Self {
            server: ZooKeeperServer::shared().await,
            root: format!("/test-{:016x}", fastrand::u64(..)),
        }
    }

    /// Straight there.
    pub(crate) fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}{}", self.server.port(), self.root)
    }

    /// By way of the proxy, with a session that ends soon.
    pub(crate) fn url_through(&self, proxy: &Proxy, session: &str) -> String {
        let Self { root, .. } = self;
        let port = proxy.port();
        format!("zookeeper://127.0.0.1:{port}{root}?session_timeout={session}")
    }

    pub(crate) fn proxy(&self) -> Proxy {
        Proxy::to(self.server.port())
    }

    /// The nodes of a lock, in the order of their numbers.
    pub(crate) async fn nodes(&self, key: &str) -> Vec<String> {
        let client = self.server.client().await;
        nodes(&client, &format!("{}/{key}", self.root)).await
    }

    /// Waits until a lock has so many nodes.
    pub(crate) async fn has_nodes(&self, key: &str, count: usize) {
        let client = self.server.client().await;
        let folder = format!("{}/{key}", self.root);
        let there = async || nodes(&client, &folder).await;
        until("the nodes", there, |nodes| nodes.len() == count).await;
    }

    /// Makes another node of the same request, by a session of its own.
    pub(crate) async fn make_like(&self, client: &Client, key: &str, node: &str) -> String {
        let start = node.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let path = format!("{}/{key}/{start}", self.root);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = client.create(&path, b"", &options).await.expect("a node");
        format!("{start}{sequence}")
    }

    pub(crate) async fn delete(&self, key: &str, node: &str) {
        let client = self.server.client().await;
        let path = format!("{}/{key}/{node}", self.root);
        client.delete(&path, None).await.expect("a node");
    }
}

/// How often each operation was asked for, by its number in the protocol
/// (`ZooDefs.OpCode`).
pub(crate) type Asked = BTreeMap<i32, u64>;

/// A way to a server that counts what is asked over it.
pub(crate) struct Counter {
    pub(crate) port: u16,
    asked: Arc<Mutex<Asked>>,
}

impl Counter {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let asked: Arc<Mutex<Asked>> = Arc::default();
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await;
                let server = server.expect("a connection");
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(count_all(from_client, to_server, Arc::clone(&count)));
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
            }
        });
        Self { port, asked }
    }

    /// What was asked since this was called last.
    pub(crate) fn since_last(&self) -> Asked {
        std::mem::take(&mut self.asked.lock().expect("no panic"))
    }
}

/// Each message has its length in front, then its number, then the operation; but the
/// first one opens the session.
async fn count_all(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    asked: Arc<Mutex<Asked>>,
) -> io::Result<()> {
    let mut is_open = false;
    loop {
        let length = from.read_u32().await?;
        let mut message = length.to_be_bytes().to_vec();
        (&mut from)
            .take(length.into())
            .read_to_end(&mut message)
            .await?;
        if is_open && let Some(operation) = message.get(8..).and_then(<[u8]>::first_chunk) {
            let operation = i32::from_be_bytes(*operation);
            *asked
                .lock()
                .expect("no panic")
                .entry(operation)
                .or_default() += 1;
        }
        is_open = true;
        to.write_all(&message).await?;
    }
}
