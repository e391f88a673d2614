//! The settings in a store URL: which servers have the locks, and how they are found.

use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionAddr};

use super::locate::Locator;
use super::sentinel;
use super::settings::{self, FORM, SOCKET, Settings};
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::topology::Topology;
use crate::backend::{BackendError, BackendErrorKind, Protocol, Servers};
use crate::stores::address::Address;
#[cfg(not(feature = "tls"))]
use crate::stores::url::needs_feature;

/// The settings in a store URL.
#[derive(Clone)]
pub(crate) struct Config {
    pub(super) settings: Settings,
    pub(super) locator: Locator,
    /// Whether it is one voter of a quorum.
    pub(super) votes: bool,
    /// The voters of a cluster, if this is a slot that votes.
    pub(super) electorate: Option<Arc<dyn Electorate>>,
}

/// The slots of a cluster that vote.
pub(super) trait Electorate: Send + Sync {
    fn topology(&self) -> &Arc<Topology>;

    /// Fails if other slots vote now: they grant locks without asking these, and the votes of
    /// these are worthless.
    fn check(&self) -> Result<(), BackendError>;

    /// Closes the connections: no more votes are needed.
    fn close(&self);
}

impl Config {
    pub(super) fn new(settings: Settings, locator: Locator) -> Self {
        Self {
            settings,
            locator,
            votes: false,
            electorate: None,
        }
    }

    /// Reads the URL of one server (by its host or its socket) or of a master with sentinels.
    pub(super) fn read(url: &str) -> Result<Self, BackendError> {
        if let Some(("redis+sentinel" | "rediss+sentinel", _)) = url.split_once(':') {
            let (settings, sentinels) = sentinel::read(url)?;
            return Ok(Self::new(settings, Locator::Sentinels(Arc::new(sentinels))));
        }
        if let Some(("redis+unix", _)) = url.split_once(':') {
            let url = SOCKET.read(url)?;
            let settings = Settings::read(&url, url.option("db").unwrap_or_default())?;
            return Ok(Self::new(settings, Locator::At(url.hosts[0].clone())));
        }
        let url = FORM.read(url)?;
        match &url.hosts[..] {
            [host] => {
                let settings = Settings::read(&url, url.path)?;
                Ok(Self::new(settings, Locator::At(host.clone())))
            }
            _ => Err(url.invalid(
                "it names several servers, and redis:// is for one; write redis+cluster:// for the \
                 nodes of a cluster, redis+sentinel:// for sentinels, or redis+redlock:// for \
                 servers that know nothing of each other",
            )),
        }
    }

    /// Reads where a client's server is, and how to log in there.
    pub(super) fn of_client(client: &Client) -> Result<Self, BackendError> {
        let info = client.get_connection_info();
        let cannot = |what: &str| {
            let message = format!("cannot use this redis::Client: {what}");
            BackendError::new(BackendErrorKind::Config, message)
        };
        let at = |host: &str, port| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Address::at(host, port)
                .ok_or_else(|| cannot("its port is 0, or its host cannot be shown"))
        };
        let (address, encrypted) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (at(host, *port)?, false),
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            } => (at(host, *port)?, true),
            ConnectionAddr::TcpTls { .. } => {
                return Err(cannot(
                    "it has certificates of its own, or checks none, and shows nobody how; write \
                     Redis::from_url(\"rediss://…\")?.tls(…) with the same certificates",
                ));
            }
            ConnectionAddr::Unix(path) => {
                let path = std::path::absolute(path).ok();
                let path = path.as_ref().and_then(|path| path.to_str());
                let socket = path.and_then(|path| Address::socket(path.strip_prefix('/')?));
                let socket = socket.ok_or_else(|| {
                    cannot("the path of its unix socket is missing, or cannot be shown")
                });
                (socket?, false)
            }
            _ => return Err(cannot("it connects in a way that dlock does not know")),
        };
        let theirs = info.redis_settings();
        let login = settings::login(theirs.username(), theirs.password()).set_db(theirs.db());
        #[cfg(not(feature = "tls"))]
        if encrypted {
            return Err(needs_feature("rediss", "tls"));
        }
        let settings = Settings {
            #[cfg(feature = "tls")]
            tls: encrypted.then(Tls::by_default).transpose()?,
            ..Settings::of(login)
        };
        Ok(Self::new(settings, Locator::At(address)))
    }

    /// With encrypted connections, whatever the URL has said of that.
    #[cfg(feature = "tls")]
    pub(super) fn encrypt(&mut self, tls: &Tls) {
        match &mut self.locator {
            Locator::At(Address::Socket(_)) => return,
            Locator::Sentinels(sentinels) => *sentinels = sentinels.encrypted(tls),
            _ => {}
        }
        self.settings.tls = Some(tls.clone());
    }

    /// The servers, as far as their addresses are known.
    pub(super) fn servers(&self) -> Servers {
        let hosts = self.locator.hosts();
        let servers = Servers::new(Protocol::Redis, hosts).encrypted(self.settings.encrypted());
        match &self.locator {
            Locator::Sentinels(sentinels) => Servers {
                name: Some(sentinels.name()),
                ..servers
            },
            _ => servers,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.locator.endpoint(&self.settings).to_string();
        f.debug_struct("Redis")
            .field("servers", &endpoint)
            .field("hosts", &self.locator.hosts())
            .field("login", &self.settings.login)
            .field("encrypted", &self.settings.encrypted())
            .field("replicas", &self.settings.replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::read(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn refusal(url: &str) -> String {
        match Config::read(url) {
            Ok(config) => panic!("{url} was read as {config:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_part_is_read() {
        let Config {
            settings, locator, ..
        } = read("redis://alice:p%40ss%2Fword@example.com:6380/3");
        assert_eq!(locator.hosts(), ["example.com:6380"]);
        assert_eq!(settings.login.username(), Some("alice"));
        assert_eq!(settings.login.password(), Some("p@ss/word"));
        assert_eq!(settings.login.db(), 3);
        assert!(!settings.encrypted());

        let Config {
            settings, locator, ..
        } = read("redis://:secret@10.0.0.1");
        assert_eq!(locator.hosts(), ["10.0.0.1:6379"]);
        assert_eq!(settings.login.username(), None);
        assert_eq!(settings.login.password(), Some("secret"));
        assert_eq!(read("redis://[::1]:7000/").locator.hosts(), ["[::1]:7000"]);

        let Config {
            settings, locator, ..
        } = read("redis+unix://alice:p%40ss@/run/my%20redis:1.sock?db=3");
        assert_eq!(locator.hosts(), ["/run/my redis:1.sock"]);
        assert_eq!(settings.login.username(), Some("alice"));
        assert_eq!(settings.login.db(), 3);
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
            (
                "redis://:hunter2@one,two",
                "several servers, and redis:// is for one",
            ),
            ("redis+unix://:hunter2@", "path of a unix socket is missing"),
            ("redis+unix:///", "path of a unix socket is missing"),
            ("redis+unix:///run/a%0a.sock", "cannot be shown"),
            (
                "redis+unix://:hunter2@run/redis.sock",
                "write three slashes",
            ),
            (
                "redis+unix:///run/redis.sock?db=hunter2",
                "number of a database",
            ),
            (
                "redis+unix:///run/redis.sock?ca=hunter2",
                "unknown parameter",
            ),
            (
                "redis://host?hunter2",
                "there are `layout`, `recipe`, `fair_wait`, and with rediss:// `ca`, `cert`, `key`",
            ),
            ("redis://host?layout=hunter2", "`layout` is `redisson`"),
            ("redis://host?recipe=lock", "write `layout=redisson` too"),
            (
                "redis://host?layout=redisson&recipe=hunter2",
                "`recipe` is `lock` or `read-write` or `fenced` or `fair`",
            ),
            (
                "redis://host?layout=redisson&recipe=lock&fair_wait=1m",
                "only `layout=redisson&recipe=fair`",
            ),
            (
                "redis://host?recipe=fair&fair_wait=1m",
                "write `layout=redisson` too",
            ),
            (
                "redis://host?layout=redisson&recipe=fair&fair_wait=1s",
                "a time from 3s to 24h",
            ),
            (
                "redis://host?layout=redisson&recipe=fair&fair_wait=hunter2",
                "a time from 3s to 24h",
            ),
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
