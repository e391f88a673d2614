//! A backend that has been started: the nodes, and what its operations share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::commands;
use super::super::config::{Config, Found};
use super::super::errors;
use super::super::names::Keyspace;
use super::super::settings::{Settings, invalid};
use super::ballot::{majority_of, no_quorum};
use super::common::Common;
use super::held::Held;
use super::nodes::{Node, NodeSet};
use super::waiters::{Ear, Waiters};
use super::watch;
use crate::backend::clock::{Clock, Deadline, Sending};
use crate::backend::{BackendError, BackendErrorKind, TokenTier};

/// How long the start waits for the slower nodes once a majority has answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(500);

/// A backend between its start and its stop.
pub(crate) struct Quorum {
    pub(crate) common: Arc<Common>,
    stopping: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What a node that answered has said of itself.
struct Checked {
    /// Tells servers apart, unless this one does not say.
    run_id: Option<String>,
}

impl Quorum {
    /// Connects to the nodes, checks what they promise, and starts the tasks,
    /// all on the current runtime.
    pub(crate) async fn start(
        nodes: Vec<(Settings, Found)>,
        request_timeout: Duration,
    ) -> Result<Self, BackendError> {
        let clock = Clock::of_this_runtime().ok_or_else(errors::outside_runtime)?;
        let waiters = Waiters::new(nodes.len());
        let (nodes, attendants): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .enumerate()
            .map(|(number, (settings, found))| open(number, settings, found, &waiters))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .unzip();
        let common = Arc::new(Common {
            nodes,
            waiters,
            held: Held::default(),
            clock,
            request_timeout,
        });
        common.check_nodes().await?;

        let stopping = CancellationToken::new();
        let mut tasks = vec![tokio::spawn(watch::keep_watch(
            Arc::clone(&common),
            stopping.clone(),
        ))];
        for (number, attendant) in attendants.into_iter().enumerate() {
            tasks.push(tokio::spawn(attendant.attend(stopping.clone())));
            tasks.push(tokio::spawn(watch::listen(
                number,
                Arc::clone(&common.nodes[number].one.ear),
                Arc::clone(&common.waiters),
                stopping.clone(),
            )));
        }
        Ok(Self {
            common,
            stopping,
            tasks: Mutex::new(tasks),
        })
    }

    /// Waits until the nodes that answer have been told of all that was left
    /// behind.
    pub(crate) async fn settle(&self) {
        let nodes = self.common.nodes.iter().map(|node| async {
            tokio::select! {
                () = node.running.settle() => {}
                () = node.is_silent() => {}
            }
        });
        nodes.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        let nodes = self.common.nodes.iter().map(|node| node.stop());
        nodes.collect::<FuturesUnordered<_>>().collect::<()>().await;
        for task in self.tasks().drain(..) {
            task.abort();
        }
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Quorum {
    fn drop(&mut self) {
        for task in self.tasks().drain(..) {
            task.abort();
        }
    }
}

fn open(
    number: usize,
    settings: Settings,
    found: Found,
    waiters: &Arc<Waiters>,
) -> Result<(Node, super::nodes::Attendant), BackendError> {
    let ear = Ear {
        node: number,
        space: settings.space.clone(),
        waiters: Arc::clone(waiters),
    };
    Node::start(Config {
        settings,
        found,
        votes_with: Some(Arc::new(ear)),
    })
}

impl Common {
    pub(super) fn majority(&self) -> usize {
        majority_of(self.nodes.len())
    }

    /// All nodes.
    pub(super) fn all(&self) -> NodeSet {
        (0..self.nodes.len()).collect()
    }

    /// The nodes to ask: those that answer, or all if they are too few.
    pub(super) fn chosen(&self) -> NodeSet {
        let answer: NodeSet = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].answers())
            .collect();
        if answer.len() >= self.majority() {
            answer
        } else {
            self.all()
        }
    }

    /// Something was decided without these.
    pub(super) fn doubt(&self, nodes: NodeSet) {
        for node in nodes.iter() {
            self.nodes[node].doubt(None);
        }
    }

    /// How long a node may take to answer.
    pub(super) fn patience(&self) -> Duration {
        self.nodes[0].servers().connector.settings.patience()
    }

    /// How long a node may take to answer for a lease of this ttl: most of the
    /// ttl must be left when a majority has.
    pub(super) fn patience_for(&self, ttl: Duration) -> Duration {
        self.patience().min(ttl / 4)
    }

    /// What the tokens are worth: strict if those of every node are. A node that
    /// was never there counts against it.
    pub(super) fn tokens(&self) -> TokenTier {
        let of_nodes = self.nodes.iter();
        let of_nodes = of_nodes.map(|node| node.servers().connector.tokens.get());
        of_nodes.min().unwrap_or(TokenTier::None)
    }

    /// Whether the nodes can be worked with. A majority must answer, and none may
    /// refuse.
    async fn check_nodes(&self) -> Result<(), BackendError> {
        let mut questions: FuturesUnordered<_> = self
            .all()
            .iter()
            .map(|node| async move { (node, self.nodes[node].check().await) })
            .collect();
        let mut checked: Vec<(usize, Checked)> = Vec::new();
        let mut missing = self.all();
        let mut failed = Vec::new();
        let mut deadline = Deadline::after(self.request_timeout.mul_f64(1.5));
        while let Ok(Some((node, answer))) = self.clock.bound(deadline, questions.next()).await {
            match answer {
                Ok(answer) => {
                    missing.remove(node);
                    checked.push((node, answer));
                }
                Err(error) if error.kind() != BackendErrorKind::Unavailable => return Err(error),
                Err(error) => failed.push(error),
            }
            if checked.len() >= self.majority() {
                deadline = deadline.within(FOR_THE_OTHERS);
            }
        }
        drop(questions);
        if checked.len() < self.majority() {
            return Err(no_quorum(self.nodes.len(), checked.len(), failed.iter()));
        }
        if *self.nodes[0].servers().space() == Keyspace::Server {
            self.are_different(&checked)?;
        }
        for node in missing.iter() {
            let node = &self.nodes[node];
            tracing::warn!(
                target: "dlock::store",
                "{} does not answer; locks go on with the other nodes, and with it once it does",
                node.place()
            );
            node.is_missing();
        }
        Ok(())
    }

    /// A server that is reached by two names has two votes.
    fn are_different(&self, checked: &[(usize, Checked)]) -> Result<(), BackendError> {
        for (index, (node, this)) in checked.iter().enumerate() {
            let same = checked[..index]
                .iter()
                .find(|(_, other)| this.run_id.is_some() && this.run_id == other.run_id);
            if let Some((other, _)) = same {
                return Err(invalid(format!(
                    "{} and {} are one server; name each of them once",
                    self.nodes[*other].place(),
                    self.nodes[*node].place()
                )));
            }
        }
        Ok(())
    }
}

impl Node {
    async fn check(&self) -> Result<Checked, BackendError> {
        self.running.check().await?;
        let deadline = Deadline::after(self.servers().connector.settings.patience());
        let mut run_id = None;
        if let Ok(connection) = self.one.lane.connection(deadline).await
            && let Ok(answer) = connection
                .run(commands::identity(), Sending::now(deadline))
                .await
        {
            run_id = match answer {
                Value::BulkString(text) => run_id_in(&String::from_utf8_lossy(&text)),
                Value::VerbatimString { text, .. } => run_id_in(&text),
                // Some servers keep it to themselves.
                _ => None,
            };
        }
        Ok(Checked { run_id })
    }
}

fn run_id_in(info: &str) -> Option<String> {
    let mut lines = info.lines();
    let id = lines.find_map(|line| line.strip_prefix("run_id:"))?;
    Some(id.trim().to_owned())
}
