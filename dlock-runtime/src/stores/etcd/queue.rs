//! A request's key in the queue for a lock, and the transactions about it.
//!
//! Nothing is believed because a watch said so: what counts is a transaction that
//! finds the own key in its place and nobody ahead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures_util::future::BoxFuture;

use super::batches::{Batches, Write, Written};
use super::errors::{self, ErrorClass, Failed};
use super::floor;
use super::lease::{Lease, LeaseRef};
use super::names::LockName;
use super::places::Name;
use super::waiting::Ahead;
use super::watches::Watches;
use crate::backend::{Mode, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Failure};
use crate::stores::since::held;

/// What is asked: for the lock, and if the request `waits` for a place in its queue.
pub(super) struct Question<'r> {
    pub(super) request: &'r Request,
    pub(super) lock: LockName,
    pub(super) waits: bool,
    pub(super) deadline: Deadline,
    pub(super) watches: &'r Watches,
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
    /// When the lock was had that was waited for, in milliseconds since 1970, by this host's
    /// clock.
    pub(super) since: Option<u64>,
    /// The key says so, or was to: it is tried once.
    pub(super) says_since: bool,
    /// Of the tokens, by the last answer about it.
    pub(super) floor: u64,
}

/// Where a request stands in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// It holds the lock.
    First,
    Behind {
        ahead: Ahead,
        /// The revision at which that was seen.
        seen_at: i64,
    },
    /// Somebody holds the lock, and the key was not written.
    NotWritten,
    /// Its key is not there any more.
    Nowhere,
    /// Its name is somebody else's.
    Anothers,
    /// Nobody gets the lock: what it is for has been done.
    Done,
}

/// What has become of a key, by the answer to what writes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    There,
    /// It was written by a question before this one, whose answer was lost.
    WasThere,
    /// Somebody else has the name.
    Anothers,
    NotWritten,
    Nowhere,
}

/// What a question asks besides.
struct Look {
    /// For the queue, and not only for the last who may be in the way.
    whole: bool,
    /// Of who does not wait: that nobody came later.
    nobody_since: i64,
}

impl Key {
    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease_ref.lease
    }

    /// Writes it. With another lease than before, it keeps its create-revision.
    pub(super) fn put(&self, lease: i64) -> TxnOp {
        let options = PutOptions::new().with_lease(lease);
        TxnOp::put(&*self.name.key, self.value(), Some(options))
    }

    /// Has it say since when the lock is held. Run late, it changes nothing but that: it
    /// brings no key back, and leaves the key with the lease that it has by then.
    pub(super) fn say_since(&self) -> Txn {
        let options = PutOptions::new().with_ignore_lease();
        let put = TxnOp::put(&*self.name.key, self.value(), Some(options));
        Txn::new().when([self.is_there()]).and_then([put])
    }

    fn value(&self) -> String {
        held(&self.name.value, self.since)
    }

    /// Deletes it whenever it was written: what comes late must not find somebody else there.
    /// Once it may say more than whose it is, it is known by its create-revision.
    pub(super) fn delete_whenever_written(&self) -> Txn {
        let delete = self.delete(self.is_own());
        match self.since {
            Some(_) => delete.or_else([TxnOp::txn(self.delete(self.is_there()))]),
            None => delete,
        }
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
        let mode = asked.request.mode;
        let mut look = Look {
            // A writer needs nobody ahead, and readers mostly find no permits there.
            whole: !matches!(mode.most_beside(), 0 | usize::MAX),
            nobody_since: 0,
        };
        loop {
            let is_new = self.create_revision == 0;
            let (txn, deadline) = (self.ask(asked, &look), asked.deadline);
            let answer = if is_new {
                let write = Write {
                    lock: asked.lock.queue.clone(),
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
            if !answer.answer.succeeded() {
                let place = batches.members.settings.place();
                let answers = answer.answer.op_responses();
                if asked.lock.done_by(answers, &place)?.is_some() {
                    return Ok(Stands::Done);
                }
            }
            let fate = self.fate(&answer);
            if fate == Some(Fate::There) {
                let place = batches.members.settings.place();
                self.floor = answer.floor(asked, &place).map_err(is_there)?;
            }
            match fate {
                Some(Fate::WasThere) => continue,
                Some(Fate::Nowhere) => return Ok(Stands::Nowhere),
                Some(Fate::Anothers) => return Ok(Stands::Anothers),
                Some(Fate::There) if is_new && !asked.waits => return Ok(Stands::First),
                Some(Fate::NotWritten) if !asked.waits => {}
                Some(Fate::There) => {}
                Some(Fate::NotWritten) | None => {
                    return Err(errors::nonsense(&batches.members.settings.place()));
                }
            }
            let seen_at = answer.revision;
            let mut queue = answer.queue(asked);
            for place in &queue {
                asked.request.has_seen(place.mode);
            }
            if !look.whole {
                let is_before = |other: &Place| {
                    self.create_revision == 0 || other.created < self.create_revision
                };
                queue.retain(is_before);
                let last = queue.pop();
                match last {
                    // Who shares may hold the lock too.
                    Some(last) if mode == Mode::Read && last.mode.is_shared() => look.whole = true,
                    _ if fate == Some(Fate::NotWritten) => return Ok(Stands::NotWritten),
                    Some(last) => {
                        let ahead = Ahead::One(last.key, last.created);
                        return Ok(Stands::Behind { ahead, seen_at });
                    }
                    None => return Ok(Stands::First),
                }
                continue;
            }
            let modes = queue.iter().map(|place| place.mode);
            if fate == Some(Fate::NotWritten) {
                if Mode::holding(modes.chain([mode])) <= queue.len() {
                    return Ok(Stands::NotWritten);
                }
                // It fits beside all of them, and some of them at least.
                look.nobody_since = seen_at;
                continue;
            }
            let holding = Mode::holding(modes);
            let created: Vec<_> = queue.iter().map(|place| place.created).collect();
            let (holding, waiting) = created.split_at(holding);
            asked
                .watches
                .seen(&asked.request.key, holding, waiting, seen_at);
            return Ok(if holding.contains(&self.create_revision) {
                Stands::First
            } else {
                let ahead = Ahead::Some;
                Stands::Behind { ahead, seen_at }
            });
        }
    }

    /// A transaction that says who is ahead, and writes the key if it is not known to
    /// be there. For a request that does not wait, it writes it if nobody is ahead that
    /// has not been seen to leave room.
    fn ask(&self, asked: &Question<'_>, look: &Look) -> Txn {
        let mut when = vec![self.is_there(), asked.lock.is_not_done()];
        let mut then = vec![asked.lock.get_floor()];
        let mut or_else = vec![TxnOp::get(&*self.name.key, None), asked.lock.get_mark()];
        let is_new = self.create_revision == 0;
        if is_new {
            then.push(self.put(self.lease().id));
        }
        let answer = if is_new && !asked.waits {
            for (first, end) in asked.lock.ahead_of(asked.request.mode) {
                // It holds for each key in the range, and so for none.
                let absent =
                    Compare::create_revision(first, CompareOp::Less, look.nobody_since + 1);
                when.push(absent.with_range(end));
            }
            &mut or_else
        } else {
            &mut then
        };
        let options = GetOptions::new().with_keys_only();
        if is_new && !asked.waits && asked.request.mode.most_beside() == 0 {
            // Whoever is there, it is one too many.
        } else if look.whole {
            let (first, end) = asked.lock.queue();
            // As many as there may be beside it, itself, and the next; for a reader, all.
            let enough = asked.request.mode.most_beside().saturating_add(2);
            let options = options
                .with_range(end)
                .with_sort(SortTarget::Create, SortOrder::Ascend)
                .with_limit(i64::try_from(enough).unwrap_or(0));
            answer.push(TxnOp::get(first, Some(options)));
        } else {
            for (first, end) in asked.lock.ahead_of(asked.request.mode) {
                // The last of them; or the one before it, if that is the own key, which
                // this writes.
                let options = options
                    .clone()
                    .with_range(end)
                    .with_max_create_revision((self.create_revision - 1).max(0))
                    .with_sort(SortTarget::Create, SortOrder::Descend)
                    .with_limit(2);
                answer.push(TxnOp::get(first, Some(options)));
            }
        }
        Txn::new().when(when).and_then(then).or_else(or_else)
    }

    /// What has become of it, by the answer to that. `None`: it does not say.
    pub(super) fn fate(&mut self, written: &Written) -> Option<Fate> {
        let (seen_at, answer) = (written.revision, &written.answer);
        if seen_at == 0 {
            return None;
        }
        let is_new = self.create_revision == 0;
        if answer.succeeded() {
            if is_new {
                self.create_revision = seen_at;
            }
            return Some(Fate::There);
        }
        if !is_new {
            return Some(Fate::Nowhere);
        }
        let TxnOpResponse::Get(own) = answer.op_responses().into_iter().next()? else {
            return None;
        };
        Some(match own.kvs().first() {
            Some(key) if key.value() == self.name.value.as_bytes() => {
                self.create_revision = key.create_revision();
                Fate::WasThere
            }
            Some(_) => Fate::Anothers,
            None => Fate::NotWritten,
        })
    }
}

/// A place in the queue.
struct Place {
    key: String,
    created: i64,
    mode: Mode,
}

impl Written {
    fn floor(&self, asked: &Question<'_>, place: &str) -> Result<u64, Failure> {
        floor::found(&self.answer.op_responses(), &asked.lock.floor(), place)
    }

    /// The places that it has found, in their order.
    fn queue(&self, asked: &Question<'_>) -> Vec<Place> {
        let found = self.answer.op_responses().into_iter();
        let found = found.flat_map(|answer| match answer {
            TxnOpResponse::Get(mut found) => found.take_kvs(),
            _ => Vec::new(),
        });
        let place = |found: KeyValue| {
            let key = String::from_utf8_lossy(found.key()).into_owned();
            Place {
                mode: asked.lock.mode_of(&key),
                key,
                created: found.create_revision(),
            }
        };
        let found = found.filter(|key| key.key().starts_with(asked.lock.queue.as_bytes()));
        let mut queue: Vec<_> = found.map(place).collect();
        queue.sort_unstable_by_key(|place| place.created);
        queue
    }
}

/// Whether a deletion has deleted something, by its second comparison too.
pub(super) fn has_deleted(answer: &TxnResponse) -> bool {
    let mut second = answer.op_responses().into_iter();
    answer.succeeded()
        || second.any(|answer| matches!(answer, TxnOpResponse::Txn(second) if second.succeeded()))
}

/// Of a question about a key that is there.
pub(super) fn is_there(failure: Failure) -> Failure {
    let applied = Applied::Answered;
    Failure { applied, ..failure }
}
