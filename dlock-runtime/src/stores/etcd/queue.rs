//! A request's key in the queue for a lock, and the transactions about it.
//!
//! Nothing is believed because a watch said so: what counts is a transaction that
//! finds the own key in its place and nobody ahead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse,
};
use futures_util::future::BoxFuture;

use super::batches::{Batches, Write, Written};
use super::errors::{self, ErrorClass, Failed};
use super::lease::{Lease, LeaseRef};
use super::members::Members;
use super::names::LockName;
use super::places::Name;
use crate::backend::Request;
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

/// The answer to it, on its way.
pub(super) type Asking = BoxFuture<'static, Result<Written, Failed>>;

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
    /// Somebody is ahead: the last of them, and when that was created.
    Behind {
        ahead: (String, i64),
        /// The revision at which it was seen there.
        seen_at: i64,
    },
    /// Somebody holds the lock, and the key was not written.
    NotWritten,
    /// Its key is not there any more.
    Nowhere,
    /// Its name is somebody else's.
    Anothers,
}

impl Key {
    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease_ref.lease
    }

    /// Writes it. With another lease than before, it keeps its create-revision.
    pub(super) fn put(&self, lease: i64) -> TxnOp {
        let options = PutOptions::new().with_lease(lease);
        TxnOp::put(&*self.name.key, &*self.name.value, Some(options))
    }

    /// Holds if nobody has deleted the key, and nobody has made it anew: or if there
    /// is none, while it is not known to be there.
    pub(super) fn is_there(&self) -> Compare {
        Compare::create_revision(&*self.name.key, CompareOp::Equal, self.create_revision)
    }

    /// Holds if it was written by this request, whenever that was.
    pub(super) fn is_own(&self) -> Compare {
        Compare::value(&*self.name.key, CompareOp::Equal, &*self.name.value)
    }

    pub(super) fn delete(&self, when: Compare) -> Txn {
        let delete = TxnOp::delete(&*self.name.key, None);
        Txn::new().when([when]).and_then([delete])
    }

    /// Writes the key if it is not known to be there, and looks who is ahead. What
    /// writes it stays in `put` when this is dropped.
    pub(super) async fn enter(
        &mut self,
        batches: &Arc<Batches>,
        asked: &Question<'_>,
        put: &mut Option<Asking>,
    ) -> Result<Stands, Failure> {
        loop {
            let is_new = self.create_revision == 0;
            let (txn, deadline) = (self.ask(asked), asked.deadline);
            let answer = if is_new {
                let write = Write {
                    lock: asked.lock.0.clone(),
                    lease: Some(self.lease().id),
                    txn,
                };
                let batches = Arc::clone(batches);
                let asking = Box::pin(async move { batches.write(write, deadline).await });
                let answer = put.insert(asking).await;
                *put = None;
                answer
            } else {
                batches.alone(txn, deadline).await
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(failed) if failed.class == ErrorClass::LeaseNotFound => {
                    self.lease().end();
                    return Ok(Stands::Nowhere);
                }
                Err(failed) if is_new => return Err(failed.into()),
                Err(failed) => return Err(is_there(failed.into())),
            };
            match self.stands(&answer, asked.waits) {
                Some(stands) => return Ok(stands),
                // Written by a question before this one, whose answer was lost.
                None if is_new && self.create_revision != 0 => {}
                None => return Err(errors::nonsense(&batches.members.settings.place())),
            }
        }
    }

    /// A transaction that says who is ahead, and writes the key if it is not known to
    /// be there. For a request that does not wait, it writes it if nobody is ahead.
    fn ask(&self, asked: &Question<'_>) -> Txn {
        let (mut when, mut then) = (vec![self.is_there()], Vec::new());
        let is_new = self.create_revision == 0;
        if is_new {
            then.push(self.put(self.lease().id));
        }
        for (first, end) in asked.lock.ahead_of(asked.request.mode) {
            if is_new && !asked.waits {
                // It holds for each key in the range, and so for none.
                let absent = Compare::create_revision(first, CompareOp::Equal, 0);
                when.push(absent.with_range(end));
            } else {
                // The last of them; or the one before it, if that is the own key, which
                // this writes.
                let options = GetOptions::new()
                    .with_range(end)
                    .with_max_create_revision((self.create_revision - 1).max(0))
                    .with_sort(SortTarget::Create, SortOrder::Descend)
                    .with_limit(2)
                    .with_keys_only();
                then.push(TxnOp::get(first, Some(options)));
            }
        }
        let found = TxnOp::get(&*self.name.key, None);
        Txn::new().when(when).and_then(then).or_else([found])
    }

    /// Where it stands by the answer to that. `None`: it does not say, unless that the
    /// key is there.
    pub(super) fn stands(&mut self, written: &Written, waits: bool) -> Option<Stands> {
        let (seen_at, answer) = (written.revision, &written.answer);
        if seen_at == 0 {
            return None;
        }
        let is_new = self.create_revision == 0;
        let found = answer.op_responses().into_iter();
        let mut found = found.flat_map(|answer| match answer {
            TxnOpResponse::Get(mut found) => found.take_kvs(),
            _ => Vec::new(),
        });
        if !answer.succeeded() {
            return match found.next() {
                _ if !is_new => Some(Stands::Nowhere),
                Some(key) if key.value() == self.name.value.as_bytes() => {
                    self.create_revision = key.create_revision();
                    None
                }
                Some(_) => Some(Stands::Anothers),
                None => (!waits).then_some(Stands::NotWritten),
            };
        }
        if is_new {
            self.create_revision = seen_at;
        }
        let ahead = found.filter(|found| found.create_revision() < self.create_revision);
        let last = ahead.max_by_key(KeyValue::create_revision);
        Some(last.map_or(Stands::First, |last| {
            let key = String::from_utf8_lossy(last.key()).into_owned();
            let ahead = (key, last.create_revision());
            Stands::Behind { ahead, seen_at }
        }))
    }
}

/// Of a question about a key that is there.
pub(super) fn is_there(failure: Failure) -> Failure {
    let applied = Applied::Answered;
    Failure { applied, ..failure }
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
    let read = members.txn(Txn::new().and_then(gets), deadline).await?;
    let answers = read.op_responses();
    let created = answers.iter().map(|found| match found {
        TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::create_revision),
        _ => None,
    });
    Ok(created.collect())
}
