//! A request's key in the queue for a lock, and the transactions about it.
//!
//! Nothing is believed because a watch said so: what counts is a transaction that
//! finds the own key in its place and nobody ahead.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, ResponseHeader, SortOrder, SortTarget,
    Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::leases::{Lease, LeaseRef};
use super::names::LockName;
use super::places::Name;
use crate::backend::Mode;

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
    /// It has been attached to a lease of its own, which ends by itself.
    pub(super) moved: bool,
}

/// Where a request stands in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// It holds the lock.
    First,
    /// Somebody is ahead.
    Behind(Ahead),
    /// Its key is not there any more.
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

/// Whose key it was that a transaction found in place of its own.
pub(super) enum Found {
    /// An attempt before this one wrote it: when it was created.
    Own(i64),
    Anothers,
    Nothing,
}

impl Key {
    pub(super) fn new(name: Arc<Name>, lease_ref: LeaseRef, ttl: Duration) -> Self {
        Self {
            name,
            lease_ref: Arc::new(lease_ref),
            create_revision: 0,
            ttl,
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

    fn put_new(&self) -> TxnOp {
        self.put(self.lease().id())
    }

    fn is_new(&self) -> Compare {
        Compare::create_revision(self.name.key(), CompareOp::Equal, 0)
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

    fn get(&self) -> TxnOp {
        TxnOp::get(self.name.key(), None)
    }

    /// A transaction that writes the key only if nobody is in the way: all keys
    /// of a range that is empty have no create-revision.
    pub(super) fn take_if_free(&self, lock: &LockName, mode: Mode) -> Txn {
        let free = lock.ahead_of(mode).into_iter().map(|(first, end)| {
            Compare::create_revision(first, CompareOp::Equal, 0).with_range(end)
        });
        let compares: Vec<_> = std::iter::once(self.is_new()).chain(free).collect();
        Txn::new()
            .when(compares)
            .and_then([self.put_new()])
            .or_else([self.get()])
    }

    /// A transaction that writes the key, and says who is ahead.
    pub(super) fn take_place(&self, lock: &LockName, mode: Mode) -> Txn {
        // The own key is the last of them, if it is one of them.
        let limit = if mode == Mode::Write { 2 } else { 1 };
        let ahead = lock
            .ahead_of(mode)
            .into_iter()
            .map(|(first, end)| last_of(first, end, limit, None));
        let operations: Vec<_> = std::iter::once(self.put_new()).chain(ahead).collect();
        Txn::new()
            .when([self.is_new()])
            .and_then(operations)
            .or_else([self.get()])
    }

    /// A transaction that says who is ahead of a key that is there.
    pub(super) fn look(&self, lock: &LockName, mode: Mode) -> Txn {
        let before = self.create_revision - 1;
        let ahead: Vec<_> = lock
            .ahead_of(mode)
            .into_iter()
            .map(|(first, end)| last_of(first, end, 1, Some(before)))
            .collect();
        Txn::new().when([self.is_there()]).and_then(ahead)
    }

    /// Whose key was in the way of the own one. A name that is somebody else's is
    /// left to it.
    pub(super) fn found(&self, answer: &TxnResponse) -> Found {
        match first(answer, 0) {
            Some(key) if key.value() == self.name.value().as_bytes() => {
                Found::Own(key.create_revision())
            }
            Some(_) => {
                self.name.is_anothers();
                Found::Anothers
            }
            None => Found::Nothing,
        }
    }

    /// Who is ahead by the answer to a [`look`](Self::look); and by that to what
    /// has written it, from the second on. `None`: that is no answer of etcd's.
    pub(super) fn stands(&self, answer: &TxnResponse, from: usize) -> Option<Stands> {
        if !answer.succeeded() {
            return Some(Stands::Nowhere);
        }
        let seen_at = revision(answer)?;
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

/// What the get with this number found first.
pub(super) fn first(answer: &TxnResponse, number: usize) -> Option<KeyValue> {
    match answer.op_responses().into_iter().nth(number)? {
        TxnOpResponse::Get(mut found) => found.take_kvs().into_iter().next(),
        _ => None,
    }
}

/// The revision of the store after a transaction.
pub(super) fn revision(answer: &TxnResponse) -> Option<i64> {
    answer.header().map(ResponseHeader::revision)
}
