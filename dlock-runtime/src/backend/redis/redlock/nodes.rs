//! The servers, and whether they answer.
//!
//! A node that is known not to answer is not asked, as long as a majority is
//! left: so it costs no time, and no vote is on its way to it that somebody
//! would have to give back. Whether it answers shows to a task of its own, which
//! is told of it whenever an operation was decided without the node.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::Cmd;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::super::attempt::Attempt;
use super::super::commands;
use super::super::config::Config;
use super::super::connection::Connection;
use super::super::connections::Lane;
use super::super::errors::Place;
use super::super::lost::Lost;
use super::super::scripts::Form;
use super::super::server_connections::One;
use super::super::servers::{Answer, Servers};
use super::super::settings::invalid;
use super::super::store::RedisStore;
use crate::backend::clock::{Backoff, Deadline, Sending};
use crate::backend::{Backend, BackendError, BackendErrorKind, Request};
use crate::engine::{Engine, Running};
use crate::store::LeftBehind;

/// How soon a node that works answers a `PING`, on a busy machine too.
const SOON: Duration = Duration::from_millis(300);

/// A node that was decided without is looked at this often at most.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// So many nodes a set can hold.
pub(crate) const MOST_NODES: usize = 64;

/// A set of nodes, by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSet(u64);

impl NodeSet {
    pub(super) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(super) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(super) fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MOST_NODES).filter(move |&node| self.contains(node))
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut set = Self::default();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

/// One of the servers.
pub(super) struct Node {
    engine: Engine<RedisStore>,
    pub(super) running: Arc<Running<RedisStore>>,
    pub(super) one: One,
    answers: watch::Sender<bool>,
    doubts: mpsc::Sender<Option<Connection>>,
    /// The last refusal that was told.
    complaint: Mutex<String>,
}

/// What looks after a node.
pub(super) struct Attendant {
    running: Arc<Running<RedisStore>>,
    lane: Arc<Lane>,
    answers: watch::Sender<bool>,
    doubts: mpsc::Receiver<Option<Connection>>,
}

impl Node {
    /// Starts on the current runtime. Nothing is connected yet.
    pub(super) fn start(config: Config) -> Result<(Self, Attendant), BackendError> {
        let engine = Engine::<RedisStore>::new(config);
        let running = Arc::clone(engine.begin()?);
        let one = running.store.servers.of_one();
        let one = one.ok_or_else(|| invalid("it names a cluster"))?.clone();
        let answers = watch::Sender::new(true);
        // One doubt is as good as many.
        let (doubts, inbox) = mpsc::channel(1);
        let attendant = Attendant {
            running: Arc::clone(&running),
            lane: Arc::clone(&one.lane),
            answers: answers.clone(),
            doubts: inbox,
        };
        let node = Self {
            engine,
            running,
            one,
            answers,
            doubts,
            complaint: Mutex::default(),
        };
        Ok((node, attendant))
    }

    pub(super) async fn stop(&self) {
        self.engine.stop().await;
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.running.store.servers
    }

    pub(super) fn place(&self) -> &Place {
        &self.servers().connector.place
    }

    /// Sends one command until it is answered. It must do no harm when it is run
    /// twice.
    pub(super) async fn ask(
        &self,
        key: &str,
        deadline: Deadline,
        build: impl Fn(Form) -> Cmd + Sync,
    ) -> Result<Answer, BackendError> {
        let mut call = self.running.call_until(deadline);
        loop {
            let deadline = call.begin()?;
            let asking = self.servers().ask(key, deadline, &mut call.attempt, &build);
            match asking.await {
                Ok(answer) => return Ok(answer),
                Err(failure) => call.failed(failure).await?,
            }
        }
    }

    /// Gives back what a request may have left here, in the background.
    pub(super) fn leave_behind(
        &self,
        vote: &Request,
        in_flight: Option<Connection>,
        unknown: Option<Instant>,
        unseen: bool,
    ) {
        let left = LeftBehind {
            in_flight: in_flight.is_some(),
            unknown,
            there: true,
        };
        let attempt = Attempt {
            in_flight,
            unseen,
            ..Attempt::default()
        };
        self.running.leave_behind(vote, attempt, &left);
    }

    /// Whether it answered when it was last looked at.
    pub(super) fn answers(&self) -> bool {
        *self.answers.borrow()
    }

    /// Resolves when it does not answer.
    pub(super) async fn is_silent(&self) {
        let mut answers = self.answers.subscribe();
        let _ = answers.wait_for(|answers| !answers).await;
    }

    /// Something was decided without this node, which was asked over this
    /// connection, or could not be.
    pub(super) fn doubt(&self, connection: Option<Connection>) {
        let _ = self.doubts.try_send(connection);
    }

    /// It refuses to vote, for a reason that somebody must see to. Said once.
    pub(super) fn complain(&self, error: &BackendError) {
        if error.kind() == BackendErrorKind::Unavailable {
            return;
        }
        let text = error.to_string();
        let mut complaint = self
            .complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *complaint != text {
            tracing::warn!(target: "dlock::store", "{text}; locks go on with the other nodes");
            *complaint = text;
        }
    }

    /// It was not there when the backend started.
    pub(super) fn is_missing(&self) {
        self.answers.send_replace(false);
        self.doubt(None);
    }
}

impl Attendant {
    /// Looks at the node whenever that is in doubt.
    pub(super) async fn attend(mut self, stopping: CancellationToken) {
        let work = async {
            while let Some(connection) = self.doubts.recv().await {
                self.look(connection).await;
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = stopping.cancelled() => {}
        }
    }

    async fn look(&self, connection: Option<Connection>) {
        let connector = &self.running.store.servers.connector;
        let place = &connector.place;
        let was_silent = !*self.answers.borrow();
        if was_silent || !self.answers_within(SOON).await {
            self.answers.send_replace(false);
            if !was_silent {
                tracing::warn!(target: "dlock::store", "{place} does not answer; locks go on with the other nodes");
            }
            let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
            // Long enough for a connection to be found dead, and replaced.
            let patience = connector.settings.request_timeout;
            connector.is_in_doubt();
            while !self.answers_within(patience).await {
                connector.is_in_doubt();
                tokio::time::sleep(backoff.pause()).await;
            }
            self.answers.send_replace(true);
            tracing::info!(target: "dlock::store", "{place} answers again");
        }
        // The node is well. If the connection is not, it is of no use.
        if let Some(connection) = connection
            && !pings(&connection, connector.settings.patience()).await
        {
            connection.discard();
        }
    }

    async fn answers_within(&self, patience: Duration) -> bool {
        let deadline = Deadline::after(patience);
        let lane = &self.lane;
        let Ok(connection) = lane.connection(deadline).await else {
            return false;
        };
        match connection
            .run(commands::ping(), Sending::now(deadline))
            .await
        {
            Ok(_) => true,
            Err(lost) => {
                if !matches!(lost, Lost::TooLate) {
                    lane.discard(&connection);
                }
                false
            }
        }
    }
}

async fn pings(connection: &Connection, patience: Duration) -> bool {
    let answer = connection.run_behind(commands::ping());
    matches!(tokio::time::timeout(patience, answer).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_nodes() {
        let one: NodeSet = [0, 2, 63].into_iter().collect();
        let other: NodeSet = [2, 4].into_iter().collect();
        assert_eq!(one.iter().collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(one.with(other).len(), 4);
        assert_eq!(one.without(other).iter().collect::<Vec<_>>(), [0, 63]);
        assert_eq!(one.both(other).iter().collect::<Vec<_>>(), [2]);
        assert!(one.contains(63) && !one.contains(1));
        assert!(NodeSet::default().is_empty());
    }
}
