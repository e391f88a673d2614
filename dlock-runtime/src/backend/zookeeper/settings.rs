//! What a store URL says.

use std::fmt;
use std::time::Duration;

use zookeeper_client::{Acls, SaslOptions};

use super::names::Recipe;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::hosts::{Hosts, decoded, with_port};
use crate::backend::{BackendError, BackendErrorKind};
use crate::duration::parse_duration;
use crate::limits;

const EXAMPLE: &str = "zookeeper://10.0.0.1,10.0.0.2,10.0.0.3/locks";

const DEFAULT_PORT: u16 = 2181;
/// Where the locks are if the URL does not say.
const DEFAULT_ROOT: &str = "/dlock";
/// Within the bounds that a server has by default, 4 to 40 seconds, and below
/// the ttl that locks have by default: what a dead holder had is free then.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(20);
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the servers are, and how to use them.
#[derive(Clone)]
pub(super) struct Settings {
    /// Each with its port.
    pub(super) hosts: Vec<String>,
    /// The folder of all locks, `/` or without a slash at its end.
    pub(super) root: String,
    pub(super) login: Option<Login>,
    pub(super) recipe: Recipe,
    pub(super) access: Access,
    pub(super) session_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) encrypted: bool,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
}

#[derive(Clone)]
pub(super) struct Login {
    pub(super) scheme: Scheme,
    user: String,
    password: String,
}

/// How the server learns who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// SASL with DIGEST-MD5: the server knows the password, and checks it.
    Sasl,
    /// ZooKeeper's own `digest`: nodes may be reserved for whoever says it.
    Digest,
}

/// Who may touch the nodes that dlock makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Access {
    #[default]
    Anyone,
    Creator,
}

impl Settings {
    /// Reads `zookeeper://[user:password@]host[:port],…[/folder][?option=value&…]`,
    /// or `zookeeper+tls://…`.
    pub(super) fn from_url(url: &str) -> Result<Self, BackendError> {
        let url = Hosts::parse(url, EXAMPLE).map_err(invalid)?;
        let encrypted = match url.scheme() {
            "zookeeper" => false,
            "zookeeper+tls" => true,
            _ => {
                return Err(invalid(
                    "its scheme must be zookeeper:// or zookeeper+tls://",
                ));
            }
        };
        let mut settings = Self {
            hosts: hosts(&url)?,
            root: root(url.path())?,
            login: None,
            recipe: Recipe::default(),
            access: Access::default(),
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            encrypted,
            #[cfg(feature = "tls")]
            tls: None,
        };
        let mut scheme = None;
        let mut files = Files::default();
        for (name, value) in url.options() {
            let value = decoded(value).map_err(invalid)?;
            match (*name, &*value) {
                ("recipe", "mutex") => settings.recipe = Recipe::Mutex,
                ("recipe", "read-write") => settings.recipe = Recipe::ReadWrite,
                ("recipe", _) => {
                    return Err(invalid("`recipe` is `mutex` or `read-write`"));
                }
                ("acl", "anyone") => settings.access = Access::Anyone,
                ("acl", "creator") => settings.access = Access::Creator,
                ("acl", _) => return Err(invalid("`acl` is `anyone` or `creator`")),
                ("auth", "sasl") => scheme = Some(Scheme::Sasl),
                ("auth", "digest") => scheme = Some(Scheme::Digest),
                ("auth", _) => return Err(invalid("`auth` is `sasl` or `digest`")),
                ("session_timeout", value) => {
                    settings.session_timeout = session_timeout(value)?;
                }
                ("ca", _) => files.ca = Some(value),
                ("cert", _) => files.cert = Some(value),
                ("key", _) => files.key = Some(value),
                // Its name may be a password that was not encoded.
                _ => {
                    return Err(invalid(
                        "it has an unknown parameter; there are `recipe`, `acl`, `auth`, \
                         `session_timeout`, and for zookeeper+tls:// `ca`, `cert` and `key`",
                    ));
                }
            }
        }
        settings.login = login(url.login(), scheme)?;
        if settings.access == Access::Creator && settings.login.is_none() && files.cert.is_none() {
            return Err(invalid(
                "with `acl=creator` somebody must be the creator; name a user and password",
            ));
        }
        settings.set_tls(&files)?;
        Ok(settings)
    }

    #[cfg(feature = "tls")]
    fn set_tls(&mut self, files: &Files) -> Result<(), BackendError> {
        if self.encrypted {
            self.tls = Some(Tls::new(files)?);
            return Ok(());
        }
        files.are_for_tls()
    }

    #[cfg(not(feature = "tls"))]
    fn set_tls(&mut self, files: &Files) -> Result<(), BackendError> {
        if self.encrypted {
            return Err(BackendError::new(
                BackendErrorKind::Config,
                "`zookeeper+tls://` needs the cargo feature `tls`; turn it on: \
                 dlock = { …, features = [\"tls\"] }",
            ));
        }
        files.are_for_tls()
    }

    /// The servers, as the client wants to have them.
    pub(super) fn cluster(&self) -> String {
        self.hosts.join(",")
    }

    /// The servers, as messages name them.
    pub(super) fn place(&self) -> String {
        format!("zookeeper at {}", self.hosts.join(", "))
    }

    pub(super) fn acls(&self) -> Acls<'static> {
        match self.access {
            Access::Anyone => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }

    /// How long a server may be silent before another is asked: a part of the
    /// session, which must be found again before it ends, and of what a call
    /// may take.
    pub(super) fn silence(&self) -> Duration {
        let least = Duration::from_secs(1);
        let patience = self.request_timeout.mul_f64(0.4).max(least);
        patience.min(self.session_timeout / 6)
    }
}

impl Login {
    pub(super) fn sasl(&self) -> SaslOptions {
        SaslOptions::digest_md5(self.user.clone(), self.password.clone()).into()
    }

    pub(super) fn digest(&self) -> Vec<u8> {
        format!("{}:{}", self.user, self.password).into_bytes()
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }
}

/// Files in PEM form.
#[derive(Default)]
pub(super) struct Files {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

impl Files {
    fn are_for_tls(&self) -> Result<(), BackendError> {
        if self.ca.is_some() || self.cert.is_some() || self.key.is_some() {
            return Err(invalid(
                "`ca`, `cert` and `key` need an encrypted connection; write zookeeper+tls://",
            ));
        }
        Ok(())
    }
}

fn hosts(url: &Hosts<'_>) -> Result<Vec<String>, BackendError> {
    let mut hosts: Vec<String> = Vec::new();
    for host in url.hosts() {
        let host = with_port(host, DEFAULT_PORT);
        let port = host
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        if port.is_none_or(|port: u16| port == 0)
            || host.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(invalid(format!(
                "a host is not of the form host or host:port; write for example {EXAMPLE}"
            )));
        }
        if hosts.iter().any(|other| other.eq_ignore_ascii_case(&host)) {
            return Err(invalid(format!("it names {host} twice")));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn root(path: &str) -> Result<String, BackendError> {
    let path = decoded(path).map_err(invalid)?;
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(DEFAULT_ROOT.to_owned());
    }
    let is_wrong =
        |part: &str| matches!(part, "" | "." | "..") || part.contains(|c: char| c.is_control());
    if path.split('/').any(is_wrong) || path == "zookeeper" || path.starts_with("zookeeper/") {
        return Err(invalid(
            "behind the hosts comes the folder of the locks, as in zookeeper://10.0.0.1/locks; it \
             is not /zookeeper, which belongs to the server",
        ));
    }
    Ok(format!("/{path}"))
}

fn login(login: &str, scheme: Option<Scheme>) -> Result<Option<Login>, BackendError> {
    if login.is_empty() {
        return match scheme {
            None => Ok(None),
            Some(_) => Err(invalid(
                "`auth` says how a user logs in; name the user, as in \
                 zookeeper://user:password@10.0.0.1",
            )),
        };
    }
    let (user, password) = login.split_once(':').ok_or_else(|| {
        invalid("its user has no password; write zookeeper://user:password@10.0.0.1")
    })?;
    let (user, password) = (
        decoded(user).map_err(invalid)?,
        decoded(password).map_err(invalid)?,
    );
    if user.is_empty() {
        return Err(invalid(
            "its password has no user in front; write user:password@",
        ));
    }
    Ok(Some(Login {
        scheme: scheme.unwrap_or(Scheme::Sasl),
        user,
        password,
    }))
}

fn session_timeout(text: &str) -> Result<Duration, BackendError> {
    let wrong = |reason: String| invalid(format!("`session_timeout`: {reason}"));
    let timeout = parse_duration(text).map_err(wrong)?;
    limits::SESSION_TIMEOUT.within(timeout).map_err(wrong)?;
    Ok(timeout)
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper")
            .field("hosts", &self.hosts)
            .field("root", &self.root)
            .field("user", &self.login.as_ref().map(Login::user))
            .field("encrypted", &self.encrypted)
            .field("recipe", &self.recipe)
            .field("acl", &self.access)
            .field("session_timeout", &self.session_timeout)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

/// The URL itself is not shown: it may hold a password.
pub(super) fn invalid(reason: impl fmt::Display) -> BackendError {
    BackendError::new(
        BackendErrorKind::Config,
        format!("invalid ZooKeeper URL: {reason}"),
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
        let url = "zookeeper://al%3Aice:p%40ss@a,b:7,[::1]/my/locks/?recipe=read-write\
                   &session_timeout=1m30s&acl=creator&auth=digest";
        let settings = read(url);
        assert_eq!(settings.cluster(), "a:2181,b:7,[::1]:2181");
        assert_eq!(settings.root, "/my/locks");
        assert_eq!(settings.recipe, Recipe::ReadWrite);
        assert_eq!(settings.access, Access::Creator);
        assert_eq!(settings.session_timeout, Duration::from_secs(90));
        let login = settings.login.expect("a user");
        assert_eq!(login.digest(), b"al:ice:p@ss");
        assert_eq!(login.scheme, Scheme::Digest);

        let settings = read("zookeeper://a");
        assert_eq!(settings.root, "/dlock");
        assert!(settings.login.is_none());
        let login = read("zookeeper://u:p@a/").login.expect("a user");
        assert_eq!(login.scheme, Scheme::Sasl);
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("zookeeper:hunter2", "not a URL"),
            ("zookeepers://:hunter2@a", "scheme"),
            ("zookeeper://u:hunter2@", "host is missing"),
            ("zookeeper://u:hunter2@a,,b", "host is missing"),
            ("zookeeper://u:hunter2@a,A:2181", "A:2181 twice"),
            ("zookeeper://u:hunter2@a:port", "a host is not"),
            ("zookeeper://u:hunter2/x@a", "percent-encode"),
            ("zookeeper://u:hunter2#x@a", "percent-encode"),
            ("zookeeper://hunter2@a", "no password"),
            ("zookeeper://:hunter2@a", "no user"),
            ("zookeeper://u:hunter2@a//b", "folder"),
            ("zookeeper://u:hunter2@a/x/../b", "folder"),
            ("zookeeper://u:hunter2@a/zookeeper", "folder"),
            ("zookeeper://a?hunter2", "unknown parameter"),
            ("zookeeper://a?recipe=hunter2", "`recipe`"),
            ("zookeeper://a?acl=creator", "creator"),
            ("zookeeper://a?acl=hunter2", "`acl`"),
            ("zookeeper://a?auth=sasl", "name the user"),
            ("zookeeper://a?session_timeout=soon", "`session_timeout`"),
            ("zookeeper://a?session_timeout=2000h", "too long"),
            ("zookeeper://a?session_timeout=999ms", "too short"),
            ("zookeeper://u:hunter2@a?ca=x", "zookeeper+tls://"),
        ] {
            let Err(error) = Settings::from_url(url) else {
                panic!("{url} was read");
            };
            assert_eq!(error.kind(), BackendErrorKind::Config);
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encryption_says_which_feature_it_needs() {
        let error = Settings::from_url("zookeeper+tls://a?ca=x").expect_err("no TLS");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }

    #[test]
    fn the_password_is_not_shown() {
        let shown = format!("{:?}", read("zookeeper://alice:hunter2@host"));
        assert!(
            shown.contains("alice") && shown.contains("host:2181"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
