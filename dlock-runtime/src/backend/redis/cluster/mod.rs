//! The `redis+cluster://` store: a Redis Cluster.
//!
//! - All keys of a lock are in one slot, and each operation is one script, as on
//!   a single server. What differs is where it goes: a call finds the node anew
//!   for each attempt ([`way`]), by a map that is kept up to date ([`topology`],
//!   [`refresh`]), and follows where it is sent.
//! - A waiter is told on a channel of the lock's slot ([`ears`]), and looks once
//!   a second by itself ([`watch`]).
//! - Fencing tokens come from a counter for each slot, which every draw lifts to
//!   the clock of the node that has the slot.
//! - With `quorum=masters` a lock counts when more than half of the masters have
//!   it: an election as among independent servers, in which each voter is a slot
//!   ([`masters`]).

mod ears;
mod masters;
mod refresh;
mod topology;
mod watch;
mod way;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::Value;
use tokio_util::sync::CancellationToken;

pub(super) use self::ears::Ears;
use self::masters::Masters;
use self::topology::Node;
pub(super) use self::topology::Topology;
pub(super) use self::way::Way;
use super::call::Call;
use super::commands;
use super::connector::Connector;
use super::core::Core;
use super::errors;
use super::hub::Hub;
use super::locate::Locator;
use super::names::Keyspace;
use super::process::Process;
use super::server_connections::Side;
use super::settings::{self, DEFAULT_PORT, DEFAULT_REQUEST_TIMEOUT, FILES, Settings};
use super::shared::{Servers, Shared};
use super::waiters::Waiters;
use crate::backend::clock::{Clock, Deadline};
use crate::backend::tier::FoundTier;
use crate::backend::unknown_outcomes::UnknownOutcomes;
use crate::backend::url::Form;
use crate::backend::{
    self, Backend, BackendError, BackendErrorKind, Capabilities, Grant, LockInfo, Released,
    Renewed, Request, TokenTier,
};
use crate::limits;

static FORM: Form = Form {
    store: "Redis",
    scheme: "redis+cluster",
    encrypted: Some("rediss+cluster"),
    example: "redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3",
    port: DEFAULT_PORT,
    options: &["quorum"],
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
pub struct Cluster {
    /// The nodes that the URL names.
    seeds: Vec<Settings>,
    quorum: bool,
    request_timeout: Duration,
    running: OnceLock<Running>,
    stopped: AtomicBool,
}

/// A backend between its start and its stop.
enum Running {
    /// The node that has the lock's slot decides.
    Owner(Box<Core>),
    /// More than half of the masters decide.
    Masters(Box<Masters>),
}

impl Cluster {
    /// The cluster of which some nodes are at
    /// `redis+cluster://[user:password@]host[:port],host,…`, or at
    /// `rediss+cluster://…` over encrypted connections (cargo feature `tls`).
    /// The others are found by asking these. User and password are the same on
    /// all of them.
    ///
    /// With `?quorum=masters` a lock counts when more than half of the masters
    /// have it. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, names a database, or a node twice. The message
    /// never holds a password.
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
        let seeds = Settings::of_servers(&url, "")?;
        let seeds = seeds.into_iter().map(|seed| Settings {
            space: Keyspace::Slots,
            ..seed
        });
        Ok(Self::new(seeds.collect(), quorum, DEFAULT_REQUEST_TIMEOUT))
    }

    /// How long an operation waits for the cluster in all, 5 seconds by default:
    /// an outage is reported after this time. Longer than a failover takes, and
    /// operations wait for the end of that.
    /// From a millisecond to 24 hours, or it is refused at the start.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    fn new(seeds: Vec<Settings>, quorum: bool, request_timeout: Duration) -> Self {
        Self {
            seeds,
            quorum,
            request_timeout,
            running: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    fn running(&self) -> Result<&Running, BackendError> {
        let running = self
            .running
            .get()
            .filter(|_| !self.stopped.load(Ordering::Acquire));
        running.ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the Redis Cluster backend is not running; use it between its start and its stop",
            )
        })
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for Cluster {
    fn clone(&self) -> Self {
        Self::new(self.seeds.clone(), self.quorum, self.request_timeout)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCluster")
            .field("nodes", &self.seeds)
            .field("quorum", &self.quorum)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Cluster {
    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities {
            // A master is followed by a replica that may not have it all.
            tokens: TokenTier::BestEffort,
            read_write: true,
            ..Capabilities::new("cluster")
        };
        if self.quorum {
            Capabilities {
                // A majority must answer well within it.
                min_ttl: Duration::from_millis(100),
                ..capabilities
            }
        } else {
            Capabilities {
                fair: true,
                ..capabilities
            }
        }
    }

    fn request_timeout(&self) -> Option<Duration> {
        Some(self.request_timeout)
    }

    fn servers(&self) -> Option<backend::Servers> {
        let mut servers = settings::servers(&self.seeds);
        let core = match self.running() {
            Ok(Running::Owner(core)) => Some(&**core),
            Ok(Running::Masters(masters)) => Some(masters.core()),
            Err(_) => None,
        };
        // Each master has locks of its own.
        let masters: Vec<_> = core.map_or_else(Vec::new, |core| core.shared.servers.masters());
        if !masters.is_empty() {
            servers.hosts = masters;
        }
        Some(servers)
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the Redis Cluster backend was started twice",
            )
        };
        if self.running.get().is_some() {
            return Err(twice());
        }
        limits::REQUEST_TIMEOUT.check_in_backend(self.request_timeout)?;
        let seeds = self.seeds.iter().map(|seed| Settings {
            request_timeout: self.request_timeout,
            ..seed.clone()
        });
        let core = start(seeds.collect()).await?;
        let running = if self.quorum {
            Running::Masters(Box::new(Masters::start(core, self.request_timeout).await?))
        } else {
            Running::Owner(Box::new(core))
        };
        self.running.set(running).map_err(|_| twice())
    }

    async fn stop(&self) {
        if let Ok(running) = self.running() {
            self.stopped.store(true, Ordering::Release);
            match running {
                Running::Owner(core) => core.stop().await,
                Running::Masters(masters) => masters.stop().await,
            }
        }
    }

    async fn settle(&self) {
        match self.running() {
            Ok(Running::Owner(core)) => core.hub.settle().await,
            Ok(Running::Masters(masters)) => masters.quorum.settle().await,
            Err(_) => {}
        }
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        match self.running()? {
            Running::Owner(core) => core.try_acquire(request).await,
            Running::Masters(masters) => masters.voters()?.try_acquire(request).await,
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        match self.running()? {
            Running::Owner(core) => core.acquire(request).await,
            Running::Masters(masters) => masters.voters()?.acquire(request).await,
        }
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        match self.running() {
            Ok(Running::Owner(core)) => core.renew(requests).await,
            // The others may have granted them to somebody else.
            Ok(Running::Masters(masters)) if masters.are_replaced() => {
                requests.iter().map(|_| Ok(Renewed::Gone)).collect()
            }
            Ok(Running::Masters(masters)) => masters.quorum.common.renew(requests).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        match self.running()? {
            Running::Owner(core) => core.release(request).await,
            Running::Masters(masters) => masters.quorum.common.release(request).await,
        }
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        match self.running()? {
            Running::Owner(core) => core.inspect(key).await,
            Running::Masters(masters) => masters.quorum.common.inspect(key).await,
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        match self.running()? {
            Running::Owner(core) => core.list(prefix).await,
            Running::Masters(masters) => masters.quorum.common.list(prefix).await,
        }
    }
}

/// Finds the nodes, checks what they promise, and starts the tasks, all on the
/// current runtime.
async fn start(seeds: Vec<Settings>) -> Result<Core, BackendError> {
    let clock = Clock::of_this_runtime().ok_or_else(errors::outside_runtime)?;
    let process = Process::unique();
    let waiters = Waiters::new();
    let ears = Ears::new(process, Arc::clone(&waiters));
    let first = seeds
        .first()
        .cloned()
        .zip(seeds.first().and_then(Settings::address).cloned());
    let (settings, first) = first.ok_or_else(|| FORM.invalid("it names no host"))?;
    let topology = Topology::new(seeds, clock.clone(), ears.listeners());
    let connector = Arc::new(Connector {
        locator: Locator::At(first),
        place: topology.place.clone(),
        settings,
        clock,
        highest_token: AtomicU64::new(0),
        tokens: FoundTier::unknown(),
    });
    topology.discover().await?;

    let shared = Arc::new(Shared {
        connector,
        process,
        waiters,
        servers: Servers::Cluster {
            topology: Arc::clone(&topology),
            ears: Arc::clone(&ears),
        },
        release: commands::release,
    });
    let stopping = CancellationToken::new();
    let refresh = refresh::keep_up_to_date(Arc::clone(&topology), stopping.clone());
    let listen = ears::listen(Arc::clone(&topology), Arc::clone(&ears), stopping.clone());
    let watch = watch::keep_watch(Arc::clone(&shared), ears, stopping.clone());
    let tasks = vec![
        tokio::spawn(refresh),
        tokio::spawn(listen),
        tokio::spawn(watch),
    ];
    let core = Core {
        hub: Hub::start(&shared, tasks, stopping),
        confirmer: None,
        shared,
        unknown: UnknownOutcomes::default(),
    };
    check(&topology, process).await?;
    Ok(core)
}

/// Whether the masters can be worked with. One that does not answer may come
/// back, or be replaced; one that refuses is a mistake.
async fn check(topology: &Topology, process: Process) -> Result<(), BackendError> {
    let checks = topology.last_slots().into_iter().map(|slot| async move {
        match topology.owner(slot) {
            Some(node) => check_node(&node, slot, process).await,
            None => Ok(()),
        }
    });
    let mut failed = Vec::new();
    let mut works = false;
    for checked in join_all(checks).await {
        match checked {
            Ok(()) => works = true,
            Err(error) if error.kind() == BackendErrorKind::Unavailable => failed.push(error),
            Err(error) => return Err(error),
        }
    }
    match failed.pop() {
        Some(error) if !works => Err(error),
        last => {
            for error in failed.iter().chain(&last) {
                tracing::warn!(target: "dlock::store", "{error}; locks go on with the other nodes");
            }
            Ok(())
        }
    }
}

async fn check_node(node: &Arc<Node>, slot: u16, process: Process) -> Result<(), BackendError> {
    let Connector {
        settings, place, ..
    } = &*node.connector;
    let start = Instant::now();
    let mut call = Call::new(&node.connector, node.one.of(Side::Manager)?);
    call.restart(start, Deadline::from(start, settings.request_timeout));
    let tag = super::names::tag_of(slot);
    let answers = call
        .ask_all(
            3,
            |_| "",
            |index, _| match index {
                0 => commands::test_message_in(&settings.space, process, tag),
                1 => commands::setting("maxmemory"),
                _ => commands::setting("maxmemory-policy"),
            },
            None,
        )
        .await;
    let [message, memory, policy] = <[_; 3]>::try_from(answers).map_err(|_| place.nonsense())?;
    message?;
    // Servers that are rented out refuse `CONFIG`.
    let value = |answer: Result<super::call::Answer, BackendError>| {
        let value: Value = answer.ok()?.value;
        let mut found: Vec<(String, String)> = redis::from_redis_value(value).ok()?;
        found.pop().map(|(_, value)| value)
    };
    if let (Some(memory), Some(policy)) = (value(memory), value(policy))
        && memory != "0"
        && policy != "noeviction"
    {
        tracing::warn!(
            target: "dlock::store",
            "{place} has maxmemory-policy {policy}: when its memory is full it drops locks that \
             are held; set noeviction, or use a cluster of its own for locks"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_read() {
        let url = "redis+cluster://:hunter2@a,b:7000,[::1]/0?quorum=masters";
        let store = Cluster::from_url(url).expect("a URL");
        let addresses: Vec<_> = store.seeds.iter().filter_map(Settings::address).collect();
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["a:6379", "b:7000", "[::1]:6379"]);
        assert!(store.quorum);
        assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
        let store = Cluster::from_url("redis+cluster://a/").expect("a URL");
        assert!(!store.quorum);
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
