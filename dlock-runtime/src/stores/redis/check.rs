//! Whether the servers can be worked with.

use std::collections::HashMap;

use futures_util::future::join_all;
use redis::Value;

use super::attempt::Attempt;
use super::commands;
use super::connections::Link;
use super::names::{Keyspace, tag_of};
use super::process::Process;
use super::servers::Servers;
use super::topology::Topology;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::{Deadline, Sending};
use crate::store::{Cause, Failure, Next};

const SETTINGS: [&str; 2] = ["maxmemory", "maxmemory-policy"];

impl Servers {
    /// Whether messages may be sent, and what becomes of locks when the memory is
    /// full. In a cluster, `tag` leads to a slot of the node.
    pub(super) async fn check_server(
        &self,
        link: &Link,
        process: Process,
        tag: &str,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let message = match self.space() {
            Keyspace::Server => commands::test_message(process),
            space => commands::test_message_in(space, process, tag),
        };
        let settings = SETTINGS.map(commands::setting);
        let questions = commands::pipeline([message].into_iter().chain(settings));
        let at = Sending::now(deadline);
        let answers = link.connection.run_all(&questions, deadline).await;
        let attempt = &mut Attempt::default();
        let mut answers = self.hear(link, attempt, at.at, answers)?.into_iter();
        if let Some(Value::ServerError(error)) = answers.next() {
            return Err(self.refused(link, tag, error, deadline, attempt).await);
        }
        // Servers that are rented out refuse `CONFIG`.
        let found: HashMap<String, String> = answers
            .filter_map(|answer| redis::from_redis_value::<HashMap<_, _>>(answer).ok())
            .flatten()
            .collect();
        let is = |name: &str, value: &str| found.get(name).is_some_and(|found| found == value);
        if let Some(policy) = found.get("maxmemory-policy")
            && policy != "noeviction"
            && !is("maxmemory", "0")
        {
            let of_its_own = match self.space() {
                Keyspace::Server => "server",
                Keyspace::Slots | Keyspace::Vote(_) => "cluster",
            };
            tracing::warn!(
                target: "dlock::store",
                "{} has maxmemory-policy {policy}: when its memory is full it drops locks that are \
                 held; set noeviction, or use a {of_its_own} of its own for locks",
                link.place()
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
        let checks = topology.last_slots().into_iter().map(|slot| async move {
            let link = topology.link(slot, deadline).await?;
            self.check_server(&link, process, tag_of(slot), deadline)
                .await
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
                    Cause::Silence => topology.place.silent(self.connector.settings.patience()),
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
