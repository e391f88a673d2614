//! Grants to owners of this process who do not wait: undone, or answered.
//!
//! A master that was cut off may serve for a moment after its replica has heard
//! the last of it. When that replica is promoted, its queues hold waiters who
//! have had their lock long ago, and it would grant to them one after the other,
//! for as long as a grant waits for an answer. Their process is alive and is told
//! of the first such grant: it then asks for all the places that it has in that
//! queue, and has those undone that it does not know, the grant with them.
//!
//! So who was served long ago costs those who wait two round trips for each
//! process, and it costs nothing to look for them.
//!
//! Or the owner holds the lock, by the word of the master before. Then the grant
//! is what keeps it: a renewal answers it at once, as the holder's next one may
//! come too late for that.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::commands;
use super::scripts::CLAIM;
use super::server_connections::Side;
use super::shared::Shared;
use super::values::owner_of;
use super::waiters::Unexpected;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Request};
use crate::key::Shown;

/// So many places are asked for, and so many are undone, in one command: the
/// server does nothing else meanwhile. If there are more, the next of them is
/// granted the lock, and it goes on from there.
const AT_ONCE: usize = 500;

/// Sees to what owners are granted who do not wait, until the backend stops.
pub(super) async fn see_to_unexpected(shared: Arc<Shared>, stopping: CancellationToken) {
    let work = async {
        let (mut undone, mut answered) = (FuturesUnordered::new(), FuturesUnordered::new());
        loop {
            tokio::select! {
                unexpected = shared.waiters.unexpected() => {
                    let Unexpected { strangers, holders } = unexpected;
                    let of_keys = strangers.into_iter();
                    undone.extend(of_keys.map(|(key, granted)| disown(&shared, key, granted)));
                    let of_holders = holders.into_iter();
                    answered.extend(of_holders.map(|holder| answer(&shared, holder)));
                }
                Some(()) = undone.next() => {}
                Some(()) = answered.next() => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = stopping.cancelled() => {}
    }
}

/// Without an answer, the grant ends by itself soon.
async fn disown(shared: &Shared, key: Arc<str>, granted: Vec<String>) {
    let start = Instant::now();
    let deadline = Deadline::from(start, CLAIM);
    let mut entries = match places(shared, &key, deadline).await {
        Ok(entries) => entries,
        Err(error) => {
            tracing::debug!(target: "dlock::store", "the queue of `{}` was not looked at: {error}", Shown(&key));
            Vec::new()
        }
    };
    entries.retain(|entry| owner_of(entry).is_some_and(|owner| !shared.waiters.knows(&key, owner)));
    entries.extend(granted);
    let undone = async {
        let mut call = shared.call(Side::Manager, &key)?;
        call.restart(start, deadline);
        call.ask(&key, |form| {
            commands::disown(shared.space(), form, &key, &entries)
        })
        .await
    };
    match undone.await {
        Ok(answer) => tracing::debug!(
            target: "dlock::store",
            "lock `{}` was granted to {} who do not wait for it any more; the server had {:?} of \
             their places and grants",
            Shown(&key),
            entries.len(),
            answer.value
        ),
        Err(error) => tracing::debug!(
            target: "dlock::store",
            "a grant of `{}` to somebody who does not wait for it any more stands until it ends: \
             {error}",
            Shown(&key)
        ),
    }
}

/// Extends the lease of a holder where it is granted its own lock. It changes
/// nothing if the lock has gone back meanwhile.
async fn answer(shared: &Shared, holder: Request) {
    let key = &holder.key;
    let renewed = async {
        let mut call = shared.call(Side::Manager, key)?;
        call.restart(Instant::now(), Deadline::after(CLAIM));
        call.ask(key, |form| commands::renew(shared.space(), form, &holder))
            .await
    };
    // Who loses the lock by that is told by its own renewals.
    if let Err(error) = renewed.await {
        tracing::debug!(
            target: "dlock::store",
            "lock `{}` was granted to its holder once more, which was not answered: {error}",
            Shown(key)
        );
    }
}

/// The entries of this process in the queue of a lock.
async fn places(
    shared: &Shared,
    key: &str,
    deadline: Deadline,
) -> Result<Vec<String>, BackendError> {
    let mut call = shared.call(Side::Manager, key)?;
    call.restart(Instant::now(), deadline);
    let answer = call
        .ask(key, |form| {
            commands::places(shared.space(), form, key, shared.process, AT_ONCE)
        })
        .await?;
    redis::from_redis_value(answer.value).map_err(|_| call.nonsense())
}
