//! Looking at locks: what a majority of the nodes agrees on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::super::commands;
use super::ballot::no_quorum;
use super::common::Common;
use super::nodes::{Node, NodeSet};
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, HolderInfo, LockInfo, Mode};

/// How long the slower nodes are waited for once a majority has answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

impl Common {
    pub(crate) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let seen = self
            .ask_for_locks(async |node| {
                let lock = node.running.inspect(key).await?;
                Ok(lock.into_iter().collect())
            })
            .await?;
        Ok(self.agreed(seen).await.into_iter().next())
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let seen = self
            .ask_for_locks(async |node| node.running.list(prefix).await)
            .await?;
        Ok(self.agreed(seen).await)
    }

    /// What the nodes know, of at least a majority.
    async fn ask_for_locks<'n, F>(
        &'n self,
        ask: impl Fn(&'n Node) -> F,
    ) -> Result<Seen, BackendError>
    where
        F: Future<Output = Result<Vec<LockInfo>, BackendError>>,
    {
        let mut silent = self.chosen();
        let mut questions: FuturesUnordered<_> = silent
            .iter()
            .map(|node| {
                let answer = ask(&self.nodes[node]);
                async move { (node, answer.await) }
            })
            .collect();
        let mut seen = Seen::default();
        let mut failed = Vec::new();
        let mut deadline = Deadline::after(self.request_timeout);
        while let Ok(Some((node, answer))) = self.clock.bound(deadline, questions.next()).await {
            match answer {
                Ok(locks) => {
                    silent.remove(node);
                    seen.add(node, locks);
                }
                Err(error) => failed.push(error),
            }
            if seen.nodes.len() >= self.majority() {
                deadline = deadline.within(FOR_THE_OTHERS);
            }
        }
        drop(questions);
        self.doubt(silent);
        if seen.nodes.len() < self.majority() {
            return Err(no_quorum(self.nodes.len(), seen.nodes.len(), failed.iter()));
        }
        Ok(seen)
    }

    /// The locks that somebody has a majority of, or may have, as far as the
    /// nodes are known.
    async fn agreed(&self, seen: Seen) -> Vec<LockInfo> {
        let unknown = self.nodes.len() - seen.nodes.len();
        let mut locks: Vec<LockInfo> = seen
            .locks
            .into_iter()
            .filter_map(|(key, holders)| {
                let held: Vec<_> = holders
                    .into_iter()
                    .filter(|(_, holder)| holder.nodes + unknown >= self.majority())
                    .collect();
                let mode = held.first()?.1.mode;
                let holders = held
                    .into_iter()
                    .map(|(owner, holder)| HolderInfo::new(owner, holder.expires_in))
                    .collect();
                Some(LockInfo::new(key, mode, holders, 0))
            })
            .collect();
        self.count_waiters(&mut locks, seen.nodes).await;
        locks
    }

    /// Who waits listens at every node; the one with the most has lost none.
    async fn count_waiters(&self, locks: &mut [LockInfo], nodes: NodeSet) {
        if locks.is_empty() {
            return;
        }
        let keys: Vec<_> = locks.iter().map(|lock| lock.key.clone()).collect();
        let deadline = Deadline::after(self.patience());
        let counts = nodes
            .iter()
            .map(|node| self.nodes[node].listeners(&keys, deadline));
        let mut counts: FuturesUnordered<_> = counts.collect();
        while let Some(counts) = counts.next().await {
            for (lock, count) in locks.iter_mut().zip(counts) {
                lock.waiters = lock.waiters.max(count);
            }
        }
    }
}

/// What the nodes know.
#[derive(Default)]
struct Seen {
    nodes: NodeSet,
    /// By key, and by owner.
    locks: BTreeMap<String, BTreeMap<String, Holder>>,
}

struct Holder {
    mode: Mode,
    nodes: usize,
    /// The longest of what the nodes say.
    expires_in: Option<Duration>,
}

impl Seen {
    fn add(&mut self, node: usize, locks: Vec<LockInfo>) {
        self.nodes.insert(node);
        for lock in locks {
            let holders = self.locks.entry(lock.key).or_default();
            for HolderInfo { owner, expires_in } in lock.holders {
                let holder = holders.entry(owner).or_insert(Holder {
                    mode: lock.mode,
                    nodes: 0,
                    expires_in,
                });
                holder.nodes += 1;
                holder.expires_in = holder.expires_in.max(expires_in);
            }
        }
    }
}

impl Node {
    /// How many processes listen for the release of each of these locks, as far
    /// as the node says.
    async fn listeners(&self, keys: &[String], deadline: Deadline) -> Vec<usize> {
        let keys = || keys.iter().map(String::as_str);
        let build = |_| commands::listeners(self.servers().space(), keys());
        let Ok(answer) = self.ask("", deadline, build).await else {
            return Vec::new();
        };
        let Value::Array(counts) = answer.value else {
            return Vec::new();
        };
        // Channels and counts in turn.
        let counts = counts.into_iter().skip(1).step_by(2);
        counts
            .map(|count| match count {
                Value::Int(count) => usize::try_from(count).unwrap_or(0),
                _ => 0,
            })
            .collect()
    }
}
