//! Marks of what has been done: a key beside the queue of its lock.
//!
//! A mark does not stand in the queue, where `etcdctl lock` would wait behind it. It is written in
//! the transaction that deletes the holder's key, and every transaction that asks for a place
//! compares that there is none. It ends with a lease of its own. A new leader of etcd begins the
//! time of every lease anew, unless the servers keep checkpoints of leases. So a mark may last for
//! longer than was asked.

use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};

use super::batches::Write;
use super::errors::{ErrorClass, Failed, foreign};
use super::inspect::{found, owner_of};
use super::leases::seconds;
use super::names::LockName;
use super::queue::{Key, has_deleted};
use super::store::EtcdStore;
use crate::backend::{Owner, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Failure, Freed, Next};

impl LockName {
    /// Holds if the body of the lock has not been done.
    pub(super) fn is_not_done(&self) -> Compare {
        Compare::version(self.mark(), CompareOp::Equal, 0)
    }

    pub(super) fn get_mark(&self) -> TxnOp {
        TxnOp::get(self.mark(), Some(GetOptions::new()))
    }

    /// The owner that has done it, from the answers of a transaction that has read the mark.
    pub(super) fn done_by(
        &self,
        answers: impl IntoIterator<Item = TxnOpResponse>,
        place: &str,
    ) -> Result<Option<String>, Failure> {
        let name = self.mark();
        match found(answers).find(|key| key.key() == name.as_bytes()) {
            None => Ok(None),
            Some(mark) => match owner_of(&mark) {
                Some(owner) => Ok(Some(owner.to_owned())),
                None => Err(Failure::stop(foreign(place, &name))),
            },
        }
    }
}

impl EtcdStore {
    /// Gives the lock back, and leaves a mark that lasts for this time.
    pub(super) async fn mark(
        &self,
        request: &Request,
        key: &Key,
        time: Duration,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let lock = self.members.settings.names.lock(&request.key);
        let (owner, lease) = (request.owner.to_string(), lease_of(request.owner));
        self.leases.grant_as(lease, seconds(time), deadline).await?;
        let put = PutOptions::new().with_lease(lease);
        let txn = Txn::new()
            .when([key.is_there()])
            .and_then([
                TxnOp::delete(&*key.name.key, None),
                TxnOp::put(lock.mark(), &*owner, Some(put)),
            ])
            .or_else([lock.get_mark()]);
        let write = Write {
            lock: lock.queue.clone(),
            lease: Some(lease),
            txn,
        };
        let written = match self.batches.write(write, deadline).await {
            Err(failed) if failed.class == ErrorClass::Refused => {
                // The lock is given back without the mark, which would be refused again and again.
                if self.free(&lock, key, deadline).await? {
                    self.end_mark(lease, deadline).await;
                    return Err(failed.into());
                }
                // An earlier attempt has done so, and has told why; or it has left the mark.
                let marked_by = self.marked_by(&lock, deadline).await?;
                return Ok(Freed::of(marked_by == Some(owner)));
            }
            written => written.map_err(with_another_lease)?,
        };
        let answer = written.answer;
        let place = self.members.settings.place();
        if answer.succeeded() || lock.done_by(answer.op_responses(), &place)? == Some(owner) {
            return Ok(Freed::Released);
        }
        self.end_mark(lease, deadline).await;
        Ok(Freed::NotHeld)
    }

    /// Deletes the key of a lock that is not marked. Returns whether it was there.
    async fn free(&self, lock: &LockName, key: &Key, deadline: Deadline) -> Result<bool, Failure> {
        let write = Write {
            lock: lock.queue.clone(),
            lease: None,
            txn: key.delete(key.is_there()),
        };
        let written = self.batches.write(write, deadline).await;
        let written = written.inspect_err(|failed| key.may_stay(failed))?;
        Ok(has_deleted(&written.answer))
    }

    /// The owner that has done it, if there is a mark.
    async fn marked_by(
        &self,
        lock: &LockName,
        deadline: Deadline,
    ) -> Result<Option<String>, Failure> {
        let look = Txn::new().and_then([lock.get_mark()]);
        // A look changes nothing, even if its answer is lost.
        let seen = self.members.txn(look, deadline).await;
        let seen = seen.map_err(|failed| Failure::from(failed).with(Applied::No))?;
        lock.done_by(seen.op_responses(), &self.members.settings.place())
    }

    /// Removes the mark. Returns whether there was one.
    pub(super) async fn forget_mark(&self, key: &str, deadline: Deadline) -> Result<bool, Failure> {
        let lock = self.members.settings.names.lock(key);
        let Some(owner) = self.marked_by(&lock, deadline).await? else {
            return Ok(false);
        };
        let is_same = Compare::value(lock.mark(), CompareOp::Equal, &*owner);
        let delete = TxnOp::delete(lock.mark(), None);
        let delete = Txn::new().when([is_same]).and_then([delete]);
        let deleted = self.members.txn(delete, deadline).await?.succeeded();
        if let (true, Some(owner)) = (deleted, Owner::read(&owner)) {
            self.end_mark(lease_of(owner), deadline).await;
        }
        Ok(deleted)
    }

    /// Ends a lease that has nothing attached. If this fails, it ends by itself.
    async fn end_mark(&self, lease: i64, deadline: Deadline) {
        let revoke = |mut client: Client| async move { client.lease_revoke(lease).await };
        let _ = self.members.ask(deadline, revoke).await;
    }
}

/// If the lease has ended while the mark was on its way, another attempt grants it anew.
fn with_another_lease(failed: Failed) -> Failure {
    let has_ended = failed.class == ErrorClass::LeaseNotFound;
    let failure = Failure::from(failed);
    match has_ended {
        true => failure.then(Next::Pause),
        false => failure,
    }
}

/// The lease of an owner's mark. It always has the same id, so that a command that is repeated
/// leaves one lease at most.
pub(super) fn lease_of(owner: Owner) -> i64 {
    let spread = owner.sequence().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let id = (owner.random() ^ spread) & i64::MAX.unsigned_abs();
    id.max(1).cast_signed()
}
