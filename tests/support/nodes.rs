//! Several independent `redis-server`s of the test's own.

use super::polls::join_all;
use super::port::hosts;
use super::redis::{RedisServer, Setup};

/// Servers that know nothing of each other.
#[derive(Debug)]
pub(crate) struct Nodes(Vec<RedisServer>);

impl Nodes {
    /// Plain servers that keep nothing on disk.
    pub(crate) async fn start(count: usize) -> Self {
        Self::set_up(vec![Setup::default(); count]).await
    }

    pub(crate) async fn set_up(setups: Vec<Setup>) -> Self {
        let starting = setups
            .into_iter()
            .enumerate()
            .map(|(number, setup)| Box::pin(async move { (number, setup.start().await) }));
        let mut servers = join_all(starting).await;
        servers.sort_unstable_by_key(|(number, _)| *number);
        Self(servers.into_iter().map(|(_, server)| server).collect())
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, RedisServer> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, RedisServer> {
        self.0.iter_mut()
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        self.iter().map(RedisServer::port).collect()
    }

    /// Where clients find them.
    pub(crate) fn url(&self) -> String {
        redlock_url(&self.ports())
    }

    /// What every server has under this name, `None` for nothing.
    pub(crate) async fn get(&self, name: &str) -> Vec<Option<String>> {
        let mut values = Vec::new();
        for server in self.iter() {
            values.push(server.command(&["GET", name]).await);
        }
        values
    }

    /// Every key in every server but the token counters, with the server's
    /// number.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (number, server) in self.iter().enumerate() {
            let keys = server.keys().await;
            let keys = keys.into_iter().filter(|key| key != "dlock:token");
            all.extend(keys.map(|key| format!("{number}: {key}")));
        }
        all
    }
}

impl std::ops::Index<usize> for Nodes {
    type Output = RedisServer;

    fn index(&self, node: usize) -> &RedisServer {
        &self.0[node]
    }
}

impl std::ops::IndexMut<usize> for Nodes {
    fn index_mut(&mut self, node: usize) -> &mut RedisServer {
        &mut self.0[node]
    }
}

/// The servers at these ports, or the proxies to them.
pub(crate) fn redlock_url(ports: &[u16]) -> String {
    format!("redis+redlock://{}", hosts(ports))
}
