//! Whether the servers can be worked with.

use futures_util::future::join_all;
use redis::Value;

use super::commands;
use super::connection::Connection;
use super::durability;
use super::names::{Keyspace, tag_of};
use super::servers::{Attempt, Servers};
use super::topology::Topology;
use super::values::Process;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::store::{Cause, Failure, Next};

impl Servers {
    /// Whether messages may be sent, and what becomes of locks when the memory is
    /// full. In a cluster, `tag` leads to a slot of the node.
    pub(super) async fn check_server(
        &self,
        server: &Connection,
        process: Process,
        tag: &str,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let message = commands::test_message(self.space(), process, tag);
        let memory = commands::setting("maxmemory*");
        let questions = commands::pipeline([message, memory]);
        let attempt = &mut Attempt::default();
        let (answers, _) = self.ask_all(server, &questions, deadline, attempt).await?;
        let mut answers = answers.into_iter();
        if let Some(Value::ServerError(error)) = answers.next() {
            return Err(self.refused(server, tag, error, deadline, attempt).await);
        }
        // Servers that are rented out refuse `CONFIG`.
        let memory = answers.next().and_then(durability::settings);
        let memory = memory.unwrap_or_default();
        if let Some(policy) = memory.get("maxmemory-policy")
            && policy != "noeviction"
            && memory.get("maxmemory").is_none_or(|most| most != "0")
        {
            let of_its_own = match self.space() {
                Keyspace::Server => "server",
                Keyspace::Slots | Keyspace::Vote(_) => "cluster",
            };
            tracing::warn!(
                target: "dlock::store",
                "{} has maxmemory-policy {policy}: when its memory is full it drops locks that are \
                 held; set noeviction, or use a {of_its_own} of its own for locks",
                server.endpoint()
            );
        }
        Ok(())
    }

    /// Finds the nodes, and checks their masters. One that does not answer may come
    /// back, or be replaced; one that refuses is a mistake.
    pub(super) async fn check_cluster(
        &self,
        topology: &Topology,
        process: Process,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let stop = |error| Failure {
            next: Next::Stop,
            ..Failure::refused(error)
        };
        topology.discover().await.map_err(stop)?;
        let checks = topology
            .map
            .last_slots()
            .into_iter()
            .map(|slot| async move {
                let node = topology.connection(slot, deadline).await?;
                let tag = tag_of(slot);
                self.check_server(&node, process, tag, deadline).await
            });
        let mut failed: Vec<BackendError> = Vec::new();
        let mut works = false;
        for checked in join_all(checks).await {
            let error = match checked {
                Ok(()) => {
                    works = true;
                    continue;
                }
                Err(Failure { cause, .. }) => match cause {
                    Cause::Error(error) | Cause::NotReached(error) => error,
                    Cause::Silence => topology
                        .map
                        .endpoint
                        .silent(self.connector.settings.patience()),
                },
            };
            if error.kind() != BackendErrorKind::Unavailable {
                return Err(stop(error));
            }
            failed.push(error);
        }
        match failed.pop() {
            Some(error) if !works => Err(Failure::refused(error)),
            last => {
                for error in failed.iter().chain(&last) {
                    tracing::warn!(target: "dlock::store", "{error}; locks go on with the other nodes");
                }
                Ok(())
            }
        }
    }
}
