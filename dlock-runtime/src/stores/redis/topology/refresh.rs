//! Asks the nodes which node has which slot.
//!
//! No answer is trusted for good: a node that is cut off continues with an old map. So a few
//! nodes are asked at a time, others the next time, and for each slot the most frequent answer
//! counts. If it is wrong, the node to which it leads says so or does not answer, and that is a
//! cause to ask again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::super::commands;
use super::super::locate::Locator;
use super::super::names::SLOTS;
use super::super::settings::FORM;
use super::super::socket::ask_once;
use super::map::View;
use super::nodes::Topology;
use crate::apart::all;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::outlast::outlast;
use crate::stores::address::Address;

/// How often the nodes are asked without a cause.
const PERIOD: Duration = Duration::from_secs(15);

/// The shortest pause between questions, and the longest while the answers stay the same. The
/// pause grows since the remaining nodes may have a failover to vote on.
const BETWEEN: Duration = Duration::from_millis(100);
const LONGEST_BETWEEN: Duration = Duration::from_secs(1);

/// How many nodes are asked at a time.
const ASKED: usize = 3;

/// If no answer has come after this time, other nodes are asked: during a failover, silent nodes
/// are often among those that are asked.
const SOON: Duration = Duration::from_secs(1);

/// How long the slowest node is awaited once most have answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

/// Keeps the map up to date.
pub(crate) async fn keep_up_to_date(topology: Arc<Topology>) {
    let Topology { map, time, .. } = &*topology;
    let mut changes = map.changes();
    let mut backoff = Backoff::new(BETWEEN, LONGEST_BETWEEN);
    loop {
        let calm_since = time.now();
        let _ = time.bound(time.after(PERIOD), map.demand.notified()).await;
        if calm_since + LONGEST_BETWEEN < time.now() {
            backoff.reset();
        }
        if let Err(error) = topology.refresh().await {
            outlast(|| tracing::debug!(target: "dlock::store", "{error}"));
        }
        let news = async {
            let _ = changes.changed().await;
            time.sleep(time.after(BETWEEN)).await;
        };
        let pause = time.after(backoff.pause(time));
        tokio::select! {
            biased;
            () = news => backoff.reset(),
            () = time.sleep(pause) => {}
        }
    }
}

impl Topology {
    /// Asks some of the nodes, and others if those do not answer. Fails if no node answers.
    async fn refresh(&self) -> Result<(), BackendError> {
        let mut nodes = self.map.nodes();
        for seed in &self.seeds {
            if !nodes.iter().any(|node| **node == *seed) {
                nodes.push(Arc::new(seed.clone()));
            }
        }
        nodes.sort_by_cached_key(|_| self.time.draw().to_bits());
        let (mut views, mut failed) = (Vec::new(), Vec::new());
        self.map.begin_refresh();
        let mut groups = nodes.chunks(ASKED).peekable();
        while let Some(some) = groups.next() {
            let patience = self.settings.patience();
            let asking = some.iter().map(|node| self.ask(node, patience));
            let mut asking: FuturesUnordered<_> = asking.collect();
            // If there are no other nodes, slow ones are awaited.
            let mut limit = match groups.peek() {
                Some(_) => self.time.after(SOON),
                None => Deadline::never(),
            };
            while let Ok(Some(answer)) = self.time.bound(limit, asking.next()).await {
                match answer {
                    Ok(view) => views.push(view),
                    Err(error) => failed.push(error),
                }
                limit = match views.len() {
                    0 => limit,
                    some if some > ASKED / 2 => limit.within(FOR_THE_OTHERS),
                    _ => limit.within(SOON),
                };
            }
            if !views.is_empty() {
                self.map.update(most_frequent(views));
                self.forget_idle();
                return Ok(());
            }
        }
        Err(self.nobody_answers(&failed))
    }

    /// At the start, asks every node that the URL names. One that is not a node of this cluster
    /// is a mistake that would otherwise show only in an outage.
    pub(crate) async fn discover(&self) -> Result<(), BackendError> {
        let patience = self.settings.patience();
        let asked = self.seeds.iter().map(|seed| self.ask(seed, patience));
        let answers = all(asked).await;
        let (mut views, mut failed) = (Vec::<(&Address, View)>::new(), Vec::new());
        for (seed, answer) in self.seeds.iter().zip(answers) {
            match answer {
                Ok(view) => {
                    let stranger = views.iter().find(|(_, other)| view.is_apart_from(other));
                    if let Some((other, _)) = stranger {
                        return Err(FORM.invalid(format!(
                            "{seed} and {other} know none of each other's nodes; name nodes of \
                             one cluster only"
                        )));
                    }
                    views.push((seed, view));
                }
                Err(error) if error.kind() != BackendErrorKind::Unavailable => return Err(error),
                Err(error) => failed.push(error),
            }
        }
        if views.is_empty() {
            return Err(self.nobody_answers(&failed));
        }
        for error in &failed {
            tracing::warn!(target: "dlock::store", "{error}; the other nodes in the URL answer");
        }
        let views = views.into_iter().map(|(_, view)| view);
        self.map.update(most_frequent(views.collect()));
        if self.map.masters().is_empty() {
            return Err(BackendError::unavailable(format!(
                "{}: no node has a slot; make a cluster of them with redis-cli --cluster create",
                self.map.endpoint
            )));
        }
        Ok(())
    }

    fn nobody_answers(&self, failed: &[BackendError]) -> BackendError {
        let said: Vec<_> = failed.iter().map(BackendError::to_string).collect();
        let config = |error: &&BackendError| error.kind() == BackendErrorKind::Config;
        let cause = failed.iter().find(config).or(failed.first());
        let kind = cause.map_or(BackendErrorKind::Unavailable, BackendError::kind);
        let (endpoint, said) = (&self.map.endpoint, said.join("; "));
        let error = BackendError::new(
            kind,
            format!("{endpoint}: none of its nodes answers: {said}"),
        );
        match cause {
            Some(cause) => error.with_cause(cause.clone()),
            None => error,
        }
    }

    /// Asks one node.
    async fn ask(&self, node: &Address, wait: Duration) -> Result<View, BackendError> {
        let Self { settings, time, .. } = self;
        let endpoint = Locator::Node(node.clone()).endpoint(settings);
        let deadline = time.after(wait);
        let asked = ask_once(
            &commands::slots(),
            node,
            settings,
            &endpoint,
            time,
            deadline,
        )
        .await;
        match asked?.pop() {
            Some(Value::ServerError(error)) => Err(endpoint.refused(&error)),
            answer => {
                let view = View::read(&answer.unwrap_or_default(), node);
                view.ok_or_else(|| endpoint.unexpected_answer())
            }
        }
    }
}

impl View {
    /// Whether both know nodes and have none in common: they are two clusters, and a lock would
    /// be sometimes in the one and sometimes in the other.
    fn is_apart_from(&self, other: &Self) -> bool {
        let (nodes, known) = (self.nodes(), other.nodes());
        let both_know = !nodes.is_empty() && !known.is_empty();
        both_know && !nodes.iter().any(|node| known.contains(node))
    }

    /// Reads the answer of the node `from` to `CLUSTER SLOTS`.
    fn read(answer: &Value, from: &Address) -> Option<Self> {
        let mut view = Self {
            owners: vec![None; SLOTS.into()],
            ..Self::default()
        };
        for range in items(answer)? {
            let [Value::Int(first), Value::Int(last), master, replicas @ ..] = items(range)? else {
                return None;
            };
            let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
            let slots = view.owners.get_mut(first..=last)?;
            if slots.is_empty() {
                return None;
            }
            // The owner is `None` while the address of the master is unknown.
            slots.fill(node(master, from)?);
            for replica in replicas {
                if let Some(replica) = node(replica, from)?
                    && !view.replicas.contains(&replica)
                {
                    view.replicas.push(replica);
                }
            }
        }
        Some(view)
    }
}

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

/// Reads a node's address. `Some(None)`: it is unknown.
fn node(value: &Value, from: &Address) -> Option<Option<Arc<Address>>> {
    let [host, Value::Int(port), ..] = items(value)? else {
        return None;
    };
    let host = match host {
        Value::Nil => "",
        Value::BulkString(host) => str::from_utf8(host).ok()?,
        _ => return None,
    };
    let port = u16::try_from(*port).ok()?;
    let address = from.beside(host, port).filter(|_| host != "?");
    Some(address.map(Arc::new))
}

/// For each slot, the owner that most nodes report.
fn most_frequent(mut views: Vec<View>) -> View {
    let first = views.swap_remove(0);
    if views.iter().all(|view| view.owners == first.owners) {
        return first;
    }
    views.push(first);
    let owner = |slot| {
        let said: Vec<_> = views.iter().filter_map(|view| view.owner(slot)).collect();
        let votes = |node: &&Arc<Address>| said.iter().filter(|other| *other == node).count();
        said.iter().copied().max_by_key(votes).cloned()
    };
    let replicas: HashSet<_> = views.iter().flat_map(|view| &view.replicas).collect();
    View {
        owners: (0..SLOTS).map(owner).collect(),
        replicas: replicas.into_iter().cloned().collect(),
        ..View::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Arc<Address> {
        Arc::new(Address::at("h", port).expect("a port"))
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, nodes: Vec<(Value, i64)>) -> Value {
        let nodes = nodes
            .into_iter()
            .map(|(host, port)| Value::Array(vec![host, Value::Int(port), text("id")]));
        let range = [Value::Int(first), Value::Int(last)];
        Value::Array(range.into_iter().chain(nodes).collect())
    }

    #[test]
    fn a_map_is_read() {
        let answer = Value::Array(vec![
            range(0, 99, vec![(text("a"), 1), (text("b"), 2)]),
            range(100, 200, vec![(text(""), 3), (Value::Nil, 4)]),
            range(300, 400, vec![(text("?"), 5)]),
            // These nodes listen only for TLS.
            range(500, 600, vec![(text("c"), 0), (text("d"), 0)]),
        ]);
        let view = View::read(&answer, &address(9)).expect("a map");
        let shown = |slot| view.owner(slot).map(ToString::to_string);
        for (slots, owner) in [([0, 99], "a:1"), ([100, 200], "h:3")] {
            assert_eq!(
                slots.map(shown),
                [Some(owner.to_owned()), Some(owner.to_owned())]
            );
        }
        assert_eq!([201, 300, 400, 500].map(shown), [const { None }; 4]);
        let replicas: Vec<_> = view.replicas.iter().map(ToString::to_string).collect();
        assert_eq!(replicas, ["b:2", "h:4"]);
        for nonsense in [
            Value::Okay,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 4, vec![(text("a"), 1)])]),
            Value::Array(vec![range(0, 16384, vec![(text("a"), 1)])]),
            Value::Array(vec![range(0, 1, vec![(text("a"), 70_000)])]),
            Value::Array(vec![range(0, 1, vec![])]),
        ] {
            assert!(View::read(&nonsense, &address(9)).is_none(), "{nonsense:?}");
        }
    }

    #[test]
    fn two_clusters_are_told_apart() {
        let view = |master: u16, replica: u16| View {
            owners: vec![Some(address(master)); 2],
            replicas: vec![address(replica)],
            ..View::default()
        };
        assert!(view(1, 2).is_apart_from(&view(3, 4)));
        // After a failover.
        assert!(!view(1, 2).is_apart_from(&view(2, 1)));
        // A node that does not know any other node yet.
        assert!(!view(1, 2).is_apart_from(&View::default()));
        assert!(!View::default().is_apart_from(&view(1, 2)));
    }

    #[test]
    fn most_nodes_are_believed() {
        let view = |ranges: &[(usize, usize, u16)]| {
            let mut view = View {
                owners: vec![None; SLOTS.into()],
                replicas: vec![address(7)],
                ..View::default()
            };
            for (first, last, port) in ranges {
                view.owners[*first..=*last].fill(Some(address(*port)));
            }
            view
        };
        let old = view(&[(0, 99, 1), (100, 199, 2)]);
        let new = view(&[(0, 49, 1), (50, 199, 2)]);
        for views in [
            vec![old.clone(), new.clone(), new.clone()],
            vec![new.clone(), old.clone(), new.clone()],
            vec![new.clone()],
        ] {
            assert_eq!(most_frequent(views).owners, new.owners);
        }
        let (one, other) = (view(&[(0, 0, 1)]), view(&[(5, 5, 1)]));
        let both = most_frequent(vec![one, other]);
        assert_eq!(both.owners, view(&[(0, 0, 1), (5, 5, 1)]).owners);
        assert_eq!(both.replicas, [address(7)]);
    }
}
