//! `recipe=lock-service`: the server's own Lock call does the waiting.
//!
//! Each attempt has a lease of its own, which is kept alive while the call waits
//! (the call does not do that) and is revoked when the attempt is given up: the
//! server deletes the key of a call that was cut off by its name alone (etcd issue
//! 22082), and an attempt after it must not have the same.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, GetOptions, KeyValue, LockOptions, SortOrder, SortTarget, Txn, TxnOp, TxnResponse,
};

use super::errors::Failed;
use super::members::{Answer, Members};
use super::names::LockName;
use super::queue::{Key, first, revision};
use crate::deadline::Deadline;
use crate::store::Failure;

/// When it is first looked whether somebody else has the lock, for a caller who
/// gives up soon.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// Between looks until the call has its place.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The Lock call of one attempt, which waits for its turn. Cut off when dropped.
pub(crate) enum LockCall {
    Waits(Pin<Box<dyn Future<Output = Result<(), Failed>> + Send>>),
    Answered,
}

/// Where the key of a call stands.
pub(super) enum Turn {
    /// The call says that it holds the lock, and the key is there.
    Comes { created: i64 },
    /// It waits behind somebody, as was seen at this revision.
    Behind { created: i64, seen_at: i64 },
    /// The key is not there any more.
    Lost,
}

impl LockCall {
    pub(super) fn new(members: &Arc<Members>, lock: &LockName, lease: i64) -> Self {
        let (members, lock) = (Arc::clone(members), lock.for_lock_service().to_owned());
        Self::Waits(Box::pin(async move { call(&members, &lock, lease).await }))
    }

    /// Waits for its answer.
    pub(super) async fn answer(&mut self) -> Result<(), Failed> {
        if let Self::Waits(call) = self {
            let answer = call.await;
            *self = Self::Answered;
            answer?;
        }
        Ok(())
    }

    /// Waits until the call has answered, or stands behind somebody.
    pub(super) async fn turn(
        &mut self,
        members: &Members,
        lock: &LockName,
        key: &Key,
        deadline: Deadline,
    ) -> Result<Turn, Failure> {
        let mut pause = FIRST_LOOK;
        loop {
            let limit = deadline.min(members.time.after(pause));
            if let Ok(answer) = members.time.bound(limit, self.answer()).await {
                answer?;
            }
            let found = look(members, lock, key, deadline).await?;
            let created = found.own.as_ref().map(KeyValue::create_revision);
            match (created, &self) {
                // The call may be answered although its key has ended (etcd issue 9921).
                (None, Self::Answered) => return Ok(Turn::Lost),
                (None, Self::Waits(_)) if key.create_revision != 0 => return Ok(Turn::Lost),
                (Some(created), Self::Answered) => return Ok(Turn::Comes { created }),
                (Some(created), Self::Waits(_)) if found.is_behind => {
                    let seen_at = found.seen_at;
                    return Ok(Turn::Behind { created, seen_at });
                }
                (_, Self::Waits(_)) => {}
            }
            if members.time.has_passed(deadline) {
                return Err(Failed::not_sent().into());
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The call itself. Once it is sent, it has no limit but its lease, as it waits.
async fn call(members: &Members, lock: &str, lease: i64) -> Result<(), Failed> {
    let limit = members.patience();
    let connecting = members.time.bound(limit, members.client()).await;
    let asked = match connecting {
        Ok(Ok(asked)) => asked,
        Ok(Err(error)) => return Err(members.failed(&error, None, limit).await),
        Err(_) => return Err(Failed::not_sent()),
    };
    let sent_at = members.time.now();
    let mut client = asked.client.clone();
    let options = LockOptions::new().with_lease(lease);
    match client.lock(lock, Some(options)).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let limit = members.patience();
            Err(members.failed(&error, Some((asked, sent_at)), limit).await)
        }
    }
}

struct Queue {
    own: Option<KeyValue>,
    /// Somebody else is the first.
    is_behind: bool,
    seen_at: i64,
}

/// Looks for the key, and who is the first.
async fn look(
    members: &Members,
    lock: &LockName,
    key: &Key,
    deadline: Deadline,
) -> Result<Queue, Failure> {
    let keys_only = GetOptions::new().with_keys_only();
    let own = TxnOp::get(key.name.key(), Some(keys_only.clone()));
    let oldest = keys_only
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1);
    let txn = Txn::new().and_then([own, TxnOp::get(lock.queue(), Some(oldest))]);
    let read = |mut client: Client| async move { client.txn(txn).await };
    let answer: Answer<TxnResponse> = members
        .ask(deadline, read)
        .await
        .map_err(Failed::of_a_read)?;
    let is_another = |first: KeyValue| first.key() != key.name.key().as_bytes();
    Ok(Queue {
        own: first(&answer.value, 0),
        is_behind: first(&answer.value, 1).is_some_and(is_another),
        seen_at: revision(&answer.value).unwrap_or(0),
    })
}
