//! `replicas=N`: a lease counts as far as N replicas know of it.
//!
//! Redis answers before its replicas have what was written. `WAIT` waits for
//! them, but keeps all that is sent over its connection waiting too, for its
//! whole timeout when replicas are missing. So it has a connection of its own,
//! and what goes there is a renewal with a `WAIT` behind it: the one shows that
//! the server at the end of this connection has the lock, whichever server that
//! is by now, and the other that N replicas have all that it had written by
//! then. A grant counts when it was renewed in this way, and every later
//! renewal goes the same way. What comes while one `WAIT` is in flight goes out
//! together behind it.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::call::{Answer, Call};
use super::commands;
use super::connections::{Connections, Lane};
use super::connector::Connector;
use super::errors;
use super::names::Keyspace;
use super::renewal::{RENEWED_AT_ONCE, read_renewal};
use super::shared::Shared;
use crate::backend::{BackendError, Renewed, Request};

/// Renews leases on the master and its replicas. Its task ends with it.
pub(super) struct Confirmer {
    orders: mpsc::UnboundedSender<Order>,
    connections: Arc<Connections>,
    task: AbortHandle,
}

struct Order {
    requests: Vec<Request>,
    answer: oneshot::Sender<Vec<Confirmed>>,
}

type Confirmed = Result<Renewed, BackendError>;

impl Confirmer {
    /// Starts the task on the current runtime.
    pub(super) fn start(shared: &Arc<Shared>, replicas: usize) -> Result<Self, BackendError> {
        let connections = Connections::new(Arc::clone(&shared.connector));
        let task = Task {
            lane: connections.here()?,
            connector: Arc::clone(&shared.connector),
            replicas,
        };
        let (orders, inbox) = mpsc::unbounded_channel();
        Ok(Self {
            orders,
            connections,
            task: tokio::spawn(task.serve(inbox)).abort_handle(),
        })
    }

    /// The connection that it uses, which is none of the others'.
    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Renews each, where it is held, on the master and on enough replicas.
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Confirmed> {
        let mut all = Vec::with_capacity(requests.len());
        for requests in requests.chunks(RENEWED_AT_ONCE) {
            let (answer, confirmed) = oneshot::channel();
            let order = Order {
                requests: requests.to_vec(),
                answer,
            };
            // If the task has ended, so does the wait.
            let _ = self.orders.send(order);
            match confirmed.await {
                Ok(confirmed) => all.extend(confirmed),
                Err(_) => all.extend(requests.iter().map(|_| Err(errors::runtime_gone()))),
            }
        }
        all
    }
}

impl Drop for Confirmer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    connector: Arc<Connector>,
    lane: Arc<Lane>,
    replicas: usize,
}

impl Task {
    async fn serve(self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        while let Some(first) = inbox.recv().await {
            let (mut requests, mut answers) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(order) = next {
                if !order.answer.is_closed() {
                    answers.push((order.requests.len(), order.answer));
                    requests.extend(order.requests);
                }
                next = (requests.len() < RENEWED_AT_ONCE)
                    .then(|| inbox.try_recv().ok())
                    .flatten();
            }
            let mut confirmed = self.renew(&requests).await.into_iter();
            for (count, answer) in answers {
                let _ = answer.send(confirmed.by_ref().take(count).collect());
            }
        }
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Confirmed> {
        let limit = self.connector.settings.wait_limit();
        let wait = commands::wait(self.replicas, limit);
        let mut call = Call::new(&self.connector, Arc::clone(&self.lane));
        let answers = call
            .ask_all(
                requests.len(),
                |index| &requests[index].key,
                |index, form| commands::renew(&Keyspace::Server, form, &requests[index]),
                Some(&wait),
            )
            .await;
        answers
            .into_iter()
            .map(|answer| self.read(answer?, limit))
            .collect()
    }

    fn read(&self, answer: Answer, limit: Duration) -> Confirmed {
        let place = &self.connector.place;
        let renewed = read_renewal(&answer).ok_or_else(|| place.nonsense())?;
        match (renewed, answer.behind) {
            (Renewed::Gone, _) => Ok(Renewed::Gone),
            (_, Some(Value::Int(replicas))) if replicas.unsigned_abs() >= self.replicas as u64 => {
                Ok(renewed)
            }
            (_, Some(Value::Int(replicas))) => {
                Err(place.too_few_replicas(replicas, self.replicas, limit))
            }
            (_, Some(Value::ServerError(error))) => Err(place.refused(&error)),
            _ => Err(place.nonsense()),
        }
    }
}
