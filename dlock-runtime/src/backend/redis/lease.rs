//! Keeping a lock, and giving it back.

use std::collections::HashMap;
use std::time::Instant;

use futures_util::future::join_all;
use redis::Value;

use super::cluster::Topology;
use super::commands;
use super::core::Core;
use super::give_back::GiveBack;
use super::renewal::{RENEWED_AT_ONCE, read_renewal};
use super::shared::Servers;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Released, Renewed, Request};

impl Core {
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        if let Some(confirmer) = &self.confirmer {
            return confirmer.renew(requests).await;
        }
        if let Servers::Cluster { topology, .. } = &self.shared.servers {
            return self.renew_in_cluster(topology, requests).await;
        }
        let mut renewed = Vec::with_capacity(requests.len());
        for requests in requests.chunks(RENEWED_AT_ONCE) {
            let mut call = match self.call("") {
                Ok(call) => call,
                Err(error) => {
                    renewed.extend(requests.iter().map(|_| Err(error.clone())));
                    continue;
                }
            };
            let answers = call
                .ask_all(
                    requests.len(),
                    |index| &requests[index].key,
                    |index, form| commands::renew(self.shared.space(), form, &requests[index]),
                    None,
                )
                .await;
            renewed.extend(
                answers
                    .into_iter()
                    .map(|answer| read_renewal(&answer?).ok_or_else(|| call.nonsense())),
            );
        }
        renewed
    }

    /// The nodes side by side: one that is silent must not cost the leases on the
    /// others. What is asked of one node goes out together.
    async fn renew_in_cluster(
        &self,
        topology: &Topology,
        requests: &[Request],
    ) -> Vec<Result<Renewed, BackendError>> {
        let shortest = requests.iter().map(|request| request.ttl).min();
        let patience = self.shared.connector.settings.patience();
        let patience = patience.min(shortest.unwrap_or_default() / 4);
        let mut of_nodes: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, request) in requests.iter().enumerate() {
            let slot = self.shared.space().slot(&request.key);
            of_nodes
                .entry(topology.address(slot))
                .or_default()
                .push(index);
        }
        let of_nodes = of_nodes.into_values().map(|indices| async move {
            let mut renewed = Vec::with_capacity(indices.len());
            for indices in indices.chunks(RENEWED_AT_ONCE) {
                let deadline = Deadline::after(patience);
                let some = indices.iter().map(|&index| async move {
                    (index, self.renew_one(&requests[index], deadline).await)
                });
                renewed.extend(join_all(some).await);
            }
            renewed
        });
        let mut renewed: Vec<_> = join_all(of_nodes).await.into_iter().flatten().collect();
        renewed.sort_unstable_by_key(|(index, _)| *index);
        renewed.into_iter().map(|(_, renewed)| renewed).collect()
    }

    async fn renew_one(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Renewed, BackendError> {
        let mut call = self.call(&request.key)?;
        call.restart(Instant::now(), deadline);
        let space = self.shared.space();
        let answer = call
            .ask(&request.key, |form| commands::renew(space, form, request))
            .await?;
        read_renewal(&answer).ok_or_else(|| call.nonsense())
    }

    pub(super) async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        // Before it is sent: what is granted to this owner from now on is not its own.
        self.shared.waiters.holders.leave(request.owner);
        let mut call = self.call(&request.key)?;
        if request.is_followed() {
            call.is_followed();
        }
        let answer = call
            .ask(&request.key, |form| {
                (self.shared.release)(self.shared.space(), form, request, None)
            })
            .await?;
        if let Some(unanswered) = self.unknown.take(request.owner, Instant::now) {
            self.hub.give_back(GiveBack {
                request: request.clone(),
                behind: None,
                unanswered: Some(unanswered),
                release: self.shared.release,
            });
        }
        match answer.value {
            Value::Int(1) => Ok(Released::Released),
            // The first release was run, and its answer lost.
            Value::Int(_) if answer.repeated => Ok(Released::Released),
            Value::Int(_) => Ok(Released::NotHeld),
            _ => Err(call.nonsense()),
        }
    }
}
