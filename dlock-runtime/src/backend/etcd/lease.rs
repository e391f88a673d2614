//! Renewing and giving back.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::time::Instant;

use super::core::Core;
use super::errors;
use super::held::Place;
use super::standing::recently;
use crate::backend::{BackendError, Released, Renewed, Request};

/// Servers take 128 operations in a transaction (`--max-txn-ops`).
const READS_AT_ONCE: usize = 100;

/// Renews leases: an answer for each, in order.
///
/// That the lease lives is not enough, as an operator may have deleted the key:
/// it is read too, by a transaction that a member cut off from the others cannot
/// answer.
pub(super) async fn renew(
    core: Arc<Core>,
    requests: Vec<Request>,
) -> Vec<Result<Renewed, BackendError>> {
    let places: Vec<_> = requests
        .iter()
        .map(|request| core.held.get(request.owner))
        .collect();
    let mut answers: Vec<Option<Result<Renewed, BackendError>>> = Vec::new();
    answers.resize_with(requests.len(), || None);
    let mut shared = Vec::new();
    for (number, (request, place)) in requests.iter().zip(&places).enumerate() {
        match place {
            None => answers[number] = Some(Ok(Renewed::Gone)),
            // To end at another time than the lease that it shares.
            Some(place) if request.ttl != place.ttl => {
                answers[number] = Some(set_end(&core, request, place).await);
            }
            Some(place) => shared.push((number, place)),
        }
    }
    for chunk in shared.chunks(READS_AT_ONCE) {
        for (number, answer) in renew_chunk(&core, &requests, chunk).await {
            answers[number] = Some(answer);
        }
    }
    let nonsense = || Err(errors::nonsense(core.members.place()));
    answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(nonsense))
        .collect()
}

async fn renew_chunk(
    core: &Arc<Core>,
    requests: &[Request],
    chunk: &[(usize, &Place)],
) -> Vec<(usize, Result<Renewed, BackendError>)> {
    let keys_only = GetOptions::new().with_keys_only();
    let gets: Vec<_> = chunk
        .iter()
        .map(|(_, place)| TxnOp::get(place.name.key(), Some(keys_only.clone())))
        .collect();
    let txn = Txn::new().and_then(gets);
    let asked = Instant::now();
    let deadline = asked + core.members.settings.request_timeout;
    // Soon enough that another member can be asked while the leases last.
    let shortest = chunk.iter().map(|(_, place)| place.ttl).min();
    let settings = &core.members.settings;
    let patience = settings.patience_within(shortest.unwrap_or_default());
    let ask = |mut client: Client| {
        let txn = txn.clone();
        async move { client.txn(txn).await }
    };
    let read = core.members.call_with(patience, asked, deadline, ask);
    let confirm = async {
        let attached = chunk.iter().filter(|(_, place)| !place.moved);
        // Each of them once.
        let leases: HashMap<_, _> = attached
            .map(|(_, place)| {
                (
                    place.tenancy.lease().id(),
                    (place.tenancy.lease(), place.ttl),
                )
            })
            .collect();
        let mut confirmed = HashMap::with_capacity(leases.len());
        for (id, (lease, ttl)) in leases {
            let since = lease.confirmed_since(recently(ttl), deadline).await;
            confirmed.insert(id, since);
        }
        confirmed
    };
    let (found, confirmed) = tokio::join!(read, confirm);
    let found = match found {
        Ok(answer) => answer.value.op_responses(),
        Err(failure) => {
            let failed = |(number, _): &(usize, _)| (*number, Err(failure.error.clone()));
            return chunk.iter().map(failed).collect();
        }
    };
    let silent = || Err(errors::silent(core.members.place(), asked.elapsed()));
    chunk
        .iter()
        .zip(found)
        .map(|(&(number, place), found)| {
            let there = matches!(&found, TxnOpResponse::Get(found) if found.kvs().first()
                .is_some_and(|found| found.create_revision() == place.create_revision));
            let owner = requests[number].owner;
            let lease = place.tenancy.lease();
            let answer = if !there {
                core.held.deleted(owner);
                Ok(Renewed::Gone)
            } else if place.moved {
                // Its end is set, and not to be put off.
                Ok(Renewed::Extended { sent_at: asked })
            } else {
                match confirmed.get(&lease.id()).copied().flatten() {
                    Some(sent_at) => {
                        let ends = Instant::now() + place.ttl;
                        core.held.update(owner, |place| place.ends = ends);
                        Ok(Renewed::Extended { sent_at })
                    }
                    None if lease.is_gone() => Ok(Renewed::Gone),
                    None => silent(),
                }
            };
            (number, answer)
        })
        .collect()
}

/// Has the key end in the store by itself when the request's ttl has passed,
/// with a lease of its own: the shared one goes on for the others. A key that
/// is attached to another lease keeps its create-revision, and so its place.
async fn set_end(
    core: &Arc<Core>,
    request: &Request,
    place: &Place,
) -> Result<Renewed, BackendError> {
    let (lease, sent_at) = core.leases.fixed(request.ttl).await?;
    let txn = Txn::new().when([is_held(place)]).and_then([TxnOp::put(
        place.name.key(),
        place.name.value(),
        Some(PutOptions::new().with_lease(lease)),
    )]);
    let answer = core
        .members
        .call(|mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        })
        .await?;
    if !answer.value.succeeded() {
        core.held.deleted(request.owner);
        return Ok(Renewed::Gone);
    }
    let (ttl, ends) = (request.ttl, Instant::now() + request.ttl);
    core.held.update(request.owner, |place| {
        place.moved = true;
        place.ttl = ttl;
        place.ends = ends;
    });
    Ok(Renewed::Extended { sent_at })
}

/// Gives a lock back, if it is held by this request.
pub(super) async fn release(core: Arc<Core>, request: Request) -> Result<Released, BackendError> {
    let Some(place) = core.held.get(request.owner) else {
        return Ok(Released::NotHeld);
    };
    let txn = Txn::new()
        .when([is_held(&place)])
        .and_then([TxnOp::delete(place.name.key(), None)]);
    let answer = core
        .members
        .call(|mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        })
        .await?;
    core.held.deleted(request.owner);
    // If it was sent twice, the first one may have done it.
    Ok(if answer.value.succeeded() || answer.repeated {
        Released::Released
    } else {
        Released::NotHeld
    })
}

/// Holds if nobody has deleted the key, and nobody has made it anew.
fn is_held(place: &Place) -> Compare {
    let key = place.name.key();
    Compare::create_revision(key, CompareOp::Equal, place.create_revision)
}
