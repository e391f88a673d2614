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

use redis::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::attempt::Attempt;
use super::commands;
use super::connections::{Connections, Link};
use super::connector::Connector;
use super::errors::{self, Remedy, remedy};
use super::names::Keyspace;
use super::renewal::{RENEWED_AT_ONCE, read_renewal};
use super::scripts::Form;
use super::server_connections::One;
use super::servers::{Route, Servers};
use crate::backend::{Renewed, Request};
use crate::deadline::{Deadline, ManagerClock, Sending};
use crate::engine::time::Time;
use crate::store::Failure;

/// Renews leases on the master and its replicas. Its task ends with it.
pub(super) struct Confirmer {
    orders: mpsc::UnboundedSender<Order>,
    connections: Arc<Connections>,
    clock: ManagerClock,
    _task: DropGuard,
}

struct Order {
    requests: Vec<Request>,
    answer: oneshot::Sender<Vec<Confirmed>>,
}

type Confirmed = Result<Renewed, Failure>;

impl Confirmer {
    pub(super) fn start(connector: &Arc<Connector>, time: &Time) -> Self {
        let one = One::without_messages(connector);
        let connections = Arc::clone(&one.connections);
        let task = Task {
            servers: Servers {
                connector: Arc::clone(connector),
                route: Route::One(one),
            },
        };
        let (orders, inbox) = mpsc::unbounded_channel();
        let stopping = CancellationToken::new();
        let stopped = stopping.clone();
        time.spawn(async move {
            tokio::select! {
                () = task.serve(inbox) => {}
                () = stopped.cancelled() => {}
            }
        });
        Self {
            orders,
            connections,
            clock: connector.clock.clone(),
            _task: stopping.drop_guard(),
        }
    }

    /// The connection that it uses, which is none of the others'.
    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Renews each, where it is held, on the master and on enough replicas.
    pub(super) async fn renew(&self, requests: &[&Request], deadline: Deadline) -> Vec<Confirmed> {
        let mut all = Vec::with_capacity(requests.len());
        for requests in requests.chunks(RENEWED_AT_ONCE) {
            let (answer, confirmed) = oneshot::channel();
            let order = Order {
                requests: requests.iter().map(|&request| request.clone()).collect(),
                answer,
            };
            // If the task has ended, so does the wait.
            let _ = self.orders.send(order);
            match self.clock.bound(deadline, confirmed).await {
                Ok(Ok(confirmed)) => all.extend(confirmed),
                Ok(Err(_)) => {
                    let gone = || Failure::refused(errors::runtime_gone());
                    all.extend(requests.iter().map(|_| Err(gone())));
                }
                Err(_) => all.extend(requests.iter().map(|_| Err(Failure::not_sent()))),
            }
        }
        all
    }
}

struct Task {
    servers: Servers,
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
            let mut confirmed = match self.renew(&requests).await {
                Ok(confirmed) => confirmed,
                Err(failure) => requests.iter().map(|_| Err(failure.clone())).collect(),
            }
            .into_iter();
            for (count, answer) in answers {
                let _ = answer.send(confirmed.by_ref().take(count).collect());
            }
        }
    }

    async fn renew(&self, requests: &[Request]) -> Result<Vec<Confirmed>, Failure> {
        let settings = &self.servers.connector.settings;
        let wait = commands::wait(settings.replicas, settings.wait_limit());
        let deadline = Deadline::after(settings.request_timeout);
        let link = self.servers.link("", deadline).await?;
        let mut form = Form::Digest;
        loop {
            let renewals = requests.iter();
            let renewals =
                renewals.map(|request| commands::renew(&Keyspace::Server, form, request));
            let commands = commands::pipeline(renewals.chain([wait.clone()]));
            let at = Sending::now(deadline);
            let answers = link.connection.run_all(&commands, deadline).await;
            let attempt = &mut Attempt::default();
            let mut answers = self.servers.hear(&link, attempt, at.at, answers)?;
            let replicas = answers.pop().unwrap_or_default();
            if form == Form::Digest && answers.iter().any(is_unknown) {
                form = Form::Source;
                continue;
            }
            let mut confirmed = Vec::with_capacity(requests.len());
            for (request, answer) in requests.iter().zip(answers) {
                confirmed.push(match answer {
                    Value::ServerError(error) => {
                        let key = &request.key;
                        Err(self
                            .servers
                            .refused(&link, key, error, deadline, attempt)
                            .await)
                    }
                    answer => match read_renewal(&answer, at.at) {
                        Some(Renewed::Gone) => Ok(Renewed::Gone),
                        Some(renewed) => self.enough(&link, &replicas).map(|()| renewed),
                        None => Err(self.servers.nonsense(&link)),
                    },
                });
            }
            return Ok(confirmed);
        }
    }

    /// Whether so many replicas have what was written.
    fn enough(&self, link: &Link, replicas: &Value) -> Result<(), Failure> {
        let place = link.place();
        let needed = self.servers.connector.settings.replicas;
        match replicas {
            Value::Int(replicas) if replicas.unsigned_abs() >= needed as u64 => Ok(()),
            Value::Int(replicas) => {
                let limit = self.servers.connector.settings.wait_limit();
                let too_few = place.too_few_replicas(*replicas, needed, limit);
                Err(Failure::refused(too_few))
            }
            Value::ServerError(error) => Err(Failure::refused(place.refused(error))),
            _ => Err(self.servers.nonsense(link)),
        }
    }
}

fn is_unknown(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if remedy(error) == Remedy::SendScript)
}
