//! The settings in a store URL.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acls, Client, Connector, SaslOptions};

use super::names::Recipe;
use crate::backend::BackendError;
use crate::duration::parse_duration;
use crate::limits;
use crate::stores::address::Address;
use crate::stores::url::{Form, StoreUrl};

/// The folder of the locks, if the URL names none.
const DEFAULT_ROOT: &str = "/dlock";
/// Within the bounds that a server has by default, 4 to 40 seconds; and below the default ttl of
/// locks, so that a dead holder's locks are free by then.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// Where the servers are, and how to use them.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Each with its port.
    pub(super) hosts: Vec<String>,
    /// The folder of all locks: `/`, or a path without a slash at its end.
    pub(super) root: String,
    pub(super) login: Option<Login>,
    pub(super) recipe: Recipe,
    /// The nodes that dlock makes are closed to all users except the one that made them.
    pub(super) creator_only: bool,
    pub(super) session_timeout: Duration,
    pub(super) encrypted: bool,
    /// Whom to trust, and the client's own certificate.
    #[cfg(feature = "tls")]
    tls: Option<TlsOptions>,
    /// Encryption and login, as a service has set them up itself.
    connector: Option<Connector>,
}

#[derive(Clone)]
pub(super) struct Login {
    /// By SASL with DIGEST-MD5: the server knows the password, and checks it. Otherwise by
    /// ZooKeeper's own `digest`: nodes may be reserved for users that present it.
    pub(super) by_sasl: bool,
    pub(super) user: String,
    pub(super) password: String,
}

static FORM: Form = Form {
    store: "ZooKeeper",
    scheme: "zookeeper",
    encrypted: Some("zookeeper+tls"),
    example: "zookeeper://10.0.0.1,10.0.0.2,10.0.0.3/locks",
    port: Some(2181),
    options: &["recipe", "acl", "auth", "session_timeout"],
    files: &["ca", "cert", "key"],
};

impl Settings {
    /// A connector says how to log in and whom to trust; then the URL must not.
    pub(super) fn from_url(url: &str, connector: Option<Connector>) -> Result<Self, BackendError> {
        let url = FORM.read(url)?;
        if connector.is_some() {
            url.says_only_where()?;
        }
        let recipes = [("mutex", Recipe::Mutex), ("read-write", Recipe::ReadWrite)];
        let accesses = [("anyone", false), ("creator", true)];
        let login = login(&url)?;
        let creator_only = url.choice("acl", &accesses)?.unwrap_or_default();
        let is_known = login.is_some() || url.option("cert").is_some() || connector.is_some();
        if creator_only && !is_known {
            return Err(url.invalid(
                "with `acl=creator` somebody must be the creator; name a user and password",
            ));
        }
        Ok(Self {
            hosts: url.hosts.iter().map(Address::to_string).collect(),
            root: root(&url)?,
            login,
            recipe: url.choice("recipe", &recipes)?.unwrap_or_default(),
            creator_only,
            session_timeout: session_timeout(&url)?,
            encrypted: url.encrypted,
            #[cfg(feature = "tls")]
            tls: (url.encrypted && connector.is_none())
                .then(|| tls(&url))
                .transpose()?,
            connector,
        })
    }

    /// The servers, as messages name them.
    pub(super) fn place(&self) -> String {
        format!("zookeeper at {}", self.hosts.join(", "))
    }

    pub(super) fn acls(&self) -> Acls<'static> {
        if self.creator_only {
            Acls::creator_all()
        } else {
            Acls::anyone_all()
        }
    }

    /// What opens sessions. The client gives up a server that is silent for this long.
    pub(super) fn connector(&self, silence: Duration) -> Connector {
        #[cfg(feature = "tls")]
        self.choose_provider();
        let connector = match &self.connector {
            Some(connector) => connector.clone().with_readonly(false),
            None => self.connector_of_url(),
        };
        connector
            .with_session_timeout(self.session_timeout)
            .with_connection_timeout(silence)
            // The ensemble's own task tries again, with pauses of its own.
            .with_fail_eagerly()
    }

    fn connector_of_url(&self) -> Connector {
        let connector = Client::connector();
        #[cfg(feature = "tls")]
        let connector = match &self.tls {
            Some(tls) => connector.with_tls(tls.clone()),
            None => connector,
        };
        match &self.login {
            Some(Login {
                by_sasl: true,
                user,
                password,
            }) => connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone())),
            Some(Login { user, password, .. }) => {
                connector.with_auth("digest", format!("{user}:{password}").as_bytes())
            }
            None => connector,
        }
    }

    /// The client uses the process-wide provider, and panics if several are built in and none was
    /// chosen.
    #[cfg(feature = "tls")]
    fn choose_provider(&self) {
        use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
        if self.encrypted && CryptoProvider::get_default().is_none() {
            // Another thread may have chosen one meanwhile, which is as good.
            let _ = ring::default_provider().install_default();
        }
    }

    /// How long a server may be silent before another is asked. It is a part of the session's
    /// timeout, since the session must be found again before it ends, and of the time that a call
    /// may take.
    pub(super) fn silence(&self, patience: Duration) -> Duration {
        let least = Duration::from_secs(1);
        patience.max(least).min(self.session_timeout / 6)
    }
}

fn root(url: &StoreUrl<'_>) -> Result<String, BackendError> {
    let path = url.decoded(url.path)?;
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(DEFAULT_ROOT.to_owned());
    }
    let is_wrong =
        |part: &str| matches!(part, "" | "." | "..") || part.contains(|c: char| c.is_control());
    if path.split('/').any(is_wrong) || path == "zookeeper" || path.starts_with("zookeeper/") {
        return Err(url.invalid(
            "behind the hosts comes the folder of the locks, as in zookeeper://10.0.0.1/locks; it \
             is not /zookeeper, which belongs to the server",
        ));
    }
    Ok(format!("/{path}"))
}

fn login(url: &StoreUrl<'_>) -> Result<Option<Login>, BackendError> {
    let by_sasl = url.choice("auth", &[("sasl", true), ("digest", false)])?;
    match (url.user.clone(), url.password.clone()) {
        (Some(user), Some(password)) => Ok(Some(Login {
            by_sasl: by_sasl.unwrap_or(true),
            user,
            password,
        })),
        (None, None) if by_sasl.is_none() => Ok(None),
        (None, None) => Err(url.invalid(
            "`auth` says how a user logs in; name the user, as in \
             zookeeper://user:password@10.0.0.1",
        )),
        (Some(_), None) => {
            Err(url.invalid("its user has no password; write zookeeper://user:password@10.0.0.1"))
        }
        (None, Some(_)) => {
            Err(url.invalid("its password has no user in front; write user:password@"))
        }
    }
}

fn session_timeout(url: &StoreUrl<'_>) -> Result<Duration, BackendError> {
    let Some(text) = url.option("session_timeout") else {
        return Ok(DEFAULT_SESSION_TIMEOUT);
    };
    let wrong = |reason: String| url.invalid(format!("`session_timeout`: {reason}"));
    let timeout = parse_duration(text).map_err(wrong)?;
    limits::SESSION_TIMEOUT.within(timeout).map_err(wrong)?;
    Ok(timeout)
}

#[cfg(feature = "tls")]
fn tls(url: &StoreUrl<'_>) -> Result<TlsOptions, BackendError> {
    let ca = url.authority()?.ok_or_else(|| {
        url.invalid(
            "zookeeper+tls:// needs to know whom to trust; name the authority's certificate, as in \
             ?ca=/etc/zookeeper/ca.pem",
        )
    })?;
    let options = TlsOptions::new().with_pem_ca(&ca);
    let options = options.map_err(|error| url.unusable("ca", error))?;
    match url.identity()? {
        Some((certificate, key)) => options
            .with_pem_identity(&certificate, &key)
            .map_err(|error| url.unusable("cert", error)),
        None => Ok(options),
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper")
            .field("hosts", &self.hosts)
            .field("root", &self.root)
            .field("user", &self.login.as_ref().map(|login| &login.user))
            .field("encrypted", &self.encrypted)
            .field("recipe", &self.recipe)
            .field("creator_only", &self.creator_only)
            .field("session_timeout", &self.session_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Settings {
        Settings::from_url(url, None).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn every_part_is_read() {
        let url = "zookeeper://al%3Aice:p%40ss@a,b:7,[::1]/my/locks/?recipe=read-write\
                   &session_timeout=1m30s&acl=creator&auth=digest";
        let settings = read(url);
        assert_eq!(settings.hosts, ["a:2181", "b:7", "[::1]:2181"]);
        assert_eq!(settings.root, "/my/locks");
        assert_eq!(settings.recipe, Recipe::ReadWrite);
        assert!(settings.creator_only);
        assert_eq!(settings.session_timeout, Duration::from_secs(90));
        let login = settings.login.expect("a user");
        assert_eq!((&*login.user, &*login.password), ("al:ice", "p@ss"));
        assert!(!login.by_sasl);

        let settings = read("zookeeper://a");
        assert_eq!(settings.root, "/dlock");
        assert!(settings.login.is_none());
        let login = read("zookeeper://u:p@a/").login.expect("a user");
        assert!(login.by_sasl);
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("zookeeper://hunter2@a", "no password"),
            ("zookeeper://:hunter2@a", "no user"),
            ("zookeeper://u:hunter2@a//b", "folder"),
            ("zookeeper://u:hunter2@a/x/../b", "folder"),
            ("zookeeper://u:hunter2@a/zookeeper", "folder"),
            ("zookeeper://a?hunter2", "and with zookeeper+tls:// `ca`"),
            ("zookeeper://a?recipe=hunter2", "`recipe`"),
            ("zookeeper://a?acl=creator", "creator"),
            ("zookeeper://a?acl=hunter2", "`acl`"),
            ("zookeeper://a?auth=sasl", "name the user"),
            ("zookeeper://a?session_timeout=soon", "`session_timeout`"),
            ("zookeeper://a?session_timeout=2000h", "too long"),
            ("zookeeper://a?session_timeout=999ms", "too short"),
        ] {
            let Err(error) = Settings::from_url(url, None) else {
                panic!("{url} was read");
            };
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
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
