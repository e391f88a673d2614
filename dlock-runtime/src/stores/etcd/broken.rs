//! Breaks locks, and takes waiters out of their queues.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::inspect::{Listing, Place, holders};
use super::leases::seconds;
use super::marks::lease_of;
use super::names::LockName;
use super::queue::Key;
use super::store::EtcdStore;
use crate::backend::Owner;
use crate::deadline::Deadline;
use crate::store::{Applied, Break, Failure, Freed, Whose};

/// How long the store remembers who was taken out of a queue. The waiter is told at once, or by the
/// next look.
const REMEMBERED: Duration = Duration::from_secs(30);

/// The most places ahead that are compared in one transaction, of which a server takes 128
/// operations.
const MOST_COMPARED: usize = 100;

impl EtcdStore {
    /// Deletes the key of this holder or waiter, as it was shown. A key that was made there since
    /// is another.
    pub(super) async fn break_key(
        &self,
        broken: &Break,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let lock = self.members.settings.names.lock(&broken.key);
        let queue = Listing::of_lock(&self.members, &lock, deadline)
            .await?
            .into_queue();
        let holding = holders(&queue).len();
        match &broken.whose {
            Whose::Holder(holder) => {
                let is_this = |place: &&Place| place.owner == holder.owner;
                let Some(place) = queue[..holding].iter().find(is_this) else {
                    return Ok(Freed::NotHeld);
                };
                let delete = TxnOp::delete(&*place.key, None);
                let delete = Txn::new().when([is_there(place)]).and_then([delete]);
                let deleted = self.members.txn(delete, deadline).await?;
                Ok(Freed::of(deleted.succeeded()))
            }
            Whose::Waiter(waiter) => {
                let (held, waiting) = (&queue[..holding], &queue[holding..]);
                let Some(at) = waiting.iter().position(|place| place.owner == waiter.owner) else {
                    return Ok(Freed::NotHeld);
                };
                let ahead: Vec<_> = held.iter().chain(&waiting[..at]).collect();
                self.take_out(&lock, &waiting[at], &ahead, deadline).await
            }
        }
    }

    /// Deletes the key of a waiter, if the places that keep it from getting the lock are still
    /// there: then it does not hold it. When its key has gone, the waiter looks for another key
    /// that says why.
    async fn take_out(
        &self,
        lock: &LockName,
        place: &Place,
        ahead: &[&Place],
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let modes = ahead.iter().map(|place| place.mode);
        let in_the_way = place.mode.in_the_way(modes, MOST_COMPARED);
        let in_the_way = &ahead[in_the_way.map_err(Failure::refused)?];
        let mut then = vec![TxnOp::delete(&*place.key, None)];
        // Only waiters of dlock look for that key.
        let numbers = place.owner.split('@').next().unwrap_or_default();
        if let Some(owner) = Owner::read(numbers) {
            let lease = lease_of_removal(owner);
            let lasts = seconds(REMEMBERED);
            self.leases.grant_as(lease, lasts, deadline).await?;
            let put = PutOptions::new().with_lease(lease);
            then.push(TxnOp::put(lock.out(&place.owner), "", Some(put)));
        }
        let when = in_the_way.iter().copied().chain([place]).map(is_there);
        let txn = Txn::new().when(when.collect::<Vec<_>>());
        match self
            .members
            .txn(txn.and_then(then), deadline)
            .await?
            .succeeded()
        {
            true => Ok(Freed::Released),
            // One of these places has gone, so the waiter may hold the lock by now.
            false => Err(Failure::ask_again()),
        }
    }

    /// Whether this request was taken out of the queue by an operator.
    pub(super) async fn is_taken_out(
        &self,
        lock: &LockName,
        key: &Key,
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        let out = lock.out(&key.name.value);
        let found = self.members.created_at([&*out].into_iter(), deadline);
        // A look changes nothing, even if its answer is lost.
        let found = found.await;
        let found = found.map_err(|failed| Failure::from(failed).with(Applied::Answered))?;
        Ok(found.into_iter().any(|created| created.is_some()))
    }
}

/// The lease of the key that tells an owner to leave. It is not that of the owner's mark: if the
/// waiter gets the lock first and marks what it has done, the mark must last for its own time.
fn lease_of_removal(owner: Owner) -> i64 {
    (lease_of(owner) ^ (1 << 62)).max(1)
}

/// Holds while the place belongs to the same request.
fn is_there(place: &Place) -> Compare {
    Compare::create_revision(&*place.key, CompareOp::Equal, place.created)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcd takes any id but 0; others than dlock give none that is negative.
    #[test]
    fn what_tells_a_waiter_to_leave_has_a_lease_of_its_own() {
        for _ in 0..1000 {
            let owner = Owner::unique();
            let word = lease_of_removal(owner);
            assert!(word > 0 && word != lease_of(owner), "{word}");
        }
    }
}
