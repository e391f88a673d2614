//! The settings in a store URL.

use std::fmt;
use std::time::Duration;

use etcd_client::ConnectOptions;
#[cfg(feature = "tls")]
use etcd_client::{Certificate, Identity, TlsOptions};

use super::names::Names;
use crate::backend::BackendError;
use crate::stores::address::Address;
use crate::stores::url::Form;
#[cfg(feature = "tls")]
use crate::stores::url::StoreUrl;

/// How often the client pings a member over a connection on which it hears nothing else. Servers
/// close connections that ping more often than every five seconds (`--grpc-keepalive-min-time`).
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Where the members are, how to log in, and how locks are taken.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Each with its port.
    pub(super) hosts: Vec<String>,
    pub(super) names: Names,
    pub(super) recipe: Recipe,
    pub(super) encrypted: bool,
    user: Option<(String, String)>,
    /// The server may know the client, and give it rights of its own.
    pub(super) is_known: bool,
    #[cfg(feature = "tls")]
    tls: Option<TlsOptions>,
    /// Login and encryption, as a service has set them up itself.
    options: Option<ConnectOptions>,
}

/// Who gives the lock to a request that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// The transaction that finds nobody ahead.
    Queue,
    /// The server's own Lock call, once that transaction has found nobody ahead.
    LockService,
}

static FORM: Form = Form {
    store: "etcd",
    scheme: "etcd",
    encrypted: Some("etcds"),
    example: "etcd://127.0.0.1:2379",
    port: Some(2379),
    options: &["recipe"],
    files: &["ca", "cert", "key"],
};

impl Settings {
    /// Options say how to log in and whom to trust; then the URL must not.
    pub(super) fn from_url(
        url: &str,
        options: Option<ConnectOptions>,
    ) -> Result<Self, BackendError> {
        let url = FORM.read(url)?;
        if options.is_some() {
            url.says_only_where()?;
        }
        let recipes = [
            ("queue", Recipe::Queue),
            ("lock-service", Recipe::LockService),
        ];
        let user = match (url.user.clone(), url.password.clone()) {
            (None, None) => None,
            (Some(name), password) => Some((name, password.unwrap_or_default())),
            (None, Some(_)) => {
                return Err(
                    url.invalid("etcd wants a user with a password: etcd://user:password@host")
                );
            }
        };
        Ok(Self {
            hosts: url.hosts.iter().map(Address::to_string).collect(),
            names: Names::under(&url.decoded(url.path)?),
            recipe: url.choice("recipe", &recipes)?.unwrap_or(Recipe::Queue),
            encrypted: url.encrypted,
            is_known: user.is_some() || url.option("cert").is_some() || options.is_some(),
            user,
            #[cfg(feature = "tls")]
            tls: (url.encrypted && options.is_none())
                .then(|| tls(&url))
                .transpose()?,
            options,
        })
    }

    /// The URL of a member, as the client takes it.
    pub(super) fn endpoint(&self, host: &str) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://{host}")
    }

    pub(super) fn connect_options(&self, patience: Duration) -> ConnectOptions {
        if let Some(options) = &self.options {
            // dlock limits each request itself.
            return Self::with_limits(options.clone().with_timeout(Duration::MAX), patience);
        }
        let options = self.anonymous_options(patience);
        match &self.user {
            Some((name, password)) => options.with_user(name, password),
            None => options,
        }
    }

    /// For a host that the URL does not name: it must not be told the password.
    pub(super) fn anonymous_options(&self, patience: Duration) -> ConnectOptions {
        let options = Self::with_limits(ConnectOptions::new(), patience);
        #[cfg(feature = "tls")]
        let options = match &self.tls {
            Some(tls) => options.with_tls(tls.clone()),
            None => options,
        };
        options
    }

    fn with_limits(options: ConnectOptions, patience: Duration) -> ConnectOptions {
        options
            // A member that is cut off from the others then says so at once, on streams too.
            .with_require_leader(true)
            .with_connect_timeout(patience)
            .with_keep_alive(PING_INTERVAL, patience)
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(Duration::from_secs(60))
    }

    /// The members, as messages name them.
    pub(super) fn place(&self) -> String {
        format!("etcd at {}", self.hosts.join(","))
    }

    /// Whether there may be a user: options do not show theirs.
    pub(super) fn may_have_user(&self) -> bool {
        self.user.is_some() || self.options.is_some()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("hosts", &self.hosts)
            .field("prefix", &self.names.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("encrypted", &self.encrypted)
            .field("recipe", &self.recipe)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
fn tls(url: &StoreUrl<'_>) -> Result<TlsOptions, BackendError> {
    let options = match url.authority()? {
        Some(pem) => TlsOptions::new().ca_certificate(Certificate::from_pem(pem)),
        None => TlsOptions::new().with_enabled_roots(),
    };
    Ok(match url.identity()? {
        Some((certificate, key)) => options.identity(Identity::from_pem(certificate, key)),
        None => options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Settings {
        Settings::from_url(url, None).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn every_part_is_read() {
        let settings = read("etcd://alice:p%40ss%2F@a,b:7,[::1]/locks%20of/us?recipe=lock-service");
        assert_eq!(settings.hosts, ["a:2379", "b:7", "[::1]:2379"]);
        assert_eq!(settings.names.prefix, "locks of/us/");
        assert_eq!(settings.recipe, Recipe::LockService);
        assert_eq!(settings.user, Some(("alice".into(), "p@ss/".into())));
        assert_eq!(settings.endpoint("a:2379"), "http://a:2379");

        let settings = read("etcd://a?recipe=queue");
        assert_eq!(settings.names.prefix, "dlock/");
        assert_eq!(settings.recipe, Recipe::Queue);
        assert_eq!(settings.user, None);
        assert_eq!(read("etcd://a//locks/").names.prefix, "/locks/");
    }

    #[test]
    fn what_it_cannot_read_it_refuses_without_showing_the_password() {
        for (url, says) in [
            ("etcd://:hunter2@a", "user with a password"),
            ("etcd://a?recipe=hunter2", "`lock-service`"),
            (
                "etcd://a?hunter2",
                "there are `recipe`, and with etcds:// `ca`",
            ),
        ] {
            let error = Settings::from_url(url, None).map(drop).expect_err(url);
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn encryption_is_a_matter_of_the_scheme() {
        assert_eq!(read("etcds://a").endpoint("a:1"), "https://a:1");
        let error = Settings::from_url("etcds://a?ca=/dev/null", None).map(drop);
        let error = error.expect_err("nobody to trust");
        assert!(error.to_string().contains("no certificate"), "{error}");
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
