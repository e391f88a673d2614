//! The `redis+cluster://` store: a Redis Cluster.
//!
//! - All keys of a lock are in one slot, and each operation is one script, as on a single server.
//!   The difference is the node: it is found again for each attempt, by a map that is kept up to
//!   date ([`topology`](super::topology)), and redirections are followed.
//! - A waiter is notified on a channel of the lock's slot.
//! - Fencing tokens come from a counter for each slot, which every draw raises to the clock of
//!   the node that has the slot.
//! - With `quorum=masters`, a lock counts when more than half of the masters have granted it: an
//!   election as among independent servers, in which each voter is a slot ([`masters`]).

pub(super) mod masters;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::config::Config;
use super::locate::Locator;
use super::servers::RedisStore;
use super::settings::{DEFAULT_PORT, FILES, Settings};
use crate::backend::{
    self, Backend, BackendError, Capabilities, Finding, Grant, HolderInfo, Listed, LockInfo, Owner,
    Released, Renewed, Request, WaiterInfo,
};
use crate::engine::Engine;
use crate::quorum::{Quorum, Voters};
use crate::store::Store;
use crate::stores::url::Form;

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis+cluster",
    encrypted: Some("rediss+cluster"),
    example: "redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3",
    port: Some(DEFAULT_PORT),
    options: &["quorum", "layout", "recipe", "fair_wait"],
    files: FILES,
};

/// Locks in a Redis Cluster, 6.2 or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::redis::Cluster;
///
/// let store = Cluster::from_url("redis+cluster://:secret@10.0.0.1,10.0.0.2,10.0.0.3")?
///     .request_timeout(Duration::from_secs(10));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
#[derive(Clone)]
pub struct Cluster(Decides);

/// Which nodes decide about a lock.
#[derive(Clone)]
enum Decides {
    /// The node that has its slot.
    Owner(Engine<RedisStore>),
    /// More than half of the masters.
    Masters(Engine<Quorum<RedisStore>>),
}

/// Does the same with either engine.
macro_rules! by_either {
    ($cluster:expr, $engine:ident => $what:expr) => {
        match &$cluster.0 {
            Decides::Owner($engine) => $what,
            Decides::Masters($engine) => $what,
        }
    };
}

impl Cluster {
    /// The cluster with some nodes at `redis+cluster://[user:password@]host[:port],host,…`, or at
    /// `rediss+cluster://…` over encrypted connections (cargo feature `tls`). The other nodes are
    /// found by asking these. User and password are the same on all of them.
    ///
    /// With `?quorum=masters`, a lock counts when more than half of the masters have granted it.
    /// Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not valid, names a database, or names a node twice. The message never contains
    /// a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let url = FORM.read(url)?;
        let quorum = match url.option("quorum") {
            None => false,
            Some("masters") => true,
            Some(_) => {
                return Err(url.invalid(
                    "`quorum` can only be `masters`: more than half of them must have a lock",
                ));
            }
        };
        if !matches!(url.path, "" | "0") {
            return Err(url.invalid(
                "a cluster has one database only, number 0; leave out what stands behind the hosts",
            ));
        }
        let locator = Locator::Cluster(url.hosts.clone());
        let settings = Settings::read(&url, "")?;
        if quorum && settings.recipe.is_some() {
            return Err(url.invalid(
                "with `layout=redisson` the node decides that has a lock's slot, as it does in \
                 Java; leave out `quorum`",
            ));
        }
        let config = Config::new(settings, locator);
        Ok(Self(if quorum {
            Decides::Masters(Engine::new(Voters {
                voters: vec![config],
                name: "cluster",
                strict_with: "",
                permits_with: "leave `quorum=masters` out of its URL (each master would let in so \
                    many, and not the same ones)",
                once_with: "leave `quorum=masters` out of its URL",
            }))
        } else {
            Decides::Owner(Engine::new(config))
        }))
    }

    /// How long an operation waits for the cluster in total, 5 seconds by default: an outage is
    /// reported after this time. If it is longer than a failover takes, operations wait for the
    /// end of the failover. Must be from a millisecond to 24 hours; otherwise the start fails.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.0 = match self.0 {
            Decides::Owner(engine) => Decides::Owner(engine.request_timeout(timeout)),
            Decides::Masters(engine) => Decides::Masters(engine.request_timeout(timeout)),
        };
        self
    }

    /// The engine, if the node that has a lock's slot decides, for [`bare`](crate::bare).
    #[doc(hidden)]
    #[must_use]
    pub fn owner(&self) -> Option<Engine<impl Store<Record = ()> + use<>>> {
        match &self.0 {
            Decides::Owner(engine) => Some(engine.clone()),
            Decides::Masters(_) => None,
        }
    }

    fn backend(&self) -> &dyn Backend {
        by_either!(self, engine => engine)
    }
}

#[cfg(feature = "tls")]
super::tls::own_tls!(Cluster, |store, tls| match &mut store.0 {
    Decides::Owner(engine) => engine.config.encrypt(&tls),
    // The voters are found by way of these.
    Decides::Masters(engine) => {
        for cluster in &mut engine.config.voters {
            cluster.encrypt(&tls);
        }
    }
});

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        by_either!(self, engine => engine.describe("Cluster", f))
    }
}

// The methods that have a default in the trait must be passed on too. The lint names those that are
// not.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Cluster {
    fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    fn request_timeout(&self) -> Option<Duration> {
        self.backend().request_timeout()
    }

    fn servers(&self) -> Option<backend::Servers> {
        self.backend().servers()
    }

    fn call_yourself(&self, label: &str) {
        self.backend().call_yourself(label);
    }

    async fn start(&self) -> Result<(), BackendError> {
        self.backend().start().await
    }

    async fn stop(&self) {
        self.backend().stop().await;
    }

    async fn examine(&self) -> Vec<Finding> {
        self.backend().examine().await
    }

    async fn settle(&self) {
        self.backend().settle().await;
    }

    // These call the engine directly, to avoid a second box around each future.

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        by_either!(self, engine => engine.running()?.try_acquire(request).await)
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        by_either!(self, engine => engine.running()?.acquire(request).await)
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        by_either!(self, engine => engine.running()?.release(request).await)
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.backend().renew(requests).await
    }

    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        self.backend().forget(key).await
    }

    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        self.backend().raise_tokens(floor).await
    }

    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        self.backend().break_lock(key, holder).await
    }

    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        self.backend().break_waiter(key, waiter).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.backend().inspect(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.backend().list(prefix).await
    }

    async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, BackendError> {
        self.backend().list_some(prefix, most).await
    }

    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        self.backend().is_owner(holder, owner)
    }

    async fn next_losses(&self) -> Vec<Owner> {
        self.backend().next_losses().await
    }

    fn has_ended(&self, owner: Owner) -> bool {
        self.backend().has_ended(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::redisson::field::Field;
    use super::*;

    #[test]
    fn the_url_is_read() {
        let url = "redis+cluster://:hunter2@a,b:7000,[::1]/0?quorum=masters";
        let store = Cluster::from_url(url).expect("a URL");
        let Decides::Masters(engine) = &store.0 else {
            panic!("{store:?}");
        };
        let hosts = engine.config.voters[0].locator.hosts();
        assert_eq!(hosts, ["a:6379", "b:7000", "[::1]:6379"]);
        assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
        let store = Cluster::from_url("redis+cluster://a/").expect("a URL");
        assert!(matches!(store.0, Decides::Owner(_)));
    }

    /// Redisson's names for owners are not dlock's. Without this, a lock that nobody collects would
    /// not be counted as held.
    #[test]
    fn an_owner_is_recognised_by_the_name_that_redisson_gives_it() {
        let url = "redis+cluster://a?layout=redisson";
        let store = Cluster::from_url(url).expect("a URL");
        let (owner, other) = (Owner::unique(), Owner::unique());
        let shown = HolderInfo::new(Field::of_owner(owner).to_string(), None);
        assert!(store.is_owner(&shown, owner));
        assert!(!store.is_owner(&shown, other));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (url, says) in [
            ("redis+cluster://", "host is missing"),
            ("redis+cluster://:hunter2@a,a:6379", "a:6379 twice"),
            ("redis+cluster://:hunter2@a/1", "number 0"),
            ("redis+cluster://:hunter2@a/x", "number 0"),
            ("redis+cluster://a?hunter2", "unknown parameter"),
            ("redis+cluster://a?quorum=hunter2", "can only be `masters`"),
            ("redis+cluster://a?ca=x", "rediss+cluster://"),
            (
                "redis+cluster://a?quorum=masters&layout=redisson",
                "leave out `quorum`",
            ),
        ] {
            let message = match Cluster::from_url(url) {
                Ok(store) => panic!("{url} was read as {store:?}"),
                Err(error) => error.to_string(),
            };
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{url}: {message}");
        }
    }
}
