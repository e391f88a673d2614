//! `replicas=N`: a lease counts as far as N replicas know of it.
//!
//! Redis answers before its replicas have what was written. `WAIT` waits for
//! them, but keeps all that is sent over its connection waiting too, for its
//! whole timeout when replicas are missing. So it has a connection of its own,
//! and what goes there is renewals with a `WAIT` behind them: the ones show that
//! the server at the end of this connection has the locks, whichever server that
//! is by now, and the other that N replicas have all that it had written by
//! then. A grant counts when it was renewed in this way, and every later
//! renewal goes the same way. What comes while one `WAIT` is in flight goes out
//! together behind it.

use std::sync::Arc;

use redis::Value;

use super::batcher::How;
use super::commands;
use super::connection::Connection;
use super::connections::Connections;
use super::connector::Connector;
use super::errors::{RetryPolicy, classify};
use super::names::Keyspace;
use super::scripts;
use super::servers::{Attempt, Route, Servers, in_parts, read_renewal};
use super::timer::Sending;
use crate::backend::{Renewed, Request};
use crate::deadline::Deadline;
use crate::store::Failure;

/// Renews leases on the master and its replicas.
pub(super) struct Confirmer {
    servers: Servers,
    connections: Arc<Connections>,
}

impl Confirmer {
    pub(super) fn new(connector: &Arc<Connector>) -> Self {
        let connections = Arc::new(Connections::new(Arc::clone(connector), None));
        Self {
            servers: Servers {
                connector: Arc::clone(connector),
                route: Route::One(Arc::clone(&connections), None),
            },
            connections,
        }
    }

    /// The connection that it uses, which is none of the others'.
    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    pub(super) async fn renew_all(
        &self,
        requests: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        in_parts(requests, |request| self.renew(request, deadline)).await
    }

    /// Renews the lease, if it is held, on the master and on enough replicas.
    pub(super) async fn renew(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Renewed, Failure> {
        let (servers, attempt) = (&self.servers, &mut Attempt::default());
        // There is one for the whole process.
        let from = self.connections.of_manager().connection(deadline).await?;
        for in_full in [false, true] {
            let renewal = commands::renew(&Keyspace::Server, request);
            let renewal = scripts::in_form(renewal, in_full);
            let at = Sending::now(deadline);
            let answers = from.run(renewal, How::Confirmed, at).await;
            let [answer, replicas] = servers.hear(&from, attempt, at.at, answers)?;
            return match answer {
                Value::ServerError(error) if classify(&error) == RetryPolicy::SendScript => {
                    continue;
                }
                Value::ServerError(error) => {
                    let key = &request.key;
                    Err(servers.refused(&from, key, error, deadline, attempt).await)
                }
                answer => match read_renewal(&answer, at.at) {
                    Some(Renewed::Gone) => Ok(Renewed::Gone),
                    Some(renewed) => self.enough(&from, &replicas).map(|()| renewed),
                    None => Err(servers.nonsense(&from)),
                },
            };
        }
        Err(servers.nonsense(&from))
    }

    /// Whether so many replicas have what was written.
    fn enough(&self, from: &Connection, replicas: &Value) -> Result<(), Failure> {
        let (endpoint, settings) = (from.endpoint(), &self.servers.connector.settings);
        let needed = settings.replicas;
        match replicas {
            Value::Int(replicas) if replicas.unsigned_abs() >= needed as u64 => Ok(()),
            Value::Int(replicas) => {
                let too_few = endpoint.too_few_replicas(*replicas, needed, settings.wait_limit());
                Err(Failure::refused(too_few))
            }
            Value::ServerError(error) => Err(Failure::refused(endpoint.refused(error))),
            _ => Err(self.servers.nonsense(from)),
        }
    }
}
