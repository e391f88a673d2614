//! What a store URL says.

use std::fmt;
use std::time::Duration;

use etcd_client::ConnectOptions;
#[cfg(feature = "tls")]
use etcd_client::{Certificate, Identity, TlsOptions};

use super::names::Names;
use crate::backend::hosts::{Hosts, decoded, with_port};
use crate::backend::{BackendError, BackendErrorKind};

const DEFAULT_PORT: u16 = 2379;
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const EXAMPLE: &str = "etcd://127.0.0.1:2379";

/// How often the client asks over a connection on which nothing else is heard
/// whether the member is there. Servers close connections that ask more often
/// than every five seconds (`--grpc-keepalive-min-time`).
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Where the members are, how to log in, and how locks are taken.
#[derive(Clone)]
pub(super) struct Settings {
    /// Each with its port.
    pub(super) hosts: Vec<String>,
    pub(super) names: Names,
    pub(super) recipe: Recipe,
    pub(super) request_timeout: Duration,
    user: Option<(String, String)>,
    #[cfg(feature = "tls")]
    tls: Option<TlsOptions>,
}

/// Who does the waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// dlock: a watch on the predecessor alone.
    Queue,
    /// The server, by its own Lock call.
    LockService,
}

impl Settings {
    pub(super) fn from_url(url: &str) -> Result<Self, BackendError> {
        let parts = Hosts::parse(url, EXAMPLE).map_err(invalid)?;
        let encrypted = match parts.scheme() {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(invalid("its scheme must be etcd:// or etcds://")),
        };
        let mut hosts: Vec<String> = Vec::with_capacity(parts.hosts().len());
        for host in parts.hosts() {
            let host = with_port(host, DEFAULT_PORT);
            if !is_address(&host) {
                return Err(invalid("a host in it is not of the form host[:port]"));
            }
            if hosts.iter().any(|other| other.eq_ignore_ascii_case(&host)) {
                return Err(invalid(format!("it names {host} twice")));
            }
            hosts.push(host);
        }
        let mut recipe = Recipe::Queue;
        let mut files = Files::default();
        for &(name, value) in parts.options() {
            let value = decoded(value).map_err(invalid)?;
            match name {
                "recipe" if value == "queue" => recipe = Recipe::Queue,
                "recipe" if value == "lock-service" => recipe = Recipe::LockService,
                "recipe" => {
                    return Err(invalid(
                        "`recipe` is `queue` (the default) or `lock-service`",
                    ));
                }
                "ca" | "cert" | "key" if !encrypted => {
                    return Err(invalid(format!(
                        "`{name}` needs an encrypted connection; write etcds://"
                    )));
                }
                "ca" => files.ca = Some(value),
                "cert" => files.cert = Some(value),
                "key" => files.key = Some(value),
                // Its name may be a password that was not encoded.
                _ => {
                    return Err(invalid(
                        "it has an unknown parameter; there are `recipe`, and with etcds:// \
                         `ca`, `cert` and `key`",
                    ));
                }
            }
        }
        #[cfg(not(feature = "tls"))]
        if encrypted {
            drop(files);
            return Err(BackendError::new(
                BackendErrorKind::Config,
                "`etcds://` needs the cargo feature `tls`; turn it on: \
                 dlock = { …, features = [\"tls\"] }",
            ));
        }
        Ok(Self {
            hosts,
            names: Names::under(&decoded(parts.path()).map_err(invalid)?),
            recipe,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            user: user(parts.login())?,
            #[cfg(feature = "tls")]
            tls: encrypted.then(|| files.options()).transpose()?,
        })
    }

    /// How long one answer may take. When none has come, there is time left to
    /// ask another member.
    pub(super) fn patience(&self) -> Duration {
        self.request_timeout.mul_f64(0.4)
    }

    /// The same of what keeps a lease that lasts so long. It is asked for when a
    /// third has passed, and there is time left for a second attempt and a third.
    pub(super) fn patience_within(&self, ttl: Duration) -> Duration {
        self.patience().min(ttl / 4)
    }

    /// The address of a member as the client takes it.
    pub(super) fn endpoint(&self, host: &str) -> String {
        let scheme = if self.encrypted() { "https" } else { "http" };
        format!("{scheme}://{host}")
    }

    pub(super) fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            // A member that is cut off from the others says so at once, on
            // streams too, rather than let us wait for it.
            .with_require_leader(true)
            .with_connect_timeout(self.patience())
            .with_keep_alive(PING_INTERVAL, self.patience())
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(Duration::from_secs(60));
        #[cfg(feature = "tls")]
        let options = match &self.tls {
            Some(tls) => options.with_tls(tls.clone()),
            None => options,
        };
        match &self.user {
            Some((name, password)) => options.with_user(name, password),
            None => options,
        }
    }

    /// The members as messages name them.
    pub(super) fn place(&self) -> String {
        format!("etcd at {}", self.hosts.join(","))
    }

    pub(super) fn has_user(&self) -> bool {
        self.user.is_some()
    }

    pub(super) fn encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("hosts", &self.hosts)
            .field("prefix", &self.names.prefix())
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("encrypted", &self.encrypted())
            .field("recipe", &self.recipe)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

fn user(login: &str) -> Result<Option<(String, String)>, BackendError> {
    if login.is_empty() {
        return Ok(None);
    }
    let (name, password) = login.split_once(':').unwrap_or((login, ""));
    if name.is_empty() {
        return Err(invalid(
            "etcd wants a user with a password: etcd://user:password@host",
        ));
    }
    let (name, password) = (decoded(name), decoded(password));
    Ok(Some((name.map_err(invalid)?, password.map_err(invalid)?)))
}

fn is_address(host: &str) -> bool {
    let Some((name, port)) = host.rsplit_once(':') else {
        return false;
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:%".contains(&byte);
    !name.is_empty() && name.bytes().all(known) && port.parse::<u16>().is_ok()
}

/// What an encrypted connection needs from the disk.
#[derive(Default)]
struct Files {
    /// The authority to trust, in place of the system's.
    ca: Option<String>,
    /// The certificate that this client shows, and its key.
    cert: Option<String>,
    key: Option<String>,
}

#[cfg(feature = "tls")]
impl Files {
    fn options(&self) -> Result<TlsOptions, BackendError> {
        let read = |name: &str, path: &str| {
            std::fs::read(path).map_err(|error| {
                invalid(format!(
                    "the file in `{name}={path}` cannot be read: {error}"
                ))
                .with_source(error)
            })
        };
        let options = match &self.ca {
            Some(path) => {
                let pem = read("ca", path)?;
                // The client would trust nobody, and say so at the first use.
                if !pem
                    .windows(27)
                    .any(|text| text == b"-----BEGIN CERTIFICATE-----")
                {
                    return Err(invalid(format!(
                        "the file in `ca={path}` holds no certificate; it must be in PEM form"
                    )));
                }
                TlsOptions::new().ca_certificate(Certificate::from_pem(pem))
            }
            None => TlsOptions::new().with_enabled_roots(),
        };
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let identity = Identity::from_pem(read("cert", cert)?, read("key", key)?);
                Ok(options.identity(identity))
            }
            (None, None) => Ok(options),
            _ => Err(invalid("`cert` and `key` belong together")),
        }
    }
}

/// The URL itself is not shown: it may hold a password.
fn invalid(reason: impl fmt::Display) -> BackendError {
    BackendError::new(
        BackendErrorKind::Config,
        format!("invalid etcd URL: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Settings {
        Settings::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn every_part_is_read() {
        let settings = read("etcd://alice:p%40ss%2F@a,b:7,[::1]/locks%20of/us?recipe=lock-service");
        assert_eq!(settings.hosts, ["a:2379", "b:7", "[::1]:2379"]);
        assert_eq!(settings.names.prefix(), "locks of/us/");
        assert_eq!(settings.recipe, Recipe::LockService);
        assert_eq!(settings.user, Some(("alice".into(), "p@ss/".into())));
        assert_eq!(settings.endpoint("a:2379"), "http://a:2379");

        let settings = read("etcd://a?recipe=queue");
        assert_eq!(settings.names.prefix(), "dlock/");
        assert_eq!(settings.recipe, Recipe::Queue);
        assert_eq!(settings.user, None);
        assert_eq!(read("etcd://a//locks/").names.prefix(), "/locks/");
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("etcd:hunter2", "not a URL"),
            ("etcd://", "a host is missing"),
            ("etcd://u:hunter2@a,,b", "a host is missing"),
            ("etcd://u:hunter2@a,A:2379", "A:2379 twice"),
            ("etcd://u:hunter2@a:b", "host[:port]"),
            ("etcd://u:hunter2@a b", "host[:port]"),
            ("etcd://u:hunter2/x@a", "percent-encode"),
            ("etcd://u:hunter2#x@a", "percent-encode"),
            ("etcd://:hunter2@a", "user with a password"),
            ("http://u:hunter2@a", "scheme"),
            ("etcd://a?hunter2", "unknown parameter"),
            ("etcd://a?recipe=hunter2", "`lock-service`"),
            ("etcd://a?ca=hunter2", "etcds://"),
            ("etcd://%ff@a", "UTF-8"),
        ] {
            let error = Settings::from_url(url).map(drop).expect_err(url);
            assert_eq!(error.kind(), BackendErrorKind::Config);
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_are_read_at_once() {
        assert_eq!(read("etcds://a").endpoint("a:1"), "https://a:1");
        for (url, says) in [
            ("etcds://a?ca=/nowhere.pem", "`ca=/nowhere.pem`"),
            ("etcds://a?cert=/nowhere.pem", "belong together"),
            ("etcds://a?cert=/nowhere.pem&key=x", "`cert=/nowhere.pem`"),
            ("etcds://a?ca=/dev/null", "no certificate"),
        ] {
            let error = Settings::from_url(url).map(drop).expect_err(url);
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encryption_says_which_feature_it_needs() {
        let error = Settings::from_url("etcds://a")
            .map(drop)
            .expect_err("no TLS");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }

    #[test]
    fn the_password_is_not_shown() {
        let shown = format!("{:?}", read("etcd://alice:hunter2@host"));
        assert!(
            shown.contains("alice") && shown.contains("host:2379"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
