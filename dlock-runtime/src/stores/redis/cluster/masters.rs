//! `quorum=masters`: a lock counts when more than half of the masters have granted it.
//!
//! It is a [quorum](crate::quorum) like that of independent servers. A voter is a slot, one on
//! each master: if a replica takes over, the vote is still there, as far as the replica had it.
//!
//! All processes must have the same voters, or two owners could have a majority each; and the
//! masters may change. So the voters are chosen once, from the masters at that time, and written
//! into the cluster. A process that connects later reads them there, and checks from time to time
//! whether they are still the same.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::super::commands;
use super::super::config::{Config, Electorate};
use super::super::locate::Locator;
use super::super::names::{VOTERS, slot_of, tag_of};
use super::super::servers::RedisStore;
use super::super::settings::FORM;
use super::super::topology::Topology;
use crate::backend::{Backend as _, BackendError, BackendErrorKind};
use crate::engine::{Engine, Running};
use crate::outlast::outlast;
use crate::quorum::{FEWEST_VOTERS, MOST_VOTERS};

/// How often the voters are checked.
const PERIOD: Duration = Duration::from_secs(5);

/// The voters, and an engine that is used only to ask the cluster for them, not for locks.
struct Masters {
    running: Arc<Running<RedisStore>>,
    topology: Arc<Topology>,
    tags: Vec<Arc<str>>,
    /// Other voters have been chosen since.
    replaced: AtomicBool,
    /// The engine ends when this is dropped.
    _engine: Engine<RedisStore>,
}

/// Finds or chooses the voters of a cluster: one slot for each of its masters.
pub(in super::super) async fn elect(
    config: &Config,
    request_timeout: Duration,
) -> Result<Vec<Config>, BackendError> {
    let engine = Engine::<RedisStore>::new(config.clone()).request_timeout(request_timeout);
    engine.start().await?;
    let running = Arc::clone(engine.running()?);
    let servers = &running.store;
    let topology = servers.topology().map(Arc::clone);
    let topology = topology.ok_or_else(|| servers.connector.endpoint.unexpected_answer())?;
    let tags = match voters(&running).await? {
        Some(tags) => tags,
        None => {
            let slots = topology.map.last_slots();
            if slots.len() < FEWEST_VOTERS {
                return Err(FORM.invalid(format!(
                    "`quorum=masters` needs at least {FEWEST_VOTERS} masters, and the cluster has \
                     {}: a majority of fewer is lost with one; leave it out, or add masters",
                    slots.len()
                )));
            }
            agree_on(&running, &propose(slots)).await?
        }
    };
    if tags.len() > MOST_VOTERS {
        return Err(FORM.invalid(format!(
            "`quorum=masters` works with at most {MOST_VOTERS} masters"
        )));
    }
    let masters = Arc::new(Masters {
        running,
        topology,
        tags,
        replaced: AtomicBool::new(false),
        _engine: engine,
    });
    let work = Arc::clone(&masters).look_after();
    masters.running.spawn_until_stop(work);
    let voters = masters.tags.iter().map(|tag| {
        let map = Arc::clone(&masters.topology.map);
        let slot = slot_of(tag.as_bytes());
        let locator = Locator::Slot(map, slot, Arc::clone(tag));
        Config {
            votes: true,
            electorate: Some(Arc::clone(&masters) as _),
            ..Config::new(config.settings.clone(), locator)
        }
    });
    Ok(voters.collect())
}

impl Electorate for Masters {
    fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    fn check(&self) -> Result<(), BackendError> {
        if !self.replaced.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(BackendError::new(
            BackendErrorKind::Config,
            format!(
                "{}: other masters vote now than when this process connected (`{VOTERS}` has \
                 changed); restart it, as all processes must ask the same",
                self.topology.map.endpoint
            ),
        ))
    }

    fn close(&self) {
        self.running.close();
    }
}

/// The voters that are written in the cluster, if there are any.
async fn voters(running: &Running<RedisStore>) -> Result<Option<Vec<Arc<str>>>, BackendError> {
    let servers = &running.store;
    let asked = running.repeat(|deadline| servers.ask(VOTERS, deadline, &commands::voters));
    let answer = asked.await?;
    let foreign = || servers.connector.endpoint.foreign(&VOTERS, "value");
    let text: Option<String> = redis::from_redis_value(answer.value).map_err(|_| foreign())?;
    text.map(|text| read(&text).ok_or_else(foreign)).transpose()
}

/// The voters that are written in the cluster. If there are none yet, writes the proposed ones.
async fn agree_on(
    running: &Running<RedisStore>,
    proposed: &str,
) -> Result<Vec<Arc<str>>, BackendError> {
    let servers = &running.store;
    let propose = || commands::propose_voters(proposed);
    running
        .repeat(|deadline| servers.ask(VOTERS, deadline, &propose))
        .await?;
    let voters = voters(running).await?;
    voters.ok_or_else(|| servers.connector.endpoint.unexpected_answer())
}

impl Masters {
    /// Checks that the voters are still written in the cluster and unchanged, and warns if
    /// several of them are on one server.
    async fn look_after(self: Arc<Self>) {
        let Topology { map, .. } = &*self.topology;
        let mut shared_before = false;
        let mut changes = map.changes();
        let mut next_look = Instant::now() + PERIOD;
        loop {
            changes.borrow_and_update();
            let slots = self.tags.iter().map(|tag| slot_of(tag.as_bytes()));
            let owners: Vec<_> = slots.filter_map(|slot| map.owner(slot)).collect();
            let servers: HashSet<_> = owners.iter().collect();
            let shared = servers.len() < owners.len();
            if shared && !shared_before {
                outlast(|| {
                    tracing::warn!(
                        target: "dlock::store",
                        "{}: some of the {} slots that vote are on one master, so that its loss may be \
                         that of more than one vote; move them apart again, see docs/stores/cluster.md",
                        map.endpoint,
                        self.tags.len()
                    );
                });
            }
            shared_before = shared;
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next_look) => {}
                Ok(()) = changes.changed() => continue,
            }
            next_look = Instant::now() + PERIOD;
            // Without an answer, nothing is known.
            if let Ok(found) = agree_on(&self.running, &self.tags.join(" ")).await
                && found != self.tags
                && !self.replaced.swap(true, Ordering::AcqRel)
            {
                outlast(|| {
                    tracing::error!(
                        target: "dlock::store",
                        "{}: other masters vote now than when this process connected; it takes no more \
                         locks and has lost those that it held, restart it",
                        map.endpoint
                    );
                });
            }
        }
    }
}

/// A tag for each of these slots. They are the last slots of each master: slots are usually moved
/// away from the lower end, so these stay longest.
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
