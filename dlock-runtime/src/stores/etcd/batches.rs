//! Sends writes of different locks to the cluster as one.
//!
//! Most of what a write costs is that the members agree on it and put it to disk. A transaction can
//! contain others, each with its own comparison, so the writes of many locks can be one. A lone
//! request never waits for company. A request waits only while some messages are on their way
//! already, and until there are enough requests.
//!
//! The server makes all comparisons before any write (`compareToPath` in
//! `server/etcdserver/apply.go`). So two writes of one lock that each find nobody ahead would both
//! be done. That is why the next write of a lock goes alone while another one waits.
//!
//! A write that is refused makes all fail that go with it. So puts go together only if they have
//! the same lease, with which all of them fail. Deletions go with deletions, which are done even
//! when the disk is full. If a batch is refused for another reason, its writes are sent again one
//! by one.
//!
//! Servers before 3.6.9, and releases of the same age of other branches, do not check whether the
//! client has the rights to what is inside a transaction (GHSA-rfx7-8w68-q57q). If the client may
//! have rights of its own, each write goes alone.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use etcd_client::{ResponseHeader, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::errors::{ErrorClass, Failed};
use super::members::Members;
use crate::deadline::Deadline;
use crate::store::{Applied, Cause};
use crate::stores::gathering::{Entered, Gathering, Part};
use crate::sync::Mutex;

/// How many messages may be on their way before further requests wait for company.
const AT_ONCE: usize = 2;

/// The most writes that go together. A server takes 128 operations in a transaction, with those
/// inside of it (`checkTxnRequest` in `server/etcdserver/api/v3rpc/key.go`), unless it was started
/// with another number.
const LARGEST: usize = 64;

/// The writes of one process.
pub(super) struct Batches {
    pub(super) members: Arc<Members>,
    gathering: Mutex<Gathering<Waiting>>,
}

/// A write that concerns one lock.
pub(super) struct Write {
    /// The beginning of its keys.
    pub(super) lock: String,
    /// The lease of what it puts. `None`: it only deletes.
    pub(super) lease: Option<i64>,
    pub(super) txn: Txn,
}

/// The answer to a write.
pub(crate) struct Written {
    /// The revision of the store after it.
    pub(super) revision: i64,
    pub(super) answer: TxnResponse,
}

type Answer = Result<Written, Failed>;

struct Waiting {
    write: Write,
    done: oneshot::Sender<Answer>,
    /// Set once: when it was sent, or `None` if it was given up before that.
    sent_at: Arc<OnceLock<Option<Instant>>>,
}

impl Part for Waiting {
    fn lock(&self) -> &str {
        &self.write.lock
    }

    fn goes_with(&self, first: &Self) -> bool {
        self.write.lease == first.write.lease
    }

    fn leaves(&self, now: Instant) -> bool {
        !self.done.is_closed() && self.sent_at.set(Some(now)).is_ok()
    }
}

/// The right to have a message on its way. When dropped, it goes to the writes that wait.
struct Slot(Arc<Batches>);

impl Batches {
    pub(super) fn new(members: &Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            members: Arc::clone(members),
            gathering: Mutex::new(Gathering::new(AT_ONCE, LARGEST)),
        })
    }

    /// Sends the write, alone or with others. If this is dropped before, the write is not sent.
    pub(super) async fn write(self: &Arc<Self>, write: Write, deadline: Deadline) -> Answer {
        if self.members.settings.is_known {
            return self.alone(write.txn, deadline).await;
        }
        let (done, answer) = oneshot::channel();
        let sent_at = Arc::new(OnceLock::new());
        let waiting = Waiting {
            write,
            done,
            sent_at: Arc::clone(&sent_at),
        };
        let time = &self.members.time;
        let entered = self.gathering.lock().enter(waiting, time.now());
        match entered {
            Entered::Goes(one) => {
                let _slot = Slot(Arc::clone(self));
                return self.alone(one.write.txn, deadline).await;
            }
            Entered::Alone(one) => return self.alone(one.write.txn, deadline).await,
            Entered::Waits => {}
            Entered::Full(batch) => self.spawn(batch),
        }
        let answer = time.bound(deadline.min(self.members.patience()), answer);
        if let Ok(Ok(answer)) = answer.await {
            return answer;
        }
        // What has not been sent by now is never sent.
        let applied = match sent_at.get_or_init(|| None) {
            Some(sent_at) => Applied::Unknown { sent_at: *sent_at },
            None => Applied::No,
        };
        Err(Failed {
            class: ErrorClass::AskElsewhere,
            cause: Cause::Silence,
            applied,
        })
    }

    fn spawn(self: &Arc<Self>, batch: Vec<Waiting>) {
        if batch.is_empty() {
            return;
        }
        let slot = Slot(Arc::clone(self));
        let send = async move { slot.0.send(batch).await };
        self.members.context.spawn(send);
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
                // Each of them is done by itself, so they were too many together.
                if join_all(again).await.into_iter().all(|is_done| is_done) {
                    self.gathering.lock().largest = (number / 2).max(1);
                }
            }
            Err(failed) => {
                for one in batch {
                    let _left = one.done.send(Err(failed.clone()));
                }
            }
        }
    }

    /// Sends these as one transaction.
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

impl Drop for Slot {
    fn drop(&mut self) {
        let now = self.0.members.time.now();
        let batch = self.0.gathering.lock().came_back(now);
        self.0.spawn(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(lease: Option<i64>) -> (Waiting, oneshot::Receiver<Answer>) {
        let (done, answer) = oneshot::channel();
        let write = Write {
            lock: "a".to_owned(),
            lease,
            txn: Txn::new(),
        };
        let sent_at = Arc::default();
        let waiting = Waiting {
            write,
            done,
            sent_at,
        };
        (waiting, answer)
    }

    #[test]
    fn what_would_fail_with_another_goes_with_it() {
        let first = waiting(Some(1)).0;
        for (lease, together) in [(Some(1), true), (Some(2), false), (None, false)] {
            let other = waiting(lease).0;
            assert_eq!(other.goes_with(&first), together, "{lease:?}");
        }
    }

    #[test]
    fn what_was_given_up_is_not_sent() {
        let now = Instant::now();
        let (one, answer) = waiting(None);
        assert!(one.leaves(now));
        assert_eq!(one.sent_at.get(), Some(&Some(now)), "its moment is noted");
        drop(answer);
        let (one, _answer) = waiting(None);
        one.sent_at.get_or_init(|| None);
        assert!(!one.leaves(now), "it had no more time");
        let (one, answer) = waiting(None);
        drop(answer);
        assert!(!one.leaves(now), "its caller has left");
    }
}
