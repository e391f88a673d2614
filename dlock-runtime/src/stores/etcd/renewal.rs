//! Renewing locks: that the lease lives is not enough, as an operator may have
//! deleted the key. It is read too, by a transaction that a member cut off from
//! the others cannot answer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use futures_util::future::join_all;

use super::errors::{self, Failed, Verdict};
use super::leases::Leases;
use super::members::Members;
use super::queue::Key;
use crate::backend::{Owner, Renewed};
use crate::deadline::Deadline;
use crate::store::{Applied, Due, Failure, Store};

/// Servers take 128 operations in a transaction (`--max-txn-ops`).
const READS_AT_ONCE: usize = 100;

type Answer = Result<Renewed, Failure>;

/// A lease that ends by itself, for a key that is to do so.
pub(crate) struct Fixed {
    owner: Owner,
    lease: i64,
    sent_at: Instant,
}

pub(super) async fn renew<S: Store<Record = Key>>(
    members: &Members,
    leases: &Leases,
    due: &mut [Due<S>],
    deadline: Deadline,
    fixed: &mut Option<Fixed>,
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = Vec::new();
    answers.resize_with(due.len(), || None);
    let mut shared = Vec::new();
    for (number, due) in due.iter_mut().enumerate() {
        match &mut due.record {
            None => answers[number] = Some(Ok(Renewed::Gone)),
            // To end at another time than the lease that it shares.
            Some(key) if due.request.ttl != key.ttl => {
                let (owner, ttl) = (due.request.owner, due.request.ttl);
                let ended = set_end(members, leases, owner, ttl, key, deadline, fixed).await;
                answers[number] = Some(ended);
            }
            Some(key) => shared.push((number, key.clone())),
        }
    }
    for chunk in shared.chunks(READS_AT_ONCE) {
        let renewed = renew_chunk(members, chunk, deadline).await;
        for ((number, _), answer) in chunk.iter().zip(renewed) {
            answers[*number] = Some(answer);
        }
    }
    let missing = || {
        let error = errors::nonsense(members.place());
        Err(Failed::new(Verdict::AskElsewhere, error, Applied::No).into())
    };
    let answers = answers.into_iter();
    answers
        .map(|answer| answer.unwrap_or_else(missing))
        .collect()
}

async fn renew_chunk(members: &Members, chunk: &[(usize, Key)], deadline: Deadline) -> Vec<Answer> {
    let keys_only = GetOptions::new().with_keys_only();
    let gets: Vec<_> = chunk
        .iter()
        .map(|(_, key)| TxnOp::get(key.name.key(), Some(keys_only.clone())))
        .collect();
    let txn = Txn::new().and_then(gets);
    let asked = members.time.now();
    // Soon enough that another member can be asked while the leases last.
    let shortest = chunk.iter().map(|(_, key)| key.ttl).min();
    let patience = members.patience_within(shortest.unwrap_or_default());
    let ask = |mut client: Client| async move { client.txn(txn).await };
    let read = members.ask_within(patience, deadline, ask);
    let (found, confirmed) = tokio::join!(read, confirm_leases(chunk, deadline));
    let found = match found {
        Ok(answer) => answer.value.op_responses(),
        Err(failed) => return all_failed(failed, chunk.len()),
    };
    let renewed = |((_, key), found): (&(usize, Key), TxnOpResponse)| {
        let there = matches!(&found, TxnOpResponse::Get(found) if found.kvs().first()
                .map(KeyValue::create_revision) == Some(key.create_revision));
        if !there {
            return Ok(Renewed::Gone);
        }
        // The end of one that has been moved is set, and not to be put off.
        let moved = key.moved.then_some(asked);
        let lease = key.lease();
        match moved.or_else(|| confirmed.get(&lease.id()).copied().flatten()) {
            Some(sent_at) => Ok(Renewed::Extended {
                sent_at: sent_at.into(),
            }),
            None if lease.is_gone() => Ok(Renewed::Gone),
            None => Err(Failed::not_sent().into()),
        }
    };
    chunk.iter().zip(found).map(renewed).collect()
}

/// Has each lease of these confirmed once, all at a time: when.
async fn confirm_leases(
    chunk: &[(usize, Key)],
    deadline: Deadline,
) -> HashMap<i64, Option<Instant>> {
    let attached = chunk.iter().filter(|(_, key)| !key.moved);
    let leases: HashMap<_, _> = attached
        .map(|(_, key)| (key.lease().id(), (key.lease(), key.ttl)))
        .collect();
    let confirmed = leases.into_iter().map(async |(id, (lease, ttl))| {
        let confirmed = lease.confirmed_lately(ttl, deadline).await;
        (id, confirmed)
    });
    join_all(confirmed).await.into_iter().collect()
}

/// Has the key end in the store by itself when the ttl has passed, with a lease
/// of its own: the shared one goes on for the others. A key that is attached to
/// another lease keeps its create-revision, and so its place.
async fn set_end(
    members: &Members,
    leases: &Leases,
    owner: Owner,
    ttl: Duration,
    key: &mut Key,
    deadline: Deadline,
    fixed: &mut Option<Fixed>,
) -> Answer {
    // Repeated, it is the same lease: the first put may be done after the second.
    let (lease, sent_at) = match fixed {
        Some(fixed) if fixed.owner == owner => (fixed.lease, fixed.sent_at),
        _ => {
            let (lease, sent_at) = leases.fixed(ttl, deadline).await?;
            *fixed = Some(Fixed {
                owner,
                lease,
                sent_at,
            });
            (lease, sent_at)
        }
    };
    let txn = Txn::new().when([key.is_there()]).and_then([key.put(lease)]);
    let put = |mut client: Client| async move { client.txn(txn).await };
    let answer = members.ask(deadline, put).await?;
    if !answer.value.succeeded() {
        return Ok(Renewed::Gone);
    }
    key.moved = true;
    key.ttl = ttl;
    Ok(Renewed::Extended {
        sent_at: sent_at.into(),
    })
}

/// One for each, as they were asked for together.
fn all_failed(failed: Failed, number: usize) -> Vec<Answer> {
    let failure = failed.of_a_read();
    let copy = |_| {
        Err(Failure {
            cause: failure.cause.clone(),
            ..failure
        })
    };
    (0..number).map(copy).collect()
}
