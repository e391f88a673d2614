//! A request's key in the queue for a lock, and the transactions about it.
//!
//! Nothing is believed because a watch has reported it. What counts is a transaction that finds the
//! request's own key in its place, and nobody ahead.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures_util::future::BoxFuture;

use super::batches::{Batches, Write, Written};
use super::errors::{self, ErrorClass, Failed};
use super::floor;
use super::inspect;
use super::lease::{Lease, LeaseRef};
use super::names::LockName;
use super::places::Name;
use super::waiting::Ahead;
use super::watches::Watches;
use crate::backend::{Mode, Request};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::{Applied, Cause, Failure};
use crate::stores::since::held;

/// How often a request that does not wait tries to write its key beside places that leave room.
/// Each time, it fails if somebody has come since the last look. After that many times it pauses,
/// so that one of those who try goes first.
const TRIES: u32 = 3;

/// Asks for the lock, and if the request `waits`, for a place in its queue.
pub(super) struct Question<'r> {
    pub(super) request: &'r Request,
    pub(super) lock: LockName,
    pub(super) waits: bool,
    pub(super) deadline: Deadline,
    pub(super) watches: &'r Watches,
}

/// A write on its way, and its answer.
pub(super) type Asking = BoxFuture<'static, Result<Written, Failed>>;

/// A request's key, with the right to its name and lease.
#[derive(Clone)]
pub(crate) struct Key {
    pub(super) name: Arc<Name>,
    /// The lease that it was first attached to.
    pub(super) lease_ref: Arc<LeaseRef>,
    /// 0 while it is not known to be there.
    pub(super) create_revision: i64,
    /// The ttl of the lock.
    pub(super) ttl: Duration,
    /// A lease of its own, which is not kept alive, and until when it is sure to last.
    pub(super) fixed: Option<(i64, Deadline)>,
    /// The key has been attached to that lease.
    pub(super) moved: bool,
    /// When the request got the lock, if it had to wait: in milliseconds since 1970, by this host's
    /// clock.
    pub(super) since: Option<u64>,
    /// The key says this, or was to say it: there is only one attempt.
    pub(super) says_since: bool,
    /// The floor of the tokens, from the last answer about the key.
    pub(super) floor: u64,
}

/// The position of a request in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueuePosition {
    /// It holds the lock.
    First,
    Behind {
        ahead: Ahead,
        /// The revision at which that was seen.
        seen_at: i64,
    },
    /// Another owner holds the lock, and the key was not written.
    NotWritten,
    /// Its key is not there any more.
    Nowhere,
    /// There is another's key at its name.
    Anothers,
    /// There was room, but each time others had come before its key was written.
    Contended,
    /// Nobody gets the lock: its body has been done.
    Done,
}

/// What has become of a key, by the answer to its write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    There,
    /// An earlier write, whose answer was lost, has made it.
    WasThere,
    /// There is another's key at its name.
    Anothers,
    NotWritten,
    Nowhere,
}

/// What a question asks besides.
struct Look {
    /// It asks for the queue, and not only for the last place that may be in the way.
    whole: bool,
    /// For a request that does not wait: no place may be newer than this revision.
    nobody_since: i64,
}

impl Key {
    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease_ref.lease
    }

    /// Writes the key. With another lease than before, it keeps its create-revision.
    pub(super) fn put(&self, lease: i64) -> TxnOp {
        let options = PutOptions::new().with_lease(lease);
        TxnOp::put(&*self.name.key, self.value(), Some(options))
    }

    /// Writes since when the lock is held. If it is run late, it changes nothing else: it brings no
    /// key back, and leaves the key with the lease that it has by then.
    pub(super) fn say_since(&self) -> Txn {
        let options = PutOptions::new().with_ignore_lease();
        let put = TxnOp::put(&*self.name.key, self.value(), Some(options));
        Txn::new().when([self.is_there()]).and_then([put])
    }

    fn value(&self) -> String {
        held(&self.name.value, self.since)
    }

    /// Deletes the key whenever it was written. A deletion that is run late must not find another's
    /// key there, so it compares the value. A key that may say since when the lock is held has
    /// another value, and is known by its create-revision.
    pub(super) fn delete_whenever_written(&self) -> Txn {
        let delete = self.delete(self.is_own());
        match self.since {
            Some(_) => delete.or_else([TxnOp::txn(self.delete(self.is_there()))]),
            None => delete,
        }
    }

    /// Holds if the key has been neither deleted nor made anew; or, while it is not known to be
    /// there, if there is none.
    pub(super) fn is_there(&self) -> Compare {
        Compare::create_revision(&*self.name.key, CompareOp::Equal, self.create_revision)
    }

    /// Holds if this request has written the key, whenever that was.
    pub(super) fn is_own(&self) -> Compare {
        Compare::value(&*self.name.key, CompareOp::Equal, &*self.name.value)
    }

    pub(super) fn delete(&self, when: Compare) -> Txn {
        let delete = TxnOp::delete(&*self.name.key, None);
        Txn::new().when([when]).and_then([delete])
    }

    /// Nobody wants the key any more, and deleting it has failed. If the server refused that, the
    /// key stays until its lease ends. Other requests would keep the lease alive, and the key with
    /// it, on a server that asks for no rights to that. So no further request gets this lease.
    /// Warns once for each lease.
    pub(super) fn may_stay(&self, failed: &Failed) {
        if let (ErrorClass::Refused, Cause::Error(error)) = (failed.class, &failed.cause)
            && self.lease().retire()
        {
            tracing::warn!(
                target: "dlock::store",
                "the key `{}` cannot be deleted, and stays until its lease ends: {error}",
                Shown(&self.name.key)
            );
        }
    }

    /// Writes the key if it is not known to be there, and finds out who is ahead. If this is
    /// dropped, the write stays in `put`.
    pub(super) async fn enter(
        &mut self,
        batches: &Arc<Batches>,
        asked: &Question<'_>,
        put: &mut Option<Asking>,
    ) -> Result<QueuePosition, Failure> {
        let mode = asked.request.mode;
        let mut look = Look {
            // A writer needs nobody ahead, and readers seldom have permits ahead: for both, the
            // last place is enough.
            whole: !matches!(mode.most_beside(), 0 | usize::MAX),
            nobody_since: 0,
        };
        let mut tries = 0;
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
                    return Ok(QueuePosition::Nowhere);
                }
                Err(failed) if is_new => return Err(failed.into()),
                Err(failed) => return Err(of_existing_key(failed.into())),
            };
            if !answer.answer.succeeded() {
                let place = batches.members.settings.place();
                let answers = answer.answer.op_responses();
                if asked.lock.done_by(answers, &place)?.is_some() {
                    return Ok(QueuePosition::Done);
                }
            }
            let fate = self.fate(&answer);
            if fate == Some(Fate::There) {
                let place = batches.members.settings.place();
                self.floor = answer.floor(asked, &place).map_err(of_existing_key)?;
            }
            match fate {
                Some(Fate::WasThere) => continue,
                Some(Fate::Nowhere) => return Ok(QueuePosition::Nowhere),
                Some(Fate::Anothers) => return Ok(QueuePosition::Anothers),
                Some(Fate::There) if is_new && !asked.waits => return Ok(QueuePosition::First),
                Some(Fate::NotWritten) if !asked.waits => {}
                Some(Fate::There) => {}
                Some(Fate::NotWritten) | None => {
                    return Err(errors::unexpected_answer(&batches.members.settings.place()));
                }
            }
            let seen_at = answer.revision;
            let mut queue = answer.queue(asked);
            for place in &queue {
                asked.request.note_mode(place.mode);
            }
            if !look.whole {
                let is_before = |other: &Place| {
                    self.create_revision == 0 || other.created < self.create_revision
                };
                queue.retain(is_before);
                let last = queue.pop();
                match last {
                    // The last place ahead shares the lock, so this reader may hold it too.
                    Some(last) if mode == Mode::Read && last.mode.is_shared() => look.whole = true,
                    _ if fate == Some(Fate::NotWritten) => return Ok(QueuePosition::NotWritten),
                    Some(last) => {
                        let ahead = Ahead::One(last.key, last.created);
                        return Ok(QueuePosition::Behind { ahead, seen_at });
                    }
                    None => return Ok(QueuePosition::First),
                }
                continue;
            }
            let modes = queue.iter().map(|place| place.mode);
            if fate == Some(Fate::NotWritten) {
                if Mode::holding(modes.chain([mode])) <= queue.len() {
                    return Ok(QueuePosition::NotWritten);
                }
                if tries == TRIES {
                    return Ok(QueuePosition::Contended);
                }
                tries += 1;
                // The request fits beside all of these places, so it also fits if some of them go.
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
                QueuePosition::First
            } else {
                let ahead = Ahead::Some;
                QueuePosition::Behind { ahead, seen_at }
            });
        }
    }

    /// The transaction that finds out who is ahead, and writes the key if it is not known to be
    /// there. If the request does not wait, the key is written only if nobody is ahead, except for
    /// places that were seen to leave room.
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
                // The comparison holds if it does so for each key in the range, and so if there is
                // none.
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
            // A writer that does not wait need not know who is there.
        } else if look.whole {
            let (first, end) = asked.lock.queue();
            // As many as may hold the lock beside it, itself, and one more; for a reader, all.
            let enough = asked.request.mode.most_beside().saturating_add(2);
            let options = options
                .with_range(end)
                .with_sort(SortTarget::Create, SortOrder::Ascend)
                .with_limit(i64::try_from(enough).unwrap_or(0));
            answer.push(TxnOp::get(first, Some(options)));
        } else {
            for (first, end) in asked.lock.ahead_of(asked.request.mode) {
                // The last place; or the one before it, if the last is the request's own, which
                // this transaction writes.
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

    /// What has become of the key, by this answer. `None`: the answer does not say.
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

    /// The places that the answer shows, in order.
    fn queue(&self, asked: &Question<'_>) -> Vec<Place> {
        let found = inspect::found(self.answer.op_responses());
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

/// Whether a deletion has deleted something, perhaps by its second comparison.
pub(super) fn has_deleted(answer: &TxnResponse) -> bool {
    let mut second = answer.op_responses().into_iter();
    answer.succeeded()
        || second.any(|answer| matches!(answer, TxnOpResponse::Txn(second) if second.succeeded()))
}

/// The failure of a question about a key that may be there.
pub(super) fn of_existing_key(failure: Failure) -> Failure {
    failure.with(Applied::Answered)
}
