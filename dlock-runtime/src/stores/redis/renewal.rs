//! Keeping locks.

use std::collections::HashMap;
use std::time::Instant;

use futures_util::future::join_all;
use redis::Value;

use super::attempt::Attempt;
use super::commands;
use super::servers::Servers;
use super::topology::Topology;
use crate::backend::{Renewed, Request};
use crate::deadline::Deadline;
use crate::store::Failure;

/// So many leases are extended in one go. More would keep the server from
/// answering others, and their answers from being read.
pub(super) const RENEWED_AT_ONCE: usize = 256;

impl Servers {
    async fn renew_one(&self, request: &Request, deadline: Deadline) -> Result<Renewed, Failure> {
        let build = |form| commands::renew(self.space(), form, request);
        let attempt = &mut Attempt::default();
        let answer = self.ask(&request.key, deadline, attempt, build).await?;
        read_renewal(&answer.value, answer.sent_at).ok_or_else(|| self.nonsense(&answer.link))
    }

    pub(super) async fn renew_together(
        &self,
        requests: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        let mut renewed = Vec::with_capacity(requests.len());
        for requests in requests.chunks(RENEWED_AT_ONCE) {
            let some = requests
                .iter()
                .map(|request| self.renew_one(request, deadline));
            renewed.extend(join_all(some).await);
        }
        renewed
    }

    /// The nodes side by side: one that is silent must not cost the leases on the
    /// others. What is asked of one node goes out together.
    pub(super) async fn renew_by_node(
        &self,
        topology: &Topology,
        requests: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        let mut of_nodes: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, request) in requests.iter().enumerate() {
            let node = topology.address(self.space().slot(&request.key));
            of_nodes.entry(node).or_default().push(index);
        }
        let of_nodes = of_nodes.into_values().map(|indices| async {
            let of_node: Vec<_> = indices.iter().map(|&index| requests[index]).collect();
            let renewed = self.renew_together(&of_node, deadline).await;
            indices.into_iter().zip(renewed).collect::<Vec<_>>()
        });
        let mut renewed: Vec<_> = join_all(of_nodes).await.into_iter().flatten().collect();
        renewed.sort_unstable_by_key(|(index, _)| *index);
        renewed.into_iter().map(|(_, renewed)| renewed).collect()
    }
}

/// The answer to a renewal that was sent then.
pub(super) fn read_renewal(answer: &Value, sent_at: Instant) -> Option<Renewed> {
    match answer {
        Value::Int(0) => Some(Renewed::Gone),
        Value::Int(_) => Some(Renewed::Extended {
            sent_at: sent_at.into(),
        }),
        _ => None,
    }
}
