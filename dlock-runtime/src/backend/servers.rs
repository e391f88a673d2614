//! Where the servers of a store are.

/// Where the servers of a store are and what protocol they should speak. With this, an error can
/// say that a server refuses connections, or that something else answers there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Servers {
    /// The protocol that is spoken there.
    pub protocol: Protocol,
    /// Whether each connection is encrypted from its first byte on.
    pub encrypted: bool,
    /// The name of the servers in messages, if it is not the store's name.
    pub name: Option<String>,
    /// Each as `host:port`. It is enough to reach one that answers.
    pub hosts: Vec<String>,
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Redis, sentinels included.
    Redis,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
    /// PostgreSQL, or a pooler in front of it.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
    /// memcached.
    Memcached,
    /// Something that dlock does not know.
    Other,
}

impl Servers {
    /// Servers of this protocol, without encryption.
    #[must_use]
    pub fn new(protocol: Protocol, hosts: impl IntoIterator<Item = String>) -> Self {
        Self {
            protocol,
            encrypted: false,
            name: None,
            hosts: hosts.into_iter().collect(),
        }
    }

    /// Sets the name used in messages.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether connections to them are encrypted.
    #[must_use]
    pub fn encrypted(mut self, encrypted: bool) -> Self {
        self.encrypted = encrypted;
        self
    }
}
