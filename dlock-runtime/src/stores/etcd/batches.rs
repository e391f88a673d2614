//! Writes of different locks that go to the members as one.
//!
//! What a write costs is that the members agree on it, and put it to disk. A
//! transaction takes others inside, each with its own comparison, so the places of
//! many locks are one such write. A lone request never waits for company: that is
//! only for those who come while some messages are on their way already, and until
//! there are enough of them.
//!
//! The server makes all comparisons before any write (`compareToPath` in
//! `server/etcdserver/apply.go`), so that two writes of one lock, each of which
//! finds nobody ahead, would both be done: while one waits for company, the next of
//! its lock goes alone. And one that is refused fails all that go with it. So puts go
//! with those that would fail with them, as they have the same lease; deletions, which
//! are done when the disk is full too, go with each other; and what else is refused
//! goes again, one by one.
//!
//! A server before 3.6.9, or as old, does not ask whether the client has the rights to what
//! is inside (GHSA-rfx7-8w68-q57q). Where it may have rights of its own, each write goes
//! alone.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use etcd_client::{ResponseHeader, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::errors::{ErrorClass, Failed};
use super::members::Members;
use crate::deadline::Deadline;
use crate::store::{Applied, Cause};
use crate::sync::Mutex;

/// So many messages are on their way at a time, before those that come wait for company.
const AT_ONCE: usize = 2;

/// So many writes go together. A server takes 128 operations in a transaction and those
/// inside of it (`checkTxnRequest` in `server/etcdserver/api/v3rpc/key.go`), unless it
/// was started with another number.
const LARGEST: usize = 64;

/// The writes of one process.
pub(super) struct Batches {
    pub(super) members: Arc<Members>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Those that are not sent yet, in the order they came.
    waiting: VecDeque<Waiting>,
    /// Their locks, which differ.
    locks: HashSet<String>,
    last_id: u64,
    /// How many messages are on their way.
    on_the_way: usize,
    /// How many writes the server takes together, as far as is known.
    largest: usize,
}

/// A write that concerns one lock.
pub(super) struct Write {
    /// What its keys begin with.
    pub(super) lock: String,
    /// The lease of what is put. `None`: it only deletes.
    pub(super) lease: Option<i64>,
    pub(super) txn: Txn,
}

/// The answer to a write.
pub(crate) struct Written {
    /// That of the store behind it.
    pub(super) revision: i64,
    pub(super) answer: TxnResponse,
}

type Answer = Result<Written, Failed>;

struct Waiting {
    id: u64,
    write: Write,
    done: oneshot::Sender<Answer>,
    sent_at: Arc<OnceLock<Instant>>,
}

enum Entered {
    Alone(Txn, Option<Slot>),
    Waits {
        id: u64,
        answer: oneshot::Receiver<Answer>,
        sent_at: Arc<OnceLock<Instant>>,
    },
}

/// The right to have a message on its way. Dropped, it goes to those who wait.
struct Slot(Arc<Batches>);

impl Batches {
    pub(super) fn new(members: &Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            members: Arc::clone(members),
            inner: Mutex::new(Inner {
                waiting: VecDeque::new(),
                locks: HashSet::new(),
                last_id: 0,
                on_the_way: 0,
                largest: LARGEST,
            }),
        })
    }

    /// Has it written, alone or with others. Dropped before it was sent, it is not.
    pub(super) async fn write(self: &Arc<Self>, write: Write, deadline: Deadline) -> Answer {
        let (id, answer, sent_at) = match self.enter(write) {
            Entered::Alone(txn, _slot) => return self.alone(txn, deadline).await,
            Entered::Waits {
                id,
                answer,
                sent_at,
            } => (id, answer, sent_at),
        };
        let time = &self.members.time;
        let answer = time.bound(deadline.min(self.members.patience()), answer);
        if let Ok(Ok(answer)) = answer.await {
            return answer;
        }
        // From here on nobody sends it.
        self.inner.lock().take_out(id);
        let sent_at = sent_at.get().copied();
        Err(Failed {
            class: ErrorClass::AskElsewhere,
            cause: Cause::Silence,
            applied: sent_at.map_or(Applied::No, |sent_at| Applied::Unknown { sent_at }),
        })
    }

    fn enter(self: &Arc<Self>, write: Write) -> Entered {
        let mut inner = self.inner.lock();
        if inner.on_the_way < AT_ONCE {
            inner.on_the_way += 1;
            return Entered::Alone(write.txn, Some(Slot(Arc::clone(self))));
        }
        if self.members.settings.is_known || !inner.locks.insert(write.lock.clone()) {
            return Entered::Alone(write.txn, None);
        }
        inner.last_id += 1;
        let id = inner.last_id;
        let (done, answer) = oneshot::channel();
        let sent_at = Arc::new(OnceLock::new());
        inner.waiting.push_back(Waiting {
            id,
            write,
            done,
            sent_at: Arc::clone(&sent_at),
        });
        if inner.is_full() {
            inner.on_the_way += 1;
            drop(inner);
            // As if one of those on the way had come back.
            drop(Slot(Arc::clone(self)));
        }
        Entered::Waits {
            id,
            answer,
            sent_at,
        }
    }

    pub(super) async fn alone(&self, txn: Txn, deadline: Deadline) -> Answer {
        let answer = self.members.txn(txn, deadline).await?;
        let revision = answer.header().map_or(0, ResponseHeader::revision);
        Ok(Written { revision, answer })
    }

    async fn send(&self, batch: Vec<Waiting>) {
        let limit = self.members.patience();
        let parts: Vec<_> = batch.iter().map(|one| one.write.txn.clone()).collect();
        let number = parts.len();
        let answered = match <[Txn; 1]>::try_from(parts) {
            Ok([txn]) => self.alone(txn, limit).await.map(|written| vec![written]),
            Err(parts) => self.together(parts, limit).await,
        };
        match answered {
            Ok(answers) => {
                for (one, answer) in batch.into_iter().zip(answers) {
                    let _left = one.done.send(Ok(answer));
                }
            }
            Err(failed) if failed.class == ErrorClass::Refused && number > 1 => {
                let again = batch.into_iter().map(async |one| {
                    let answer = self.alone(one.write.txn, limit).await;
                    let is_done = answer.is_ok();
                    let _left = one.done.send(answer);
                    is_done
                });
                // Each is done by itself: they were too many.
                if join_all(again).await.into_iter().all(|is_done| is_done) {
                    self.inner.lock().largest = (number / 2).max(1);
                }
            }
            Err(failed) => {
                for one in batch {
                    let _left = one.done.send(Err(failed.clone()));
                }
            }
        }
    }

    /// As one transaction.
    async fn together(&self, parts: Vec<Txn>, limit: Deadline) -> Result<Vec<Written>, Failed> {
        let parts: Vec<_> = parts.into_iter().map(TxnOp::txn).collect();
        let Written { revision, answer } = self.alone(Txn::new().and_then(parts), limit).await?;
        let answers = answer.op_responses().into_iter();
        let answers = answers.filter_map(|answer| match answer {
            TxnOpResponse::Txn(answer) => Some(Written { revision, answer }),
            _ => None,
        });
        Ok(answers.collect())
    }
}

impl Inner {
    /// More need not wait for company: a slow disk is no reason to hold back what the
    /// members can agree on together.
    fn is_full(&self) -> bool {
        self.waiting.len() >= self.largest
    }

    /// The first that waits, with all that may go with it. `None`: nobody waits.
    fn next(&mut self, now: Instant) -> Option<Vec<Waiting>> {
        let mut batch: Vec<Waiting> = Vec::new();
        let mut later = VecDeque::new();
        while batch.len() < self.largest
            && let Some(one) = self.waiting.pop_front()
        {
            let first = batch.first().map(|first| first.write.lease);
            if one.done.is_closed() {
                // Nobody wants it any more.
                self.locks.remove(&one.write.lock);
            } else if first.is_none_or(|lease| lease == one.write.lease) {
                self.locks.remove(&one.write.lock);
                let _new = one.sent_at.set(now);
                batch.push(one);
            } else {
                later.push_back(one);
            }
        }
        later.append(&mut self.waiting);
        self.waiting = later;
        (!batch.is_empty()).then_some(batch)
    }

    /// Whoever waits for this one goes.
    fn take_out(&mut self, id: u64) {
        let place = self.waiting.iter().position(|one| one.id == id);
        if let Some(one) = place.and_then(|place| self.waiting.remove(place)) {
            self.locks.remove(&one.write.lock);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let now = self.0.members.time.now();
        let batch = {
            let mut inner = self.0.inner.lock();
            let may_send = inner.on_the_way <= AT_ONCE || inner.is_full();
            let batch = may_send.then(|| inner.next(now)).flatten();
            if batch.is_none() {
                inner.on_the_way -= 1;
            }
            batch
        };
        if let Some(batch) = batch {
            let slot = Self(Arc::clone(&self.0));
            let send = async move { slot.0.send(batch).await };
            self.0.members.context.spawn(send);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::etcd::settings::Settings;

    struct Queue(Inner, Vec<oneshot::Receiver<Answer>>);

    impl Queue {
        fn of(writes: &[(&str, Option<i64>)]) -> Self {
            let mut answers = Vec::new();
            let waiting = (0..).zip(writes).map(|(id, &(lock, lease))| {
                let (done, answer) = oneshot::channel();
                answers.push(answer);
                let write = Write {
                    lock: lock.to_owned(),
                    lease,
                    txn: Txn::new(),
                };
                let sent_at = Arc::default();
                Waiting {
                    id,
                    write,
                    done,
                    sent_at,
                }
            });
            let inner = Inner {
                waiting: waiting.collect(),
                locks: writes.iter().map(|&(lock, _)| lock.to_owned()).collect(),
                last_id: 0,
                on_the_way: 0,
                largest: 3,
            };
            Self(inner, answers)
        }

        /// The numbers of those that go together, message by message.
        fn sent(mut self) -> Vec<Vec<u64>> {
            let next = || self.0.next(Instant::now());
            let sent: Vec<_> = std::iter::from_fn(next)
                .map(|batch| {
                    let sent = batch.iter().all(|one| one.sent_at.get().is_some());
                    assert!(sent, "its moment is noted");
                    batch.iter().map(|one| one.id).collect()
                })
                .collect();
            assert!(self.0.locks.is_empty(), "others may wait for company");
            sent
        }
    }

    #[test]
    fn what_would_fail_with_another_goes_with_it() {
        let writes = [("a", Some(1)), ("b", None), ("c", Some(2)), ("d", Some(1))];
        assert_eq!(Queue::of(&writes).sent(), [vec![0, 3], vec![1], vec![2]]);
    }

    #[test]
    fn a_message_is_no_larger_than_the_server_takes() {
        let writes = ["a", "b", "c", "d", "e"].map(|lock| (lock, None));
        assert_eq!(Queue::of(&writes).sent(), [vec![0, 1, 2], vec![3, 4]]);
    }

    #[test]
    fn what_nobody_wants_any_more_is_not_sent() {
        let mut queue = Queue::of(&[("a", None), ("b", None), ("c", None)]);
        queue.1.remove(0);
        queue.0.take_out(1);
        assert_eq!(queue.sent(), [vec![2]]);
    }
    /// However slow those are that are on their way.
    #[tokio::test]
    async fn a_message_that_is_full_does_not_wait() {
        let settings = Settings::from_url("etcd://127.0.0.1").expect("a URL");
        let members = Members::new(settings, crate::engine::context());
        let batches = Batches::new(&Arc::new(members));
        let mut entered = Vec::new();
        let mut enter = |number: usize| {
            for _ in 0..number {
                let lock = entered.len().to_string();
                let (lease, txn) = (None, Txn::new());
                entered.push(batches.enter(Write { lock, lease, txn }));
            }
            let inner = batches.inner.lock();
            (inner.on_the_way, inner.waiting.len())
        };
        assert_eq!(enter(AT_ONCE), (AT_ONCE, 0));
        assert_eq!(enter(LARGEST - 1), (AT_ONCE, LARGEST - 1));
        assert_eq!(enter(1), (AT_ONCE + 1, 0));
        assert_eq!(enter(1), (AT_ONCE + 1, 1));
        // Those that wait now go when there is room.
        entered.truncate(1);
        let inner = batches.inner.lock();
        assert_eq!((inner.on_the_way, inner.waiting.len()), (AT_ONCE, 1));
    }
}
