//! `quorum=masters`: a lock counts when more than half of the masters have it.
//!
//! It is a [quorum](crate::quorum) like that of independent servers. A voter is a
//! slot, one on each master: when a replica takes over, the vote is there, as far as
//! the replica had it.
//!
//! All processes must have the same voters, or two of them could have a
//! majority each; and the masters may change. So the voters are chosen once,
//! from the masters of that time, and written into the cluster. Whoever connects
//! later takes them from there, and looks now and then whether they are the
//! same still.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::commands;
use super::super::config::{Config, Found};
use super::super::names::{Keyspace, VOTERS, slot_of, tag_of};
use super::super::servers::Route;
use super::super::settings::{self, Server, Settings, invalid};
use super::super::store::RedisStore;
use super::super::topology::Topology;
use crate::backend::{
    self, Backend, BackendError, BackendErrorKind, Capabilities, Renewed, Request, TokenTier,
};
use crate::engine::{self, DEFAULT_REQUEST_TIMEOUT, Engine};
use crate::quorum::{FEWEST_VOTERS, MOST_VOTERS, Quorum, Voters};

/// How often the voters are looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// The masters' votes.
pub(super) struct Masters {
    pub(super) config: Config,
    pub(super) request_timeout: Duration,
    running: OnceLock<Running>,
    stopped: AtomicBool,
}

/// Between its start and its stop.
struct Running {
    cluster: Arc<Known>,
    quorum: Engine<Quorum<RedisStore>>,
    chosen: Arc<Chosen>,
    stopping: CancellationToken,
    /// Ends the look at the voters.
    _ends: DropGuard,
}

/// The cluster. It has no locks of its own here.
struct Known {
    engine: Engine<RedisStore>,
    running: Arc<engine::Running<RedisStore>>,
    topology: Arc<Topology>,
}

/// The voters.
struct Chosen {
    tags: Vec<Arc<str>>,
    /// Others have been chosen since.
    replaced: AtomicBool,
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for Masters {
    fn clone(&self) -> Self {
        Self::new(self.config.clone()).request_timeout(self.request_timeout)
    }
}

impl Masters {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            running: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    pub(super) fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    pub(super) fn capabilities() -> Capabilities {
        Capabilities {
            // A master is followed by a replica that may not have it all.
            tokens: TokenTier::BestEffort,
            read_write: true,
            // A majority must answer well within it.
            min_ttl: Duration::from_millis(100),
            ..Capabilities::new("cluster")
        }
    }

    pub(super) fn servers(&self) -> Option<backend::Servers> {
        let running = self.running().ok();
        let located = running.and_then(|running| running.cluster.engine.servers());
        located.or_else(|| Some(settings::servers(&self.config.nodes())))
    }

    pub(super) async fn start(&self) -> Result<(), BackendError> {
        if self.running.get().is_some() {
            return Err(misused("was started twice"));
        }
        let running = Running::start(self.config.clone(), self.request_timeout).await?;
        self.running
            .set(running)
            .map_err(|_| misused("was started twice"))
    }

    pub(super) async fn stop(&self) {
        if let Ok(running) = self.running() {
            self.stopped.store(true, Ordering::Release);
            running.stopping.cancel();
            running.quorum.stop().await;
            running.cluster.engine.stop().await;
        }
    }

    pub(super) async fn settle(&self) {
        if let Ok(running) = self.running() {
            running.quorum.settle().await;
        }
    }

    fn running(&self) -> Result<&Running, BackendError> {
        let running = self.running.get();
        running
            .filter(|_| !self.stopped.load(Ordering::Acquire))
            .ok_or_else(|| misused("is not running; use it between its start and its stop"))
    }

    pub(super) fn quorum(&self) -> Result<&Engine<Quorum<RedisStore>>, BackendError> {
        Ok(&self.running()?.quorum)
    }

    /// Those who may grant a lock.
    ///
    /// # Errors
    ///
    /// Others have been chosen since.
    pub(super) fn voters(&self) -> Result<&Engine<Quorum<RedisStore>>, BackendError> {
        let running = self.running()?;
        if running.are_replaced() {
            return Err(BackendError::new(
                BackendErrorKind::Config,
                format!(
                    "{}: other masters vote now than when this process connected (`{VOTERS}` has \
                     changed); restart it, as all processes must ask the same",
                    running.cluster.topology.place
                ),
            ));
        }
        Ok(&running.quorum)
    }

    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        match self.running() {
            // The others may have granted them to somebody else.
            Ok(running) if running.are_replaced() => {
                requests.iter().map(|_| Ok(Renewed::Gone)).collect()
            }
            Ok(running) => running.quorum.renew(requests).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

fn misused(how: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        format!("the Redis Cluster backend {how}"),
    )
}

impl Running {
    async fn start(config: Config, request_timeout: Duration) -> Result<Self, BackendError> {
        let cluster = Arc::new(Known::open(config, request_timeout).await?);
        let topology = &cluster.topology;
        let tags = match cluster.voters().await? {
            Some(tags) => tags,
            None => {
                let slots = topology.last_slots();
                if slots.len() < FEWEST_VOTERS {
                    return Err(invalid(format!(
                        "`quorum=masters` needs at least {FEWEST_VOTERS} masters, and the cluster \
                         has {}: a majority of fewer is lost with one; leave it out, or add masters",
                        slots.len()
                    )));
                }
                cluster.agree_on(&propose(slots)).await?
            }
        };
        if tags.len() > MOST_VOTERS {
            return Err(invalid(format!(
                "`quorum=masters` works with at most {MOST_VOTERS} masters"
            )));
        }
        let settings = &cluster.running.store.servers.connector.settings;
        let voters = tags.iter().map(|tag| {
            let slot = slot_of(tag.as_bytes());
            let settings = Settings {
                server: Server::OfSlot(slot),
                space: Keyspace::Vote(Arc::clone(tag)),
                ..settings.clone()
            };
            Config {
                settings,
                found: Found::OfSlot(Arc::clone(topology), slot),
                votes: true,
            }
        });
        let quorum = Engine::new(Voters {
            voters: voters.collect(),
            name: "cluster",
            strict_with: "",
        });
        let quorum = quorum.request_timeout(request_timeout);
        quorum.start().await?;
        let chosen = Arc::new(Chosen {
            tags,
            replaced: AtomicBool::new(false),
        });
        let stopping = CancellationToken::new();
        let work = look_after(Arc::clone(&cluster), Arc::clone(&chosen));
        tokio::spawn(stopping.clone().run_until_cancelled_owned(work));
        Ok(Self {
            cluster,
            quorum,
            chosen,
            _ends: stopping.clone().drop_guard(),
            stopping,
        })
    }

    /// Whether others vote now. They grant locks without asking these: what was
    /// had from these is worth nothing any more.
    fn are_replaced(&self) -> bool {
        self.chosen.replaced.load(Ordering::Acquire)
    }
}

impl Known {
    async fn open(config: Config, request_timeout: Duration) -> Result<Self, BackendError> {
        let engine = Engine::<RedisStore>::new(config).request_timeout(request_timeout);
        engine.start().await?;
        let running = Arc::clone(engine.running()?);
        let servers = &running.store.servers;
        let Route::Cluster { topology, .. } = &servers.route else {
            return Err(servers.connector.place.nonsense());
        };
        Ok(Self {
            topology: Arc::clone(topology),
            running,
            engine,
        })
    }

    async fn ask(&self, build: impl Fn() -> Cmd + Sync) -> Result<Value, BackendError> {
        let servers = &self.running.store.servers;
        let mut call = self.running.call();
        loop {
            let (deadline, attempt) = (call.begin()?, &mut call.attempt);
            match servers.ask(VOTERS, deadline, attempt, |_| build()).await {
                Ok(answer) => return Ok(answer.value),
                Err(failure) => call.failed(failure).await?,
            }
        }
    }

    /// The voters in the cluster, if it has any.
    async fn voters(&self) -> Result<Option<Vec<Arc<str>>>, BackendError> {
        let foreign = || self.topology.place.foreign(&VOTERS, "value");
        let answer = self.ask(commands::voters).await?;
        let text: Option<String> = redis::from_redis_value(answer).map_err(|_| foreign())?;
        text.map(|text| read(&text).ok_or_else(foreign)).transpose()
    }

    /// The same, but these if it has none.
    async fn agree_on(&self, proposed: &str) -> Result<Vec<Arc<str>>, BackendError> {
        self.ask(|| commands::propose_voters(proposed)).await?;
        let voters = self.voters().await?;
        voters.ok_or_else(|| self.topology.place.nonsense())
    }
}

/// A tag for each of these slots. They are the last of each master: slots are
/// taken away from their lower end as a rule, so these stay for the longest.
fn propose(slots: Vec<u16>) -> String {
    let tags: Vec<_> = slots.into_iter().map(tag_of).collect();
    tags.join(" ")
}

fn read(text: &str) -> Option<Vec<Arc<str>>> {
    let tags: Vec<Arc<str>> = text.split(' ').map(Arc::from).collect();
    let numbers = tags.iter().all(|tag| tag.parse::<u32>().is_ok());
    let slots: HashSet<_> = tags.iter().map(|tag| slot_of(tag.as_bytes())).collect();
    (numbers && slots.len() == tags.len()).then_some(tags)
}

/// Makes sure that the voters are known and the same, and says so if two of them
/// are one server.
async fn look_after(cluster: Arc<Known>, chosen: Arc<Chosen>) {
    let topology = &cluster.topology;
    let tags: Vec<&str> = chosen.tags.iter().map(|tag| &**tag).collect();
    let tags = tags.join(" ");
    let mut shared_before = false;
    let mut changes = topology.changes();
    let mut next_look = Instant::now() + PERIOD;
    loop {
        changes.borrow_and_update();
        let slots = chosen.tags.iter().map(|tag| slot_of(tag.as_bytes()));
        let owners: Vec<_> = slots.filter_map(|slot| topology.address(slot)).collect();
        let servers: HashSet<_> = owners.iter().collect();
        let shared = servers.len() < owners.len();
        if shared && !shared_before {
            tracing::warn!(
                target: "dlock::store",
                "{}: some of the {} slots that vote are on one master, so that its loss may be \
                 that of more than one vote; move them apart again, see docs/stores/cluster.md",
                topology.place,
                chosen.tags.len()
            );
        }
        shared_before = shared;
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(next_look) => {}
            Ok(()) = changes.changed() => continue,
        }
        next_look = Instant::now() + PERIOD;
        // Without an answer nothing is known.
        if let Ok(found) = cluster.agree_on(&tags).await
            && found != chosen.tags
            && !chosen.replaced.swap(true, Ordering::AcqRel)
        {
            tracing::error!(
                target: "dlock::store",
                "{}: other masters vote now than when this process connected; it takes no more \
                 locks and has lost those that it held, restart it",
                topology.place
            );
        }
    }
}
