//! What a store URL says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use super::cluster::Topology;
use super::errors::{Place, Server as Named};
use super::hosts::Hosts;
use super::names::Keyspace;
use super::sentinel::{self, Sentinels};
use super::socket::Address;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::{BackendError, BackendErrorKind, Protocol, Servers};

pub(super) const DEFAULT_PORT: u16 = 6379;
pub(super) const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the server is and how to log in.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) server: Server,
    pub(super) login: RedisConnectionInfo,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    pub(super) request_timeout: Duration,
    /// How many replicas must know of a lease before it counts.
    pub(super) replicas: usize,
    pub(super) space: Keyspace,
}

/// Which server keeps the locks.
#[derive(Clone)]
pub(super) enum Server {
    At(Address),
    /// The one that these sentinels call the master now.
    Master(Arc<Sentinels>),
    /// The node of a cluster that has this slot now.
    OfSlot(Arc<Topology>, u16),
}

impl Settings {
    /// Reads the URL of one server, or of one that sentinels name.
    pub(super) fn from_url(url: &str) -> Result<Self, BackendError> {
        match url.split_once(':') {
            Some(("redis+sentinel" | "rediss+sentinel", _)) => sentinel::read(url),
            _ => Self::of_server(url),
        }
    }

    /// The settings for the master that these sentinels name, which is logged
    /// in to and encrypted as a host of the same URL would be.
    pub(super) fn of_master(
        hosts: &Hosts<'_>,
        database: &str,
        sentinels: Sentinels,
        replicas: usize,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            server: Server::Master(Arc::new(sentinels)),
            replicas,
            ..hosts.login(database)?
        })
    }

    /// Reads `redis://[user:password@]host[:port][/db]`, or `rediss://` for an
    /// encrypted connection, with `?ca=<path>` for a private authority.
    pub(super) fn of_server(url: &str) -> Result<Self, BackendError> {
        let mut url = redis::parse_redis_url(url).ok_or_else(|| {
            invalid(
                "not a URL of the form redis://[user:password@]host[:port][/db]; in a user or \
                 password, percent-encode characters such as / # ? @ and :",
            )
        })?;
        let encrypted = match url.scheme() {
            "redis" => false,
            "rediss" => true,
            _ => return Err(invalid("its scheme must be redis:// or rediss://")),
        };
        if url.host_str().is_none_or(str::is_empty) {
            return Err(invalid(
                "it names no host; write for example redis://127.0.0.1:6379",
            ));
        }
        if url.fragment().is_some() {
            return Err(invalid(
                "a `#` means nothing in it; percent-encode one that belongs to the password",
            ));
        }
        let database = url.path().trim_start_matches('/');
        if !database.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid(
                "behind the host comes the number of a database, as in redis://127.0.0.1/0",
            ));
        }
        let mut ca = None;
        for (name, value) in url.query_pairs() {
            match &*name {
                "ca" if encrypted => ca = Some(value.into_owned()),
                "ca" => {
                    return Err(invalid(
                        "`ca` needs an encrypted connection; write rediss://",
                    ));
                }
                // Its name may be a password that was not encoded.
                _ => {
                    return Err(invalid(
                        "it has an unknown parameter; the only one is `ca`, the path of the \
                         authority's certificate",
                    ));
                }
            }
        }
        #[cfg(feature = "tls")]
        let tls = if encrypted {
            Some(Tls::new(ca.as_deref())?)
        } else {
            None
        };
        #[cfg(not(feature = "tls"))]
        if encrypted {
            drop(ca);
            return Err(BackendError::new(
                BackendErrorKind::Config,
                "`rediss://` needs the cargo feature `tls`; turn it on: \
                 dlock = { …, features = [\"tls\"] }",
            ));
        }

        let port = url.port().unwrap_or(DEFAULT_PORT);
        let host = url.host_str().unwrap_or_default();
        // An address of IPv6 stands in brackets in a URL only.
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        url.set_query(None);
        // dlock makes its encrypted connections itself, so that `redis` needs
        // no TLS of its own.
        let _ = url.set_scheme("redis");
        let login = url
            .into_connection_info()
            .map_err(|error| {
                // Its messages are fixed texts, without a part of the URL.
                invalid(error.to_string())
            })?
            .redis_settings()
            .clone()
            // Messages and answers come over one connection: if the one still
            // comes, so does the other.
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
        Ok(Self {
            server: Server::At(Address { host, port }),
            login,
            #[cfg(feature = "tls")]
            tls,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            replicas: 0,
            space: Keyspace::Server,
        })
    }

    /// The server as messages name it.
    pub(super) fn place(&self) -> Place {
        let server = match &self.server {
            Server::At(address) if self.space == Keyspace::Server => Named::At(address.clone()),
            Server::At(address) => Named::Node(address.clone()),
            Server::Master(sentinels) => Named::Master {
                name: sentinels.master().into(),
                at: None,
            },
            Server::OfSlot(_, slot) => Named::Vote {
                slot: *slot,
                at: None,
            },
        };
        Place::new(server, self.space.clone(), self.login.password())
    }

    /// Who says which server it is, if it is not always the same.
    pub(super) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.server {
            Server::At(_) | Server::OfSlot(..) => None,
            Server::Master(sentinels) => Some(sentinels),
        }
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
            Server::Master(sentinels) => shown.field("master", sentinels),
            Server::OfSlot(_, slot) => shown.field("slot", slot),
        };
        shown
            .field("database", &self.login.db())
            .field("user", &self.login.username())
            .field("encrypted", &self.encrypted())
            .field("request_timeout", &self.request_timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

/// The servers to connect to first, of these settings: the sentinels, where a
/// master has some.
pub(super) fn servers<'s>(all: impl IntoIterator<Item = &'s Settings>) -> Servers {
    let mut encrypted = false;
    let mut hosts = Vec::new();
    for settings in all {
        encrypted |= settings.encrypted();
        match &settings.server {
            Server::At(address) => hosts.push(address.to_string()),
            Server::Master(sentinels) => hosts.extend(sentinels.addresses()),
            // The nodes that the URL names are asked first.
            Server::OfSlot(..) => {}
        }
    }
    Servers::new(Protocol::Redis, hosts).encrypted(encrypted)
}

/// The URL itself is not shown: it may hold a password.
pub(super) fn invalid(reason: impl fmt::Display) -> BackendError {
    BackendError::new(
        BackendErrorKind::Config,
        format!("invalid Redis URL: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Settings {
        Settings::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn address(settings: &Settings) -> String {
        match &settings.server {
            Server::At(address) => address.to_string(),
            Server::Master(_) | Server::OfSlot(..) => panic!("an address was given"),
        }
    }

    fn refusal(url: &str) -> String {
        match Settings::from_url(url) {
            Ok(settings) => panic!("{url} was read as {settings:?}"),
            Err(error) => {
                assert_eq!(error.kind(), BackendErrorKind::Config);
                error.to_string()
            }
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
            ("", "not a URL"),
            ("hunter2", "not a URL"),
            ("redis://:hunter2/x@host", "percent-encode"),
            ("redis://:hunter2#x@host", "percent-encode"),
            ("redis:///0", "no host"),
            ("http://:hunter2@host", "not a URL"),
            ("unix:///tmp/redis.sock", "scheme"),
            ("valkey://:hunter2@host", "scheme"),
            ("redis://:hunter2@host/zero", "number of a database"),
            ("redis://:hunter2@host/0/1", "number of a database"),
            (
                "redis://:hunter2@host/99999999999999999999",
                "nvalid database number",
            ),
            ("redis://host?hunter2", "unknown parameter"),
            ("redis://:hunter2@host?ca=x", "rediss://"),
            ("rediss://:hunter2@host/0#insecure", "`#`"),
        ] {
            let message = refusal(url);
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encryption_says_which_feature_it_needs() {
        assert!(refusal("rediss://host").contains("feature `tls`"));
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
