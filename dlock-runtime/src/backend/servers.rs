//! Where the servers of a store are.

/// Where the servers of a store are and what they should speak, so that a
/// connection that is refused, or leads to something else, can be told as that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Servers {
    /// What is spoken there.
    pub protocol: Protocol,
    /// Whether each connection is encrypted from its first byte on.
    pub encrypted: bool,
    /// What they are called in messages, if not by the store's name.
    pub name: Option<String>,
    /// Each as `host:port`. One that answers is enough to be connected.
    pub hosts: Vec<String>,
}

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Redis, sentinels included.
    Redis,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
    /// PostgreSQL, or a pooler before it.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
    /// memcached.
    Memcached,
    /// Something that dlock does not know.
    Other,
}

impl Servers {
    /// Servers that speak this, not encrypted.
    #[must_use]
    pub fn new(protocol: Protocol, hosts: impl IntoIterator<Item = String>) -> Self {
        Self {
            protocol,
            encrypted: false,
            name: None,
            hosts: hosts.into_iter().collect(),
        }
    }

    /// By a name of their own.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether connections to them are encrypted.
    #[must_use]
    pub fn encrypted(mut self, encrypted: bool) -> Self {
        self.encrypted = encrypted;
        self
    }
}
