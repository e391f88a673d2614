//! Several independent `redis-server`s of the test's own.

use std::ops::{Deref, DerefMut};

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
        Self(join_all(setups.into_iter().map(Setup::start)).await)
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

impl Deref for Nodes {
    type Target = [RedisServer];

    fn deref(&self) -> &[RedisServer] {
        &self.0
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut [RedisServer] {
        &mut self.0
    }
}

/// The servers at these ports, or the proxies to them.
pub(crate) fn redlock_url(ports: &[u16]) -> String {
    format!("redis+redlock://{}", hosts(ports))
}
