//! Renewals. With `replicas=N`, a lease counts only as far as N replicas have it.
//!
//! Redis answers before its replicas have what was written. `WAIT` waits for them, but also
//! delays everything that is sent over its connection, for its whole timeout if replicas are
//! missing. So it has a connection of its own, over which renewals are sent with a `WAIT` behind
//! them. The renewals show that the server at the end of this connection has the locks, whichever
//! server that now is; the `WAIT` shows that N replicas have everything that this server had
//! written by then. A grant counts once it was renewed in this way, and every later renewal is
//! sent in the same way. Renewals that come while a `WAIT` is in flight are sent together after
//! it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::batcher::How;
use super::commands;
use super::names::Keyspace;
use super::servers::{Answer, Build, Notes, RedisStore, unexpected_answer};
use crate::apart::all;
use crate::backend::{Renewed, Request};
use crate::deadline::Deadline;
use crate::store::Failure;

/// The most leases that are extended in one go. More would delay the server's answers to others,
/// and reading the answers here.
const AT_ONCE: usize = 256;

/// A renewal waits for its answer for the ttl divided by this. Then there is time left to ask
/// over a new connection, even if other answers take longer.
const PART_OF_TTL: u32 = 4;

/// But it waits at least this long: a server may be busy for that long, and its connection must
/// not be closed for that.
const LEAST: Duration = Duration::from_millis(250);

/// Makes the command of a renewal.
struct Renewal<'a> {
    space: &'a Keyspace,
    request: &'a Request,
    since: Option<u64>,
}

impl Build for Renewal<'_> {
    fn build(&self) -> Cmd {
        let token = self.request.token().into();
        commands::renew(self.space, self.request, token, self.since)
    }

    /// Only the lock itself is there for certain. The key with the token may come later, and could
    /// not if it were there. The next renewal that finds the slot writes the token down.
    fn ahead(&self) -> Cmd {
        commands::renew(self.space, self.request, 0, self.since)
    }
}

impl RedisStore {
    /// Renews on all nodes concurrently, so that a silent node does not cost the leases on the
    /// others. The renewals for one node are sent together.
    pub(super) async fn renew_all(
        &self,
        requests: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        let mut of_nodes: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, request) in requests.iter().enumerate() {
            of_nodes
                .entry(self.node_of(&request.key))
                .or_default()
                .push(index);
        }
        let renewals = of_nodes.into_values().map(|of_node| async move {
            let mut renewed = Vec::with_capacity(of_node.len());
            for some in of_node.chunks(AT_ONCE) {
                let some = some.iter().map(|&index| async move {
                    (index, self.renew_one(requests[index], deadline).await)
                });
                renewed.extend(all(some).await);
            }
            renewed
        });
        let mut in_order: Vec<_> = requests.iter().map(|_| None).collect();
        for (index, renewed) in all(renewals).await.into_iter().flatten() {
            in_order[index] = Some(renewed);
        }
        in_order.into_iter().flatten().collect()
    }

    /// Renews the lease if it is held, and waits for the replicas that are needed.
    pub(super) async fn renew_one(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Renewed, Failure> {
        // A server that has the lock alone knows that by its own clock.
        let since = self.votes.then(|| request.held_since()).flatten();
        let space = self.space();
        let build = &Renewal {
            space,
            request,
            since,
        };
        let notes = &mut Notes::default();
        let asked = Instant::now();
        let (how, soon) = match self.confirming {
            // The `WAIT` that is in flight and its own may take as long as an answer may, so an
            // earlier end would condemn a connection whose replicas are slow.
            Some(_) => (How::Confirmed, deadline),
            None => {
                let part = request.ttl / PART_OF_TTL;
                (
                    How::WithTheNext,
                    deadline.min(Deadline::from(asked, part.max(LEAST))),
                )
            }
        };
        let renewing = self.exchange(&request.key, how, soon, notes, build);
        let answer = renewing.await;
        if let Some(silent) = &notes.in_flight
            && how != How::Confirmed
            && asked.elapsed() >= LEAST
        {
            silent.discard();
        }
        let answer = answer?;
        match answer.value {
            Value::Int(0) => return Ok(Renewed::Gone),
            Value::Int(_) => {}
            _ => return Err(unexpected_answer(&answer.from)),
        }
        if how == How::Confirmed {
            self.check_replicas(&answer)?;
        }
        Ok(Renewed::Extended {
            sent_at: answer.sent_at.into(),
        })
    }

    /// Checks that enough replicas have what was written.
    pub(super) fn check_replicas(&self, answer: &Answer) -> Result<(), Failure> {
        let (endpoint, settings) = (answer.from.endpoint(), &self.connector.settings);
        let needed = settings.replicas;
        match &answer.behind {
            Value::Int(replicas) if usize::try_from(*replicas).is_ok_and(|have| have >= needed) => {
                Ok(())
            }
            Value::Int(replicas) => {
                let too_few = endpoint.too_few_replicas(*replicas, needed, settings.wait_limit());
                Err(Failure::refused(too_few))
            }
            Value::ServerError(error) => Err(Failure::refused(endpoint.refused(error))),
            _ => Err(unexpected_answer(&answer.from)),
        }
    }
}
