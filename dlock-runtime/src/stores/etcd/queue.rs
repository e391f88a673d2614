//! A request's key in the queue for a lock, and the transactions about it.
//!
//! Nothing is believed because a watch said so: what counts is a transaction that
//! finds the own key in its place and nobody ahead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, ResponseHeader, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::errors::{self, Failed};
use super::leases::{Lease, LeaseRef};
use super::members::Members;
use super::names::LockName;
use super::places::Name;
use crate::backend::{Mode, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Failure};

/// Servers take 128 operations in a transaction (`--max-txn-ops`).
pub(super) const KEYS_AT_ONCE: usize = 100;

/// What is asked: for the lock, and if the request `waits` for a place in its queue.
pub(super) struct Question<'r> {
    pub(super) request: &'r Request,
    pub(super) lock: LockName,
    pub(super) waits: bool,
    pub(super) deadline: Deadline,
}

/// A request's key, and the right to its name and lease.
#[derive(Clone)]
pub(crate) struct Key {
    pub(super) name: Arc<Name>,
    /// Of the lease that it was first attached to.
    pub(super) lease_ref: Arc<LeaseRef>,
    /// 0 for as long as it is not known to be there.
    pub(super) create_revision: i64,
    /// Of the lock's lease.
    pub(super) ttl: Duration,
    /// A lease of its own, which ends by itself, and when that was asked for.
    pub(super) fixed: Option<(i64, Instant)>,
    /// It has been attached to that.
    pub(super) moved: bool,
}

/// Where a request stands in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// It holds the lock.
    First,
    /// Somebody is ahead.
    Behind(Ahead),
    /// Somebody holds the lock, and the key was not written.
    NotWritten,
    /// Its key is not there any more, or it is somebody else's.
    Nowhere,
}

/// The last of those who are ahead.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) key: String,
    pub(super) created: i64,
    /// The revision at which it was seen there.
    pub(super) seen_at: i64,
}

impl Key {
    pub(super) fn new(name: Arc<Name>, lease_ref: LeaseRef, ttl: Duration) -> Self {
        Self {
            name,
            lease_ref: Arc::new(lease_ref),
            create_revision: 0,
            ttl,
            fixed: None,
            moved: false,
        }
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        self.lease_ref.lease()
    }

    /// Writes it. With another lease than before, it keeps its create-revision.
    pub(super) fn put(&self, lease: i64) -> TxnOp {
        let options = PutOptions::new().with_lease(lease);
        TxnOp::put(self.name.key(), self.name.value(), Some(options))
    }

    /// Holds if nobody has deleted the key, and nobody has made it anew.
    pub(super) fn is_there(&self) -> Compare {
        Compare::create_revision(self.name.key(), CompareOp::Equal, self.create_revision)
    }

    /// Holds if it was written by this request, whenever that was.
    pub(super) fn is_own(&self) -> Compare {
        Compare::value(self.name.key(), CompareOp::Equal, self.name.value())
    }

    pub(super) fn delete(&self, when: Compare) -> Txn {
        let delete = TxnOp::delete(self.name.key(), None);
        Txn::new().when([when]).and_then([delete])
    }

    /// A transaction that writes the key and says who is ahead; or only if nobody is
    /// in the way, unless the request waits.
    pub(super) fn take(&self, asked: &Question<'_>) -> Txn {
        let absent = |key: &[u8]| Compare::create_revision(key, CompareOp::Equal, 0);
        let mut when = vec![absent(self.name.key().as_bytes())];
        let mut then = vec![self.put(self.lease().id())];
        let mode = asked.request.mode;
        for (first, end) in asked.lock.ahead_of(mode) {
            if asked.waits {
                // The own key is the last of them, if it is one of them.
                let limit = if mode == Mode::Write { 2 } else { 1 };
                then.push(last_of(first, end, limit, None));
            } else {
                // It holds for each key in the range, and so for none.
                when.push(absent(&first).with_range(end));
            }
        }
        let found = TxnOp::get(self.name.key(), None);
        Txn::new().when(when).and_then(then).or_else([found])
    }

    /// Looks who is ahead of a key that is there.
    pub(super) async fn look(
        &self,
        members: &Members,
        asked: &Question<'_>,
    ) -> Result<Stands, Failure> {
        let before = self.create_revision - 1;
        let ahead = asked.lock.ahead_of(asked.request.mode).into_iter();
        let ahead = ahead.map(|(first, end)| last_of(first, end, 1, Some(before)));
        let ahead: Vec<_> = ahead.collect();
        let txn = Txn::new().when([self.is_there()]).and_then(ahead);
        let read = |mut client: Client| async move { client.txn(txn).await };
        let answer = members.ask(asked.deadline, read).await.map_err(is_there)?;
        let stands = self.stands(&answer, 0);
        stands.ok_or_else(|| errors::nonsense(&members.settings.place()))
    }

    /// When the key was created by the answer to what writes it: now, or by an attempt
    /// before this one. `Err`: it is somebody else's, or not there.
    pub(super) fn written(&self, answer: &TxnResponse) -> Result<i64, Option<KeyValue>> {
        if answer.succeeded() {
            return Ok(revision(answer));
        }
        let there = match answer.op_responses().into_iter().next() {
            Some(TxnOpResponse::Get(mut found)) => found.take_kvs().into_iter().next(),
            _ => None,
        };
        match there {
            Some(key) if key.value() == self.name.value().as_bytes() => Ok(key.create_revision()),
            other => Err(other),
        }
    }

    /// Who is ahead by the answer to a look; and by that to what has written the
    /// key, from the second on. `None`: that is no answer of etcd's.
    pub(super) fn stands(&self, answer: &TxnResponse, from: usize) -> Option<Stands> {
        if !answer.succeeded() {
            return Some(Stands::Nowhere);
        }
        let seen_at = revision(answer);
        let answers = answer.op_responses();
        let keys = answers.get(from..)?.iter().flat_map(|answer| match answer {
            TxnOpResponse::Get(found) => found.kvs(),
            _ => &[],
        });
        let ahead = keys.filter(|found| found.create_revision() < self.create_revision);
        let last = ahead.max_by_key(|found| found.create_revision());
        Some(match last {
            None => Stands::First,
            Some(found) => Stands::Behind(Ahead {
                key: String::from_utf8_lossy(found.key()).into_owned(),
                created: found.create_revision(),
                seen_at,
            }),
        })
    }
}

/// The last key of a range by create-revision, or the last few.
fn last_of(first: Vec<u8>, end: Vec<u8>, limit: i64, up_to: Option<i64>) -> TxnOp {
    let mut options = GetOptions::new()
        .with_range(end)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(limit)
        .with_keys_only();
    if let Some(revision) = up_to {
        options = options.with_max_create_revision(revision);
    }
    TxnOp::get(first, Some(options))
}

/// When each of these keys was created, of those that are there.
pub(super) async fn created_at(
    members: &Members,
    keys: impl Iterator<Item = &str>,
    deadline: Deadline,
) -> Result<Vec<Option<i64>>, Failed> {
    let keys_only = GetOptions::new().with_keys_only();
    let gets: Vec<_> = keys
        .map(|key| TxnOp::get(key, Some(keys_only.clone())))
        .collect();
    let txn = Txn::new().and_then(gets);
    let read = |mut client: Client| async move { client.txn(txn).await };
    let answers = members.ask(deadline, read).await?.op_responses();
    let created = answers.iter().map(|found| match found {
        TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::create_revision),
        _ => None,
    });
    Ok(created.collect())
}

/// The revision of the store after a transaction.
fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, ResponseHeader::revision)
}

/// Of a question about a key that is there.
pub(super) fn is_there(failed: Failed) -> Failure {
    Failure {
        applied: Applied::Answered,
        ..failed.into()
    }
}
