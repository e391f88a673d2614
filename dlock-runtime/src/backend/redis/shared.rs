//! What the operations of a started backend have in common with its tasks.

use std::collections::HashMap;
use std::sync::Arc;

use redis::Cmd;

use super::call::Call;
use super::cluster::{Ears, Topology, Way};
use super::commands;
use super::connections::Lane;
use super::connector::Connector;
use super::names::Keyspace;
use super::process::Process;
use super::scripts::Form;
use super::server_connections::{One, Side};
use super::waiters::Waiters;
use crate::backend::{BackendError, Request};

/// What the operations have in common with the tasks of the backend.
pub(super) struct Shared {
    pub(super) connector: Arc<Connector>,
    pub(super) process: Process,
    pub(super) waiters: Arc<Waiters>,
    pub(super) servers: Servers,
    pub(super) release: Release,
}

/// Where the locks are.
pub(super) enum Servers {
    One(One),
    /// It is the node of a cluster that has this slot, and votes with others.
    Voter {
        connections: One,
        topology: Arc<Topology>,
        slot: u16,
    },
    /// Each slot has a node.
    Cluster {
        topology: Arc<Topology>,
        ears: Arc<Ears>,
    },
}

impl Servers {
    /// The masters of a cluster, as far as they are known.
    pub(super) fn masters(&self) -> Vec<String> {
        match self {
            Self::One(_) | Self::Voter { .. } => Vec::new(),
            Self::Cluster { topology, .. } => {
                let masters = topology.masters().into_iter();
                masters.map(|node| node.address.to_string()).collect()
            }
        }
    }
}

/// The command that gives a lease back. With a process, the owner may be in the
/// queue of that instead, or as well.
pub(super) type Release = fn(&Keyspace, Form, &Request, Option<Process>) -> Cmd;

impl Shared {
    /// An operation on a lock, on either side.
    pub(super) fn call(&self, side: Side, key: &str) -> Result<Call<'_>, BackendError> {
        match &self.servers {
            Servers::One(one) => Ok(Call::new(&self.connector, one.of(side)?)),
            Servers::Voter {
                connections,
                topology,
                slot,
            } => Ok(Call::to_voter(
                &self.connector,
                connections.of(side)?,
                (topology, *slot),
            )),
            Servers::Cluster { topology, .. } => {
                let slot = self.space().slot(key);
                Ok(Call::on_way(
                    &self.connector,
                    Way::new(topology, slot, side),
                ))
            }
        }
    }

    pub(super) fn space(&self) -> &Keyspace {
        &self.connector.settings.space
    }

    /// Whether the server can be worked with.
    pub(super) async fn check_server(&self, lane: &Arc<Lane>) -> Result<(), BackendError> {
        let Connector {
            settings,
            locator,
            place,
            ..
        } = &*self.connector;
        let names = ["maxmemory", "maxmemory-policy"];
        let mut call = Call::new(&self.connector, Arc::clone(lane));
        let build = |index: usize, _| match index.checked_sub(1) {
            None => match &settings.space {
                Keyspace::Server => commands::test_message(self.process),
                space => commands::test_message_in(space, self.process, ""),
            },
            Some(setting) => commands::setting(names[setting]),
        };
        let answers = call.ask_all(1 + names.len(), |_| "", build, None).await;
        let mut answers = answers.into_iter();
        answers.next().transpose()?;
        // Servers that are rented out refuse `CONFIG`.
        let found: HashMap<String, String> = answers
            .filter_map(|answer| redis::from_redis_value::<HashMap<_, _>>(answer.ok()?.value).ok())
            .flatten()
            .collect();
        let is = |name: &str, value: &str| found.get(name).is_some_and(|found| found == value);
        if let Some(policy) = found.get("maxmemory-policy")
            && policy != "noeviction"
            && !is("maxmemory", "0")
        {
            tracing::warn!(
                target: "dlock::store",
                "{place} has maxmemory-policy {policy}: when its memory is full it drops locks \
                 that are held; set noeviction, or use a server of its own for locks"
            );
        }
        if let Some(sentinels) = locator.sentinels() {
            sentinels.warn_of_their_number();
            if settings.replicas > 0 {
                let role = call.ask("", |_| commands::role()).await?;
                sentinels.warn_of_replicas(&role.value, settings.replicas);
            }
        }
        Ok(())
    }
}
