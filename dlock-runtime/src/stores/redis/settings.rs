//! What a store URL says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};

use super::errors::{Place, Server as Named};
use super::names::Keyspace;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::{BackendError, Protocol, Servers};
use crate::engine::DEFAULT_REQUEST_TIMEOUT;
use crate::stores::address::Address;
use crate::stores::url::{Form, StoreUrl};

pub(super) const DEFAULT_PORT: u16 = 6379;
/// What all URLs of Redis have for encrypted connections.
pub(super) const FILES: &[&str] = &["ca"];

/// Where the server is and how to log in.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) server: Server,
    pub(super) login: RedisConnectionInfo,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    /// That of the engine, once it has begun.
    pub(super) request_timeout: Duration,
    /// How many replicas must know of a lease before it counts.
    pub(super) replicas: usize,
    pub(super) space: Keyspace,
}

/// Which server keeps the locks, as far as the URL says. Where it is now, if that
/// changes, its [`Locator`](super::locate::Locator) knows.
#[derive(Clone)]
pub(super) enum Server {
    At(Address),
    /// The one that sentinels call the master, by its name.
    Master(Arc<str>),
    /// The node of a cluster that has this slot.
    OfSlot(u16),
}

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis",
    encrypted: Some("rediss"),
    example: "redis://127.0.0.1:6379",
    port: DEFAULT_PORT,
    options: &[],
    files: FILES,
};

impl Settings {
    /// Reads the URL of one server.
    pub(super) fn of_server(url: &str) -> Result<Self, BackendError> {
        let url = FORM.read(url)?;
        match &Self::of_servers(&url, url.path)?[..] {
            [server] => Ok(server.clone()),
            _ => Err(url.invalid(
                "it names several servers; write redis+redlock://, redis+cluster:// or \
                 redis+sentinel:// for what they are to each other",
            )),
        }
    }

    /// One for each host of a URL. They have the same user and database.
    pub(super) fn of_servers(
        url: &StoreUrl<'_>,
        database: &str,
    ) -> Result<Vec<Self>, BackendError> {
        let login = login(url.user.as_deref(), url.password.as_deref());
        let login = login.set_db(number(url, database)?);
        #[cfg(feature = "tls")]
        let tls = url.encrypted.then(|| Tls::new(url)).transpose()?;
        let servers = url.hosts.iter().map(|host| Self {
            server: Server::At(host.clone()),
            login: login.clone(),
            #[cfg(feature = "tls")]
            tls: tls.clone(),
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            replicas: 0,
            space: Keyspace::Server,
        });
        Ok(servers.collect())
    }

    /// The server as messages name it.
    pub(super) fn place(&self) -> Place {
        let server = match &self.server {
            Server::At(address) if self.space == Keyspace::Server => Named::At(address.clone()),
            Server::At(address) => Named::Node(address.clone()),
            Server::Master(name) => Named::Master {
                name: Arc::clone(name),
                at: None,
            },
            Server::OfSlot(slot) => Named::Vote {
                slot: *slot,
                at: None,
            },
        };
        Place::new(server, self.space.clone(), self.login.password())
    }

    /// The address in the URL, of a server that is always there.
    pub(super) fn address(&self) -> Option<&Address> {
        match &self.server {
            Server::At(address) => Some(address),
            Server::Master(_) | Server::OfSlot(_) => None,
        }
    }

    /// Whether sentinels say which server it is.
    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.server, Server::Master(_))
    }

    /// How long replicas may take to confirm what their master has: it is an
    /// answer that it takes too long.
    pub(super) fn wait_limit(&self) -> Duration {
        self.patience() / 2
    }

    /// How long one answer may take. When none has come, there is time left to
    /// ask over a new connection.
    pub(super) fn patience(&self) -> Duration {
        self.request_timeout.mul_f64(0.4)
    }

    fn encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Redis");
        match &self.server {
            Server::At(address) => shown.field("address", &address.to_string()),
            Server::Master(name) => shown.field("master", name),
            Server::OfSlot(slot) => shown.field("slot", slot),
        };
        shown
            .field("database", &self.login.db())
            .field("user", &self.login.username())
            .field("encrypted", &self.encrypted())
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

/// About a server to which the URL leads.
pub(super) fn invalid(reason: impl fmt::Display) -> BackendError {
    FORM.invalid(reason)
}

/// The number of a database, as it stands in a URL.
fn number(url: &StoreUrl<'_>, text: &str) -> Result<i64, BackendError> {
    if text.is_empty() {
        return Ok(0);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| {
        url.invalid("behind the host comes the number of a database, as in redis://127.0.0.1/0")
    })
}

pub(super) fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let login = RedisConnectionInfo::default()
        // Messages and answers come over one connection: if the one still comes,
        // so does the other.
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
    let login = match user {
        Some(user) => login.set_username(user),
        None => login,
    };
    match password {
        Some(password) => login.set_password(password),
        None => login,
    }
}

/// The servers whose addresses stand in these settings.
pub(super) fn servers<'s>(all: impl IntoIterator<Item = &'s Settings>) -> Servers {
    let mut encrypted = false;
    let mut hosts = Vec::new();
    for settings in all {
        encrypted |= settings.encrypted();
        match &settings.server {
            Server::At(address) => hosts.push(address.to_string()),
            // Others say where it is, and are connected to first.
            Server::Master(_) | Server::OfSlot(_) => {}
        }
    }
    Servers::new(Protocol::Redis, hosts).encrypted(encrypted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Settings {
        Settings::of_server(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn address(settings: &Settings) -> String {
        match &settings.server {
            Server::At(address) => address.to_string(),
            Server::Master(_) | Server::OfSlot(_) => panic!("an address was given"),
        }
    }

    fn refusal(url: &str) -> String {
        match Settings::of_server(url) {
            Ok(settings) => panic!("{url} was read as {settings:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_part_is_read() {
        let settings = read("redis://alice:p%40ss%2Fword@example.com:6380/3");
        assert_eq!(address(&settings), "example.com:6380");
        assert_eq!(settings.login.username(), Some("alice"));
        assert_eq!(settings.login.password(), Some("p@ss/word"));
        assert_eq!(settings.login.db(), 3);
        assert!(!settings.encrypted());

        let settings = read("redis://:secret@10.0.0.1");
        assert_eq!(address(&settings), "10.0.0.1:6379");
        assert_eq!(settings.login.username(), None);
        assert_eq!(settings.login.password(), Some("secret"));
        assert_eq!(address(&read("redis://[::1]:7000/")), "[::1]:7000");
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("unix:///tmp/redis.sock", "scheme"),
            ("valkey://:hunter2@host", "scheme"),
            ("redis://:hunter2@host/zero", "number of a database"),
            ("redis://:hunter2@host/0/1", "number of a database"),
            ("redis://:hunter2@host/+1", "number of a database"),
            (
                "redis://:hunter2@host/99999999999999999999",
                "number of a database",
            ),
            ("redis://:hunter2@one,two", "several servers"),
            ("redis://host?hunter2", "there are `ca` with rediss://"),
        ] {
            let message = refusal(url);
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let shown = format!("{:?}", read("redis://alice:hunter2@host/1"));
        assert!(
            shown.contains("alice") && shown.contains("host:6379"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
