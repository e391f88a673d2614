//! What the server has counted.

use std::collections::BTreeMap;

use crate::support::redis::RedisServer;

/// The server's counters at one moment, or what they rose by.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// Calls by command, those that scripts made included.
    calls: BTreeMap<String, u64>,
    /// How often the server has read from a socket.
    reads: u64,
    /// Seconds of processor time.
    processor: f64,
}

impl Counters {
    pub(crate) async fn of(server: &RedisServer) -> Self {
        let info: String = server.command(&["INFO", "everything"]).await;
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name));
            let value = value.unwrap_or_else(|| panic!("Redis does not count {name}"));
            value.trim().parse::<f64>().expect("a number")
        };
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Self {
            calls: calls.collect(),
            reads: field("total_reads_processed:") as u64,
            processor: field("used_cpu_user:") + field("used_cpu_sys:"),
        }
    }

    /// What has been added since then, but for what this itself asks with.
    pub(crate) fn since(mut self, then: &Self) -> Self {
        for (name, calls) in &mut self.calls {
            *calls -= then.calls.get(name).copied().unwrap_or_default();
        }
        let ours = [
            "info",
            "hello",
            "client|setinfo",
            "client|setname",
            "select",
        ];
        self.calls
            .retain(|name, calls| *calls > 0 && !ours.contains(&name.as_str()));
        self.reads -= then.reads;
        self.processor -= then.processor;
        self
    }

    pub(crate) fn calls(&self) -> &BTreeMap<String, u64> {
        &self.calls
    }

    pub(crate) fn all_calls(&self) -> u64 {
        self.calls.values().sum()
    }

    pub(crate) fn call(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads
    }

    pub(crate) fn processor(&self) -> f64 {
        self.processor
    }
}
