//! Checks, at the start, whether the servers can be used.

use super::batcher::Lost;
use super::commands;
use super::connection::Connection;
use super::examine::MEMORY;
use super::names::tag_of;
use super::servers::{Notes, RedisStore};
use super::topology::Topology;
use crate::apart::all;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::store::{Cause, Failure};

impl RedisStore {
    /// Checks whether messages may be sent, and warns if the server may evict locks when its
    /// memory is full. In a cluster, `tag` leads to a slot of the node.
    pub(super) async fn check_server(
        &self,
        server: &Connection,
        tag: &str,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let message = commands::test_message(self.space(), self.process, tag);
        self.ask_over(server, tag, message, deadline).await?;
        let memory = self.settings(server, tag, MEMORY, deadline).await;
        if let Some(risk) = self.evicts(server, &memory) {
            tracing::warn!(target: "dlock::store", "{risk}");
        }
        Ok(())
    }

    /// Checks whether the node of a slot may be listened to. On a single server, a connection that
    /// may not listen fails at once; here the subscriptions come with the waiters, who would go on
    /// without.
    async fn check_listening(
        &self,
        topology: &Topology,
        slot: u16,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let Some(owner) = topology.map.owner(slot) else {
            return Ok(());
        };
        let node = topology.node(&owner);
        let listening = node.of_manager().connection(deadline).await?;
        let tag = tag_of(slot);
        let tried = topology.subscriptions.try_out(tag, &listening, deadline);
        let tried = tried.await;
        // Ends the subscription. It is opened again when somebody waits.
        listening.discard();
        match tried.map_err(Lost::refusal) {
            Ok(()) => Ok(()),
            Err(None) => Err(Failure::not_sent()),
            Err(Some(error)) => {
                let notes = &mut Notes::default();
                let refused = self.refused(&listening, tag, error, deadline, notes);
                Err(refused.await)
            }
        }
    }

    /// Finds the nodes and checks the masters. One that does not answer may come back or be
    /// replaced; one that refuses is a mistake in the configuration.
    pub(super) async fn check_cluster(
        &self,
        topology: &Topology,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        topology.discover().await.map_err(Failure::stop)?;
        let slots = topology.map.last_slots().into_iter();
        let checks = slots.map(|slot| async move {
            let node = topology.connection(slot, deadline).await?;
            let tag = tag_of(slot);
            self.check_server(&node, tag, deadline).await?;
            self.check_listening(topology, slot, deadline).await
        });
        let (mut works, mut failed) = (false, Vec::<BackendError>::new());
        for checked in all(checks).await {
            match checked.map_err(|failure| failure.cause) {
                Ok(()) => works = true,
                Err(Cause::Silence) => {
                    let patience = self.connector.settings.patience();
                    failed.push(topology.map.endpoint.silent(patience));
                }
                Err(Cause::Error(error) | Cause::NotReached(error)) => {
                    if error.kind() != BackendErrorKind::Unavailable {
                        return Err(Failure::stop(error));
                    }
                    failed.push(error);
                }
            }
        }
        if !works && let Some(error) = failed.pop() {
            return Err(Failure::refused(error));
        }
        for error in failed {
            tracing::warn!(target: "dlock::store", "{error}; locks go on with the other nodes");
        }
        Ok(())
    }
}
