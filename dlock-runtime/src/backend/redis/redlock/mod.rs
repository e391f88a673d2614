//! The `redis+redlock://` store: independent Redis servers, of which a majority
//! must agree.
//!
//! - A lock is had with the votes of a majority of all configured nodes, which
//!   are asked at the same time ([`election`]); it is renewed and released in the
//!   same way ([`lease`]). A vote is the lock on a node, as a single server has
//!   it, and the single server's commands, connections and give-backs do the
//!   work.
//! - Whatever an election that was lost has left is given back, on the nodes
//!   that did not answer too. Each election has an owner of its own, so that what
//!   is still in flight of one cannot touch the next.
//! - There is no queue: no node alone could hand a lock on. Who waits listens for
//!   the release on every node, and then asks again ([`waiters`], [`watch`]).
//! - Fencing tokens come from the nodes' counters; [`ballot`] says how, and why
//!   they rise.
//! - A node that does not answer is left out until it does ([`nodes`]).

mod acquire;
mod ballot;
mod common;
mod election;
mod held;
mod inspect;
mod lease;
mod nodes;
mod quorum;
mod vote;
mod waiters;
mod watch;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

pub(super) use self::common::Common;
pub(super) use self::nodes::MOST_NODES;
pub(super) use self::quorum::Quorum;
use super::config::Config;
use super::settings::{self, DEFAULT_PORT, DEFAULT_REQUEST_TIMEOUT, FILES, Settings};
use crate::backend::url::Form;
use crate::backend::{
    Backend, BackendError, BackendErrorKind, Capabilities, Grant, LockInfo, Released, Renewed,
    Request, Servers, TokenTier,
};
use crate::limits;

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis+redlock",
    encrypted: Some("rediss+redlock"),
    example: "redis+redlock://10.0.0.1,10.0.0.2,10.0.0.3",
    port: DEFAULT_PORT,
    options: &[],
    files: FILES,
};

const STRICT_WITH: &str = "`appendonly yes`, `appendfsync always` and \
    `no-appendfsync-on-rewrite no` on every node (and let dlock's user read them, with `CONFIG \
    GET` and `ROLE`), have no replicas, and let no `maxmemory-policy` evict keys without a ttl";

/// A majority of fewer could not outlive the loss of one.
pub(super) const FEWEST_NODES: usize = 3;

/// Locks on a majority of independent Redis servers, 6.2 or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::redis::Redlock;
///
/// let store = Redlock::from_url("redis+redlock://:secret@10.0.0.1,10.0.0.2,10.0.0.3/0")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
pub struct Redlock {
    nodes: Vec<Settings>,
    request_timeout: Duration,
    quorum: OnceLock<Quorum>,
    stopped: AtomicBool,
}

impl Redlock {
    /// The servers at `redis+redlock://[user:password@]host[:port],…[/database]`,
    /// or at `rediss+redlock://…` over encrypted connections (cargo feature
    /// `tls`). User, password and database are the same on all of them.
    ///
    /// Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or names fewer than three servers, or one of
    /// them twice. The message never holds a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let url = FORM.read(url)?;
        let nodes = Settings::of_servers(&url, url.path)?;
        if nodes.len() < FEWEST_NODES {
            return Err(url.invalid(format!(
                "it names {} nodes, and a majority of fewer than {FEWEST_NODES} is lost with one; \
                 name three or five, as in {}, or use redis:// for a single server",
                nodes.len(),
                FORM.example
            )));
        }
        if nodes.len() > MOST_NODES {
            return Err(url.invalid(format!("it names more than {MOST_NODES} nodes")));
        }
        Ok(Self::new(nodes, DEFAULT_REQUEST_TIMEOUT))
    }

    /// How long an operation waits for a majority of the servers, 5 seconds by
    /// default: an outage is reported after this time.
    /// From a millisecond to 24 hours, or it is refused at the start.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    fn new(nodes: Vec<Settings>, request_timeout: Duration) -> Self {
        Self {
            nodes,
            request_timeout,
            quorum: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    fn quorum(&self) -> Result<&Quorum, BackendError> {
        let quorum = self
            .quorum
            .get()
            .filter(|_| !self.stopped.load(Ordering::Acquire));
        quorum.ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the Redlock backend is not running; use it between its start and its stop",
            )
        })
    }

    fn common(&self) -> Result<&Common, BackendError> {
        Ok(&self.quorum()?.common)
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for Redlock {
    fn clone(&self) -> Self {
        Self::new(self.nodes.clone(), self.request_timeout)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("nodes", &self.nodes)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Redlock {
    fn capabilities(&self) -> Capabilities {
        let tokens = self
            .quorum
            .get()
            .map_or(TokenTier::BestEffort, |quorum| quorum.common.tokens());
        Capabilities {
            fair: false,
            tokens,
            read_write: true,
            // A majority must answer well within it.
            min_ttl: Duration::from_millis(100),
            strict_with: STRICT_WITH,
            ..Capabilities::new("redlock")
        }
    }

    fn request_timeout(&self) -> Option<Duration> {
        Some(self.request_timeout)
    }

    fn servers(&self) -> Option<Servers> {
        Some(settings::servers(&self.nodes))
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the Redlock backend was started twice",
            )
        };
        if self.quorum.get().is_some() {
            return Err(twice());
        }
        limits::REQUEST_TIMEOUT.check_in_backend(self.request_timeout)?;
        if self.nodes.len().is_multiple_of(2) {
            tracing::warn!(
                target: "dlock::store",
                "redis+redlock:// with {} nodes: one fewer would outlive the loss of as many; use \
                 an odd number",
                self.nodes.len()
            );
        }
        let nodes = self.nodes.iter().map(|node| {
            let settings = Settings {
                request_timeout: self.request_timeout,
                ..node.clone()
            };
            Config::at(settings).map(|config| (config.settings, config.found))
        });
        let nodes = nodes.collect::<Result<_, BackendError>>()?;
        let quorum = Quorum::start(nodes, self.request_timeout).await?;
        self.quorum.set(quorum).map_err(|_| twice())
    }

    async fn stop(&self) {
        if let Ok(quorum) = self.quorum() {
            self.stopped.store(true, Ordering::Release);
            quorum.stop().await;
        }
    }

    async fn settle(&self) {
        if let Ok(quorum) = self.quorum() {
            quorum.settle().await;
        }
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        self.common()?.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        self.common()?.acquire(request).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        match self.common() {
            Ok(common) => common.renew(requests).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.common()?.release(request).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.common()?.inspect(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.common()?.list(prefix).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_the_url() {
        let store = Redlock::from_url("redis+redlock://:hunter2@a,b:7000,[::1]/2").expect("a URL");
        let shown = format!("{store:?}");
        for address in ["a:6379", "b:7000", "[::1]:6379"] {
            assert!(shown.contains(address), "{shown}");
        }
        assert!(!shown.contains("hunter2"), "{shown}");
        for node in &store.nodes {
            assert_eq!(node.login.password(), Some("hunter2"));
            assert_eq!(node.login.db(), 2);
        }
    }

    #[test]
    fn too_few_nodes_are_refused() {
        for (url, says) in [
            ("redis+redlock://:hunter2@a", "names 1 nodes"),
            ("redis+redlock://:hunter2@a,b", "names 2 nodes"),
            ("redis+redlock://:hunter2@a,b,a:6379", "a:6379 twice"),
            ("redis+redlock://:hunter2@a,,c", "host is missing"),
            ("redis+redlock://:hunter2@a,b,c/x", "number of a database"),
            ("redis+redlock://a,b,c?hunter2", "unknown parameter"),
        ] {
            let message = match Redlock::from_url(url) {
                Ok(store) => panic!("{url} was read as {store:?}"),
                Err(error) => error.to_string(),
            };
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }
}
