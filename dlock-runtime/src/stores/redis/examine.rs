//! What the servers say of themselves, for people.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join;
use redis::InfoDict;

use super::commands;
use super::connection::Connection;
use super::connector::Connector;
use super::durability;
use super::endpoint::Endpoint;
use super::locate::Locator;
use super::names::tag_of;
use super::redisson::Recipe;
use super::servers::{RedisStore, Route};
use crate::apart::all;
use crate::backend::{Finding, Level};
use crate::deadline::Deadline;
use crate::store::{Applied, Cause, Failure};

/// The names of some settings as a pattern, and where `INFO` tells them: the section, and what each
/// is called there.
type Settings = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

pub(super) const MEMORY: Settings = (
    "maxmemory*",
    "memory",
    &[
        ("maxmemory", "maxmemory"),
        ("maxmemory-policy", "maxmemory_policy"),
    ],
);

const FILES: Settings = ("*append*", "persistence", &[("appendonly", "aof_enabled")]);

impl RedisStore {
    /// Looks at every server that has locks. Ends before the deadline, so that a server that does
    /// not answer can still be reported.
    pub(super) async fn look_at_servers(&self, deadline: Deadline) -> Vec<Finding> {
        let deadline = deadline.within(deadline.remaining() * 3 / 4);
        let tags = match &self.route {
            Route::One(..) => vec![""],
            Route::BySlot(topology) => {
                let slots = topology.map.last_slots().into_iter();
                slots.map(tag_of).collect()
            }
        };
        let looks = tags
            .into_iter()
            .map(async |tag| match self.connection(tag, deadline).await {
                Ok(server) => self.look_at_server(&server, tag, deadline).await,
                Err(failure) => vec![self.not_reached(tag, failure)],
            });
        let (mut found, of_servers) = join(self.look_at_sentinels(deadline), all(looks)).await;
        found.extend(of_servers.into_iter().flatten());
        found
    }

    /// Of each that the URL names.
    async fn look_at_sentinels(&self, deadline: Deadline) -> Vec<Finding> {
        let Connector {
            locator,
            settings,
            time,
            ..
        } = &*self.connector;
        match locator {
            Locator::Sentinels(sentinels) => {
                let deadline = deadline.within(settings.patience());
                sentinels.look(time, deadline).await
            }
            _ => Vec::new(),
        }
    }

    /// What it is called, and what to do.
    fn not_reached(&self, tag: &str, failure: Failure) -> Finding {
        let why = match failure.cause {
            Cause::Error(error) | Cause::NotReached(error) => error.to_string(),
            Cause::Silence => self.endpoint_of(tag).silent_at_first().to_string(),
        };
        Finding::new(Level::Warn, "server", why)
    }

    /// Where the locks of this tag are, as far as it is known.
    fn endpoint_of(&self, tag: &str) -> Endpoint {
        let Connector {
            settings, endpoint, ..
        } = &*self.connector;
        match self.node_of(tag) {
            Some(owner) => Locator::Node((*owner).clone()).endpoint(settings),
            None => endpoint.clone(),
        }
    }

    async fn look_at_server(
        &self,
        server: &Connection,
        tag: &str,
        deadline: Deadline,
    ) -> Vec<Finding> {
        let place = server.endpoint();
        let mut found = Vec::new();
        let info = self.ask_over(server, tag, commands::info("server"), deadline);
        let info = match info.await {
            Ok(info) => Some(info),
            Err(Failure {
                cause: Cause::Error(_),
                applied: Applied::Answered | Applied::No,
                ..
            }) => None,
            Err(failure) => return vec![self.not_reached(tag, failure)],
        };
        let info = info.and_then(|info| redis::from_redis_value::<InfoDict>(info).ok());
        if let Some(version) = info.and_then(|info| info.get::<String>("redis_version")) {
            found.push(self.of_version(place, &version));
        }
        let memory = self.settings(server, tag, MEMORY, deadline).await;
        let files = self.settings(server, tag, FILES, deadline).await;
        found.push(match memory.get("maxmemory-policy") {
            None => Finding::new(
                Level::Warn,
                "eviction",
                format!(
                    "{place}: it does not say whether it drops locks when its memory is full; let \
                     dlock's user read the settings (CONFIG GET, or INFO)"
                ),
            ),
            Some(policy) => match self.evicts(server, &memory) {
                Some(risk) => Finding::new(Level::Warn, "eviction", risk),
                None => {
                    let unlimited = match &**policy {
                        "noeviction" => "",
                        _ => ", but no maxmemory",
                    };
                    let what =
                        format!("{place}: drops no lock (maxmemory-policy {policy}{unlimited})");
                    Finding::new(Level::Ok, "eviction", what)
                }
            },
        });
        found.extend(persistence(&files).map(|(level, what)| {
            let what = format!("{place}: {what}");
            Finding::new(level, "persistence", what)
        }));
        found.extend(self.clock_of(server, tag, deadline).await);
        found
    }

    /// Which version a server has, and what an old one does after it was cut off.
    fn of_version(&self, place: &Endpoint, version: &str) -> Finding {
        let said = format!("{place}: version {version}");
        let otherwise = match self.connector.locator {
            Locator::At(_) => None,
            _ if self.confirming.is_some() => None,
            Locator::Sentinels(_) => Some(", or `replicas=N` in the URL"),
            Locator::Cluster(_) | Locator::Node(_) | Locator::Slot(..) => Some(""),
        };
        match otherwise.filter(|_| writes_in_scripts_without_replicas(version)) {
            None => Finding::new(Level::Ok, "version", said),
            Some(otherwise) => {
                let risk = format!(
                    "{said} does not look at min-replicas-to-write within scripts: a master that \
                     is cut off grants locks to those who reach it; use 7.0 or later{otherwise}"
                );
                Finding::new(Level::Warn, "version", risk)
            }
        }
    }

    /// How far a server's clock is from this machine's.
    async fn clock_of(
        &self,
        server: &Connection,
        tag: &str,
        deadline: Deadline,
    ) -> Option<Finding> {
        let asked = SystemTime::now();
        let told = self.ask_over(server, tag, commands::clock(), deadline);
        let told = told.await.ok()?;
        let seen = [asked, SystemTime::now()];
        let (seconds, micros) = redis::from_redis_value::<(u64, u32)>(told).ok()?;
        let micros = Duration::from_micros(micros.into());
        let since_1970 = Duration::from_secs(seconds).checked_add(micros)?;
        let shown = UNIX_EPOCH.checked_add(since_1970)?;
        let whose = format!("{}: its clock", server.endpoint());
        let harm = match self.space().redisson() {
            // Only places in queues have times, which services in Java write by their own clocks.
            Some(layout) => match layout.recipe {
                Recipe::Fair(_) => "services in Java may lose their places in queues too early",
                _ => return Some(Finding::of_idle_clock(&whose, shown, seen)),
            },
            // On a quorum, the holder's clock says since when a lock is held. A node's clock only
            // matters for its tokens.
            None if self.votes => "if this node loses its data, its tokens begin at this clock",
            None => "ages are shown wrong",
        };
        Some(Finding::of_clock(&whose, shown, seen, harm))
    }

    /// Managed servers refuse `CONFIG`, and tell some of their settings by `INFO` too.
    pub(super) async fn settings(
        &self,
        server: &Connection,
        tag: &str,
        (pattern, section, told): Settings,
        deadline: Deadline,
    ) -> HashMap<String, String> {
        let ask = async |command| self.ask_over(server, tag, command, deadline).await.ok();
        let settings = ask(commands::setting(pattern)).await;
        let settings = settings.and_then(durability::settings).unwrap_or_default();
        if !settings.is_empty() {
            return settings;
        }
        let info = ask(commands::info(section)).await;
        let info = info.and_then(|info| redis::from_redis_value::<InfoDict>(info).ok());
        let value = |(name, there): &(&str, &str)| {
            Some(((*name).to_owned(), info.as_ref()?.get::<String>(there)?))
        };
        told.iter().filter_map(value).collect()
    }

    /// What becomes of locks when the memory is full, if that is something to see to.
    pub(super) fn evicts(
        &self,
        server: &Connection,
        memory: &HashMap<String, String>,
    ) -> Option<String> {
        let policy = memory.get("maxmemory-policy")?;
        if policy == "noeviction" || memory.get("maxmemory").is_some_and(|most| most == "0") {
            return None;
        }
        let of_its_own = match self.space().is_in_slots() {
            false => "server",
            true => "cluster",
        };
        Some(format!(
            "{} has maxmemory-policy {policy}: when its memory is full it drops locks that are \
             held; set noeviction, or use a {of_its_own} of its own for locks",
            server.endpoint()
        ))
    }
}

/// Whether `min-replicas-to-write` does not count within scripts: up to Redis 6.2.
fn writes_in_scripts_without_replicas(version: &str) -> bool {
    let major = version.split('.').next();
    let major = major.and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major < 7)
}

/// What survives a restart. `None` if the settings cannot be read, which the finding about eviction
/// reports.
fn persistence(files: &HashMap<String, String>) -> Option<(Level, String)> {
    // `INFO` tells of it as a number.
    let on = matches!(&**files.get("appendonly")?, "yes" | "1");
    let synced = files.get("appendfsync").map_or("", String::as_str);
    Some(match (on, synced) {
        (true, "always") => (
            Level::Ok,
            "keeps what it has confirmed (appendonly yes, appendfsync always)".to_owned(),
        ),
        (true, "") => (
            Level::Ok,
            "a crash may forget the locks and tokens of the last moment (appendonly yes), unless \
             its `appendfsync` is `always`, which it does not say"
                .to_owned(),
        ),
        (true, _) => (
            Level::Ok,
            format!(
                "a crash may forget the locks and tokens of the last moment (appendonly yes, \
                 appendfsync {synced}); with `appendfsync always`, none"
            ),
        ),
        (false, _) => (
            Level::Warn,
            "a restart forgets locks that are held, and lets others in (appendonly no); set \
             `appendonly yes`"
                .to_owned(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_7_are_known() {
        for (version, is_old) in [
            ("6.2.14", true),
            ("7.0.0", false),
            ("10.1", false),
            ("", false),
        ] {
            assert_eq!(
                writes_in_scripts_without_replicas(version),
                is_old,
                "{version}"
            );
        }
    }
}
