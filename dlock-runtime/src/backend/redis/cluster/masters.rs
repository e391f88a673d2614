//! `quorum=masters`: a lock counts when more than half of the masters have it.
//!
//! Elections, renewals and tokens are those of independent servers
//! ([`redlock`](super::super::redlock)). A voter is a slot, one on each master:
//! when a replica takes over, the vote is there, as far as the replica had it.
//!
//! All processes must have the same voters, or two of them could have a
//! majority each; and the masters may change. So the voters are chosen once,
//! from the masters of that time, and written into the cluster. Whoever connects
//! later takes them from there, and looks now and then whether they are the
//! same still.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::call::Call;
use super::super::commands;
use super::super::core::{Core, Target};
use super::super::names::{Keyspace, VOTERS, slot_of, tag_of};
use super::super::redlock::{Common, FEWEST_NODES, MOST_NODES, Quorum};
use super::super::server_connections::Side;
use super::super::settings::{Server, Settings, invalid};
use super::super::shared::Servers;
use super::topology::Topology;
use super::way::Way;
use crate::backend::{BackendError, BackendErrorKind};

/// How often the voters are looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// The masters' votes.
pub(super) struct Masters {
    /// Knows the cluster. It has no locks of its own.
    core: Arc<Core>,
    pub(super) quorum: Quorum,
    chosen: Arc<Chosen>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The voters.
struct Chosen {
    tags: Vec<Arc<str>>,
    /// Others have been chosen since.
    replaced: AtomicBool,
}

impl Masters {
    pub(super) async fn start(core: Core, request_timeout: Duration) -> Result<Self, BackendError> {
        let Servers::Cluster { topology, .. } = &core.shared.servers else {
            return Err(core.shared.connector.place.nonsense());
        };
        let topology = Arc::clone(topology);
        let tags = match voters(&core, &topology).await? {
            Some(tags) => tags,
            None => {
                let slots = topology.last_slots();
                if slots.len() < FEWEST_NODES {
                    return Err(invalid(format!(
                        "`quorum=masters` needs at least {FEWEST_NODES} masters, and the cluster \
                         has {}: a majority of fewer is lost with one; leave it out, or add masters",
                        slots.len()
                    )));
                }
                agree_on(&core, &topology, &propose(slots)).await?
            }
        };
        if tags.len() > MOST_NODES {
            return Err(invalid(format!(
                "`quorum=masters` works with at most {MOST_NODES} masters"
            )));
        }
        if tags.len().is_multiple_of(2) {
            tracing::warn!(
                target: "dlock::store",
                "redis+cluster:// with quorum=masters and {} masters: one fewer would outlive the \
                 loss of as many; use an odd number",
                tags.len()
            );
        }
        let settings = &core.shared.connector.settings;
        let nodes = tags.iter().map(|tag| {
            let slot = slot_of(tag.as_bytes());
            let settings = Settings {
                server: Server::OfSlot(slot),
                space: Keyspace::Vote(Arc::clone(tag)),
                ..settings.clone()
            };
            (settings, Target::Voter(Arc::clone(&topology), slot))
        });
        let quorum = Quorum::start(nodes.collect(), request_timeout).await?;
        let core = Arc::new(core);
        let chosen = Arc::new(Chosen {
            tags,
            replaced: AtomicBool::new(false),
        });
        let work = look_after(Arc::clone(&core), topology, Arc::clone(&chosen));
        Ok(Self {
            task: Mutex::new(Some(tokio::spawn(work))),
            core,
            quorum,
            chosen,
        })
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Those who may grant a lock.
    ///
    /// # Errors
    ///
    /// Others have been chosen since.
    pub(super) fn voters(&self) -> Result<&Common, BackendError> {
        if self.are_replaced() {
            return Err(BackendError::new(
                BackendErrorKind::Config,
                format!(
                    "{}: other masters vote now than when this process connected (`{VOTERS}` has \
                     changed); restart it, as all processes must ask the same",
                    self.core.shared.connector.place
                ),
            ));
        }
        Ok(&self.quorum.common)
    }

    /// Whether others vote now. They grant locks without asking these: what was
    /// had from these is worth nothing any more.
    pub(super) fn are_replaced(&self) -> bool {
        self.chosen.replaced.load(Ordering::Acquire)
    }

    pub(super) async fn stop(&self) {
        self.end();
        self.quorum.stop().await;
        self.core.stop().await;
    }

    fn end(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        self.end();
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

/// The voters in the cluster, if it has any.
async fn voters(core: &Core, topology: &Topology) -> Result<Option<Vec<Arc<str>>>, BackendError> {
    let connector = &core.shared.connector;
    let foreign = || connector.place.foreign(&VOTERS, "value");
    let mut call = call(core, topology);
    let answer = call.ask(VOTERS, |_| commands::voters()).await?;
    let text: Option<String> = redis::from_redis_value(answer.value).map_err(|_| foreign())?;
    text.map(|text| read(&text).ok_or_else(foreign)).transpose()
}

/// The same, but these if it has none.
async fn agree_on(
    core: &Core,
    topology: &Topology,
    proposed: &str,
) -> Result<Vec<Arc<str>>, BackendError> {
    call(core, topology)
        .ask(VOTERS, |_| commands::propose_voters(proposed))
        .await?;
    let voters = voters(core, topology).await?;
    voters.ok_or_else(|| core.shared.connector.place.nonsense())
}

fn call<'c>(core: &'c Core, topology: &'c Topology) -> Call<'c> {
    let way = Way::new(topology, slot_of(VOTERS.as_bytes()), Side::Manager);
    Call::on_way(&core.shared.connector, way)
}

/// Makes sure that the voters are known and the same, and says so if two of them
/// are one server.
async fn look_after(core: Arc<Core>, topology: Arc<Topology>, chosen: Arc<Chosen>) {
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
                core.shared.connector.place,
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
        if let Ok(found) = agree_on(&core, &topology, &tags).await
            && found != chosen.tags
            && !chosen.replaced.swap(true, Ordering::AcqRel)
        {
            tracing::error!(
                target: "dlock::store",
                "{}: other masters vote now than when this process connected; it takes no more \
                 locks and has lost those that it held, restart it",
                core.shared.connector.place
            );
        }
    }
}
