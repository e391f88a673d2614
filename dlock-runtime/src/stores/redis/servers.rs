//! One command and its answer: over which connection it goes, and what it means
//! that there is none, or an error.

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, ServerError, Value};

use super::attempt::Attempt;
use super::commands;
use super::connections::{Link, NoConnection};
use super::connector::Connector;
use super::errors::{Remedy, remedy};
use super::lost::Lost;
use super::names::Keyspace;
use super::scripts::Form;
use super::server_connections::One;
use super::topology::{Subscriptions, Topology};
use crate::backend::BackendError;
use crate::deadline::{Deadline, Sending};
use crate::store::{Applied, Cause, Failure, Next};

/// The servers of a store, as they are reached from any runtime.
pub(super) struct Servers {
    /// What they have in common, and how the one is connected to if there is one.
    pub(super) connector: Arc<Connector>,
    pub(super) route: Route,
}

/// Which of them has a lock.
pub(super) enum Route {
    One(One),
    /// The node of a cluster that has one slot, and votes with others.
    Voter {
        connections: One,
        topology: Arc<Topology>,
    },
    /// Each slot has a node.
    Cluster {
        topology: Arc<Topology>,
        subscriptions: Arc<Subscriptions>,
    },
}

/// What a server has said.
pub(super) struct Answer {
    pub(super) value: Value,
    /// Where it came from.
    pub(super) link: Link,
    /// When the command was sent.
    pub(super) sent_at: Instant,
}

impl Route {
    fn topology(&self) -> Option<&Arc<Topology>> {
        match self {
            Self::One(_) => None,
            Self::Voter { topology, .. } | Self::Cluster { topology, .. } => Some(topology),
        }
    }
}

impl From<NoConnection> for Failure {
    fn from(none: NoConnection) -> Self {
        match none {
            NoConnection::Failed(error) => Self::refused(error),
            NoConnection::TooLate => Self::not_sent(),
        }
    }
}

impl Servers {
    pub(super) fn space(&self) -> &Keyspace {
        &self.connector.settings.space
    }

    /// The connections, if one server has all locks.
    pub(super) fn of_one(&self) -> Option<&One> {
        match &self.route {
            Route::One(one)
            | Route::Voter {
                connections: one, ..
            } => Some(one),
            Route::Cluster { .. } => None,
        }
    }

    /// The connection of the runtime that this is called on, to where a lock is.
    pub(super) async fn link(&self, key: &str, deadline: Deadline) -> Result<Link, Failure> {
        let lane = match &self.route {
            Route::One(one)
            | Route::Voter {
                connections: one, ..
            } => one.connections.here().map_err(Failure::refused)?,
            Route::Cluster { topology, .. } => {
                return topology.link(self.space().slot(key), deadline).await;
            }
        };
        let connection = lane.connection(deadline).await?;
        Ok(Link::new(lane, connection))
    }

    /// Sends one command to where a lock is. `build` makes it in the form that the
    /// server can run.
    pub(super) async fn ask(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
        build: impl Fn(Form) -> Cmd + Sync,
    ) -> Result<Answer, Failure> {
        self.exchange(key, false, deadline, attempt, build).await
    }

    /// The same; `followed`: another task of this runtime is about to ask the same
    /// server.
    pub(super) async fn exchange(
        &self,
        key: &str,
        followed: bool,
        deadline: Deadline,
        attempt: &mut Attempt,
        build: impl Fn(Form) -> Cmd + Sync,
    ) -> Result<Answer, Failure> {
        let link = self.link(key, deadline).await?;
        let at = Sending::now(deadline);
        attempt.in_flight = Some(link.connection.clone());
        let command = build(Form::Digest);
        let answer = if followed {
            link.connection.run_with_the_next(command, at).await
        } else {
            link.connection.run(command, at).await
        };
        match self.hear(&link, attempt, at.at, answer)? {
            Value::ServerError(error) => {
                Box::pin(self.follow(key, deadline, link, attempt, error, &build)).await
            }
            value => Ok(Answer {
                value,
                link,
                sent_at: at.at,
            }),
        }
    }

    /// A script that the server does not know is sent in full, and what is ahead at
    /// the node that is about to get its slot is asked for there. Neither is a
    /// repetition: the command was not run.
    async fn follow(
        &self,
        key: &str,
        deadline: Deadline,
        mut link: Link,
        attempt: &mut Attempt,
        mut error: ServerError,
        build: &(impl Fn(Form) -> Cmd + Sync),
    ) -> Result<Answer, Failure> {
        let (mut form, mut ahead) = (Form::Digest, false);
        loop {
            match remedy(&error) {
                Remedy::SendScript if form == Form::Digest => form = Form::Source,
                Remedy::Ask if !ahead => {
                    let Some(node) = self.named_in(&error, &link) else {
                        return Err(self.refused(&link, key, error, deadline, attempt).await);
                    };
                    let lane = node.connections.here().map_err(Failure::refused)?;
                    let connection = lane.connection(deadline).await?;
                    (link, ahead) = (Link::new(lane, connection), true);
                }
                _ => return Err(self.refused(&link, key, error, deadline, attempt).await),
            }
            let at = Sending::now(deadline);
            attempt.in_flight = Some(link.connection.clone());
            let answer = if ahead {
                // The one right behind the other.
                let commands = commands::pipeline([commands::asking(), build(form)]);
                let answers = link.connection.run_all(&commands, deadline).await;
                answers.map(|answers| answers.into_iter().next_back().unwrap_or_default())
            } else {
                link.connection.run(build(form), at).await
            };
            match self.hear(&link, attempt, at.at, answer)? {
                Value::ServerError(again) => error = again,
                value => {
                    return Ok(Answer {
                        value,
                        link,
                        sent_at: at.at,
                    });
                }
            }
        }
    }

    /// The connections to the node that is about to get the slot.
    fn named_in(&self, error: &ServerError, link: &Link) -> Option<One> {
        match &self.route {
            Route::One(_) => None,
            Route::Voter { topology, .. } | Route::Cluster { topology, .. } => {
                let node = topology.named(error, link.connection.address())?;
                Some(node.one.clone())
            }
        }
    }

    /// With an answer, nothing is on its way any more. A connection that is broken,
    /// or on which nothing is heard, is replaced.
    pub(super) fn hear<T>(
        &self,
        link: &Link,
        attempt: &mut Attempt,
        sent_at: Instant,
        answer: Result<T, Lost>,
    ) -> Result<T, Failure> {
        let lost = match answer {
            Ok(answer) => {
                attempt.in_flight = None;
                if self.route.topology().is_some() {
                    link.connection.speaks();
                }
                return Ok(answer);
            }
            Err(lost) => lost,
        };
        let is_dead = match (&lost, &self.route) {
            (Lost::Broken(_) | Lost::Silent, _) => true,
            (Lost::TooLate, Route::One(_)) => false,
            // A renewal has less time than an answer may take, so that a dead node
            // would never be found silent by renewals alone.
            (Lost::TooLate, Route::Voter { .. } | Route::Cluster { .. }) => {
                link.connection.is_silent()
            }
        };
        if is_dead {
            link.discard();
        }
        if let Some(topology) = self.route.topology() {
            topology.refresh_soon();
        }
        let applied = match &lost {
            Lost::TooLate => Applied::OnItsWay,
            Lost::Broken(_) | Lost::Silent => {
                attempt.in_flight = None;
                Applied::Unknown { sent_at }
            }
        };
        let cause = match lost {
            Lost::Broken(error) => Cause::Error(link.place().unreachable(error)),
            Lost::Silent | Lost::TooLate => Cause::Silence,
        };
        Err(Failure {
            cause,
            next: Next::Pause,
            applied,
        })
    }

    /// What an error answer means. A script that fails is not undone.
    pub(super) async fn refused(
        &self,
        link: &Link,
        key: &str,
        error: ServerError,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Failure {
        let place = link.place();
        let (cause, next) = match remedy(&error) {
            Remedy::Foreign => {
                // Who leaves meanwhile may have left something.
                attempt.in_flight = Some(link.connection.clone());
                let foreign = self.foreign(link, key, deadline).await;
                attempt.in_flight = None;
                (foreign, Next::Stop)
            }
            Remedy::ForeignCounter => (place.foreign_counter(key), Next::Stop),
            Remedy::GiveUp | Remedy::SendScript => (place.refused(&error), Next::Stop),
            Remedy::Retry => (place.refused(&error), Next::Pause),
            Remedy::Reconnect => {
                link.discard();
                if let Some(topology) = self.route.topology() {
                    topology.refresh_soon();
                }
                (place.refused(&error), Next::Pause)
            }
            Remedy::Moved | Remedy::Ask | Remedy::Cluster => {
                (place.refused(&error), self.redirected(link, key, &error))
            }
        };
        let was_sent_on = matches!(remedy(&error), Remedy::Moved | Remedy::Ask);
        Failure {
            cause: Cause::Error(cause),
            next,
            applied: if was_sent_on {
                Applied::No
            } else {
                Applied::Answered
            },
        }
    }

    /// Another node has the slot of a lock, or none has.
    fn redirected(&self, link: &Link, key: &str, error: &ServerError) -> Next {
        match &self.route {
            // Nobody can follow.
            Route::One(_) => Next::Stop,
            // The next connection goes to where the slot is.
            Route::Voter { .. } => {
                let connector = link.lane.connector();
                if connector.redirected(error, link.connection.address()) {
                    link.discard();
                }
                Next::Pause
            }
            Route::Cluster { topology, .. } if remedy(error) == Remedy::Moved => {
                let slot = self.space().slot(key);
                topology.moved(slot, error, link.connection.address());
                Next::Now
            }
            Route::Cluster { topology, .. } => {
                topology.refresh_soon();
                Next::Pause
            }
        }
    }

    /// Says which of the keys is not dlock's.
    pub(super) async fn foreign(&self, link: &Link, key: &str, deadline: Deadline) -> BackendError {
        let types = commands::types(self.space(), key);
        let Ok(types) = link.connection.run_all(&types, deadline).await else {
            return link.place().foreign_lock(key);
        };
        let types: Vec<_> = types
            .into_iter()
            .map(|name| match name {
                Value::SimpleString(name) => name,
                _ => "value".to_owned(),
            })
            .collect();
        link.place().one_is_foreign(key, &types)
    }

    /// It was answered with what Redis does not give.
    pub(super) fn nonsense(&self, link: &Link) -> Failure {
        Failure {
            cause: Cause::Error(link.place().nonsense()),
            next: Next::Stop,
            applied: Applied::Answered,
        }
    }
}
