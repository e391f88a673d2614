//! What the server reports about itself, for people.
//!
//! The client can ask only for the general statistics. Whether the server was started with `-M`,
//! and how large an item may be, is in others (`stats settings`).

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::settings::Settings;
use crate::backend::{Finding, Level};
use crate::key::Shown;

/// The server's clock shows whole seconds, and is set once a second.
const TICK: Duration = Duration::from_secs(2);

/// By the names that the server's `protocol.txt` has for them.
pub(super) struct Statistics(pub(super) HashMap<String, String>);

impl Statistics {
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    /// How many items the server has evicted to make room since it started. Those that were lost
    /// when memory was moved to items of another size count apart (memcached issue 284).
    fn evictions(&self) -> Option<u64> {
        let moved = self.number("slab_reassign_evictions_nomem").unwrap_or(0);
        Some(self.number("evictions")?.saturating_add(moved))
    }

    /// A warning, if the server has evicted items.
    pub(super) fn evicted(&self, server: &Settings) -> Option<String> {
        let evictions = self.evictions().filter(|number| *number > 0)?;
        Some(format!(
            "{server} has thrown out {evictions} items to make room since it started: a lock that is \
             thrown out is free while somebody holds it; use a server of its own for locks, or \
             give this one more memory"
        ))
    }

    /// `seen`: two moments by this machine's clock, between which the server has answered.
    pub(super) fn findings(&self, server: &Settings, seen: [SystemTime; 2]) -> Vec<Finding> {
        let version = self.0.get("version").map(|version| {
            let what = format!("{server}: version {}", Shown(version));
            Finding::new(Level::Ok, "version", what)
        });
        let eviction = match self.evicted(server) {
            Some(risk) => Some(Finding::new(Level::Warn, "eviction", risk)),
            None => self.evictions().map(|_| {
                let none = format!("{server}: has thrown out nothing since it started");
                Finding::new(Level::Ok, "eviction", none)
            }),
        };
        let found = [version, eviction].into_iter();
        let found = found.chain([self.memory(server), self.connections(server)]);
        let found = found.chain([self.clock(server, seen)]);
        found.flatten().collect()
    }

    /// A lease is a number of seconds from when its command arrives, so a wrong clock does no harm.
    fn clock(&self, server: &Settings, [from, to]: [SystemTime; 2]) -> Option<Finding> {
        let shown = Duration::from_secs(self.number("time")?);
        let shown = UNIX_EPOCH.checked_add(shown)?;
        // The clock is set once a second, so the time that it shows may be this old.
        let seen = [from.checked_sub(TICK).unwrap_or(from), to];
        let whose = format!("{server}: its clock");
        Some(Finding::of_idle_clock(&whose, shown, seen))
    }

    fn memory(&self, server: &Settings) -> Option<Finding> {
        let (used, limit) = (self.number("bytes")?, self.number("limit_maxbytes")?);
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let of = format!("{} of {}", megabytes(used), megabytes(limit));
        // A limit of 0 means no limit.
        if limit == 0 || used < limit / 5 * 4 {
            let what = format!("{server}: {of} in use");
            return Some(Finding::new(Level::Ok, "memory", what));
        }
        let what = format!(
            "{server}: {of} in use: when it is full it throws out locks that are held, and one that \
             was started with -M deletes them; use a server of its own for locks, or give this one \
             more memory (-m)"
        );
        Some(Finding::new(Level::Warn, "memory", what))
    }

    fn connections(&self, server: &Settings) -> Option<Finding> {
        let (now, most) = (
            self.number("curr_connections")?,
            self.number("max_connections")?,
        );
        let what = format!("{server}: {now} of {most} connections in use");
        if now < most / 5 * 4 {
            return Some(Finding::new(Level::Ok, "connections", what));
        }
        let what =
            format!("{what}: who comes then waits, and its calls fail; start it with a larger -c");
        Some(Finding::new(Level::Warn, "connections", what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(said: &[(&str, &str)]) -> Vec<(Level, &'static str, String)> {
        let said = said.iter();
        let said = said.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let server = Settings::from_url("memcached://cache").expect("a URL");
        let now = SystemTime::now();
        let found = Statistics(said.collect()).findings(&server, [now, now]);
        let found = found.into_iter();
        found
            .map(|finding| (finding.level, finding.check, finding.message))
            .collect()
    }

    #[test]
    fn a_server_that_is_nearly_full_is_told() {
        let said = |evictions, bytes, connections| {
            found(&[
                ("version", "1.6.18"),
                ("evictions", evictions),
                ("bytes", bytes),
                ("limit_maxbytes", "67108864"),
                ("curr_connections", connections),
                ("max_connections", "1024"),
            ])
        };
        let well = said("0", "1000", "10");
        assert_eq!(well.len(), 4, "{well:?}");
        assert!(
            well.iter().all(|(level, ..)| *level == Level::Ok),
            "{well:?}"
        );
        let full = said("3", "67000000", "1000");
        let warned = full.iter().filter(|(level, ..)| *level == Level::Warn);
        let warned: Vec<_> = warned.map(|(_, check, _)| *check).collect();
        assert_eq!(warned, ["eviction", "memory", "connections"], "{full:?}");
        for (_, check, message) in &full {
            assert!(message.contains("cache"), "{check}: {message}");
        }
    }

    #[test]
    fn what_was_lost_when_memory_was_moved_is_told() {
        let said = |moved| found(&[("evictions", "0"), ("slab_reassign_evictions_nomem", moved)]);
        assert_eq!(said("0")[0].0, Level::Ok);
        let (level, _, message) = &said("2")[0];
        assert_eq!(*level, Level::Warn);
        assert!(message.contains("thrown out 2"), "{message}");
    }

    /// Leases do not go by it.
    #[test]
    fn a_clock_is_told_and_is_no_trouble() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("now").as_secs();
        for (shown, says) in [
            (now, "is this machine's"),
            (now - 2, "is this machine's"),
            (
                now + 3600,
                "ahead of this machine's; nothing here goes by it",
            ),
            (now - 3600, "behind this machine's; nothing here goes by it"),
        ] {
            let told = found(&[("time", &shown.to_string())]);
            let [(Level::Ok, "clock", message)] = &told[..] else {
                panic!("one line: {told:?}");
            };
            assert!(message.contains(says), "{message}");
        }
    }

    /// Another kind of server, or a proxy, may say less.
    #[test]
    fn what_is_not_said_is_not_told() {
        let little = found(&[("version", "1\n2")]);
        assert_eq!(little.len(), 1, "{little:?}");
        assert!(!little[0].2.contains('\n'), "{little:?}");
    }
}
