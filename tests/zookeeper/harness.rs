//! What the tests below share.

use std::sync::Arc;

use zookeeper_client::{Acls, Client, CreateMode};

pub(crate) use crate::support::patient::{config, connect};
use crate::support::proxy::Proxy;
use crate::support::wait::until;
use crate::support::zookeeper::{ZooKeeperServer, nodes};

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
