//! The parts of a store URL that say how to connect to a server and log in.

use std::sync::Arc;
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};

use super::redisson::{self, Recipe};
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::backend::BackendError;
use crate::limits::DEFAULT_REQUEST_TIMEOUT;
use crate::store::patience;
use crate::stores::url::{Form, StoreUrl};

pub(super) const DEFAULT_PORT: u16 = 6379;
/// The options for encrypted connections in all URLs of Redis.
pub(super) const FILES: &[&str] = &["ca", "cert", "key"];

/// The settings that all servers of a store share.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) login: RedisConnectionInfo,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    /// The default, until the engine sets its own.
    pub(super) request_timeout: Duration,
    /// The name of its connections.
    pub(super) label: Option<Arc<str>>,
    /// How many replicas must know of a lease before it counts.
    pub(super) replicas: usize,
    /// The class of Redisson that the keys belong to, if they are not dlock's own.
    pub(super) recipe: Option<Recipe>,
}

pub(super) static FORM: Form = Form {
    store: "Redis",
    scheme: "redis",
    encrypted: Some("rediss"),
    example: "redis://127.0.0.1:6379",
    port: Some(DEFAULT_PORT),
    options: redisson::OPTIONS,
    files: FILES,
};

/// The URL of a server by its unix socket.
pub(super) static SOCKET: Form = Form {
    scheme: "redis+unix",
    encrypted: None,
    example: "redis+unix:///run/redis/redis.sock",
    port: None,
    options: &["db", "layout", "recipe", "fair_wait"],
    files: &[],
    ..FORM
};

impl Settings {
    /// Of servers that are logged in to like this, and speak in the clear.
    pub(super) fn of(login: RedisConnectionInfo) -> Self {
        Self {
            login,
            #[cfg(feature = "tls")]
            tls: None,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            label: None,
            replicas: 0,
            recipe: None,
        }
    }

    pub(super) fn read(url: &StoreUrl<'_>, database: &str) -> Result<Self, BackendError> {
        let login = login(url.user.as_deref(), url.password.as_deref());
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: url.encrypted.then(|| Tls::new(url)).transpose()?,
            recipe: redisson::read(url)?,
            ..Self::of(login.set_db(number(url, database)?))
        })
    }

    /// How long replicas may take to confirm what their master has. A timeout of `WAIT` is an
    /// answer too, so it must come within the patience.
    pub(super) fn wait_limit(&self) -> Duration {
        self.patience() / 2
    }

    /// How long one answer may take.
    pub(super) fn patience(&self) -> Duration {
        patience(self.request_timeout)
    }

    pub(super) fn encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }
}

/// Reads the number of a database in a URL.
fn number(url: &StoreUrl<'_>, text: &str) -> Result<i64, BackendError> {
    if text.is_empty() {
        return Ok(0);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| {
        url.invalid(
            "behind the host, or in `db`, comes the number of a database, as in \
             redis://127.0.0.1/0",
        )
    })
}

pub(super) fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let login = RedisConnectionInfo::default()
        // Messages and answers come over the same connection: as long as answers come, so do
        // messages.
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
