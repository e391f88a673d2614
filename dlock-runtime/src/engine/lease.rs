//! Keeps a lock, gives it back, and inspects it.

use std::mem::take;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Running;
use super::call::{attempts, parts};
use crate::apart::outlined;
use crate::backend::{BackendError, Listed, LockInfo, Released, Renewed, Request};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::{
    Abandoned, Applied, Break, Cause, Due, Ending, Failure, LeftBehind, Next, Store,
};

/// A lease that nobody gives back is forgotten this many ttls after its last extension.
const FORGOTTEN_AFTER: u32 = 4;

impl<S: Store> Running<S> {
    /// When the table forgets a lease that was extended at `sent_at`. On a store that does not end
    /// leases itself: when this process ends it.
    pub(super) fn due(sent_at: Instant, lasts: Duration) -> Instant {
        let until = match S::EXPIRES {
            true => lasts.saturating_mul(FORGOTTEN_AFTER),
            false => lasts,
        };
        Deadline::from(sent_at, until).at()
    }

    pub(crate) async fn release(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Released, BackendError> {
        if S::CLAIM.is_some() {
            // Before the release is sent: a later grant to this owner does not belong to this
            // lease.
            self.events.holders().remove(request.owner);
        }
        let by = (!S::EXPIRES).then(|| self.time.after(self.request_timeout).at());
        let entry = self.table.give_back(request, by);
        let entry = entry.or_else(|| Some((S::forgotten()?, false)));
        let Some((record, mut repeated)) = entry else {
            return Ok(Released::NotHeld);
        };
        let ending = request.done_for().map_or(Ending::Released, Ending::Done);
        let freed = {
            let mut call = self.call();
            attempts!(
                call,
                |attempt| self.store.release(request, Some(&record), ending, attempt),
                |failure| repeated |= may_have_been_done(failure)
            )
        };
        if freed.is_ok() {
            self.table.remove(request.owner);
        }
        // The caller repeats a release that is not answered until the lease has ended. A late
        // command may come even after that, so it needs a cleanup.
        if let Some(unknown) = self.take_unknown(request.owner) {
            let left = LeftBehind::unknown(Some(unknown));
            // If the release has succeeded, its mark is set. No work was done under a late grant of
            // the same request, so its cleanup leaves no mark.
            let is_done = request.done_for().filter(|_| freed.is_err());
            let request = request.clone().done(is_done);
            self.clean_up(request, Abandoned::at_rest(Some(record)), &left);
        }
        // A store recognizes its own marks, so a repeated release is not in doubt.
        let marks = matches!(ending, Ending::Done(_));
        Ok(freed?.released(repeated && !marks))
    }

    /// Ends leases whose time has passed, on a store that does not end them itself.
    pub(super) async fn end_leases(self: Arc<Self>) {
        loop {
            let (over, next) = self.table.take_due(self.time.now());
            for (request, record) in over {
                self.end(request, record);
            }
            tokio::select! {
                biased;
                () = self.table.sooner() => {}
                () = self.time.sleep_until(next) => {}
            }
        }
    }

    pub(crate) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let shortest = requests.iter().map(|request| request.ttl).min();
        let limit = self
            .store
            .renews_within(self.request_timeout, shortest.unwrap_or_default());
        outlined(self.renew_within(requests, limit)).await
    }

    /// Renews leases within one common time limit.
    pub(super) async fn renew_within(
        &self,
        requests: &[Request],
        limit: Duration,
    ) -> Vec<Result<Renewed, BackendError>> {
        let mut answers: Vec<_> = requests.iter().map(|_| Ok(Renewed::Gone)).collect();
        // Each with its index in `requests`.
        let due = requests.iter().enumerate();
        let due = due.filter_map(|(index, request)| Some((index, self.due_of(request)?)));
        let (mut indexes, mut due): (Vec<_>, Vec<_>) = due.unzip();
        let mut call = self.call_within(limit);
        let error = loop {
            if due.is_empty() {
                break None;
            }
            let deadline = match call.begin() {
                Ok(attempt) => attempt.deadline,
                Err(error) => break Some(error),
            };
            let renewed = self.store.renew(&mut due, deadline);
            let mut renewed = renewed.await.into_iter();
            debug_assert_eq!(renewed.len(), due.len(), "an answer for each");
            let mut again = None;
            for (index, lease) in take(&mut indexes).into_iter().zip(take(&mut due)) {
                let owner = lease.request.owner;
                self.table.update(owner, lease.record.clone());
                match renewed.next().unwrap_or_else(|| Err(Failure::not_sent())) {
                    Ok(answer) => answers[index] = Ok(self.renewed(&lease.request, answer)),
                    // Only this lease is refused, not the others.
                    Err(Failure {
                        cause: Cause::Error(error),
                        next: Next::Stop,
                        ..
                    }) => answers[index] = Err(error),
                    Err(failure) => {
                        again = Some(failure);
                        indexes.push(index);
                        due.push(lease);
                    }
                }
            }
            if let Some(failure) = again
                && let Err(error) = call.failed(failure).await
            {
                break Some(error);
            }
        };
        if let Some(error) = error {
            indexes
                .iter()
                .for_each(|&index| answers[index] = Err(error.clone()));
        }
        answers
    }

    /// `None`: there is no lease to extend.
    fn due_of(&self, request: &Request) -> Option<Due<S>> {
        Some(Due {
            request: request.clone(),
            record: self.table.record(request.owner).or_else(S::forgotten)?,
        })
    }

    /// Records an extension. A lease that this process ends may have ended meanwhile.
    fn renewed(&self, request: &Request, renewed: Renewed) -> Renewed {
        let Renewed::Extended { sent_at } = renewed else {
            return renewed;
        };
        let due = Self::due(sent_at.into_std(), request.ttl);
        if self.table.extend(request.owner, due) || S::EXPIRES {
            renewed
        } else {
            Renewed::Gone
        }
    }

    pub(crate) async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        let mut call = self.call();
        let mut repeated = false;
        let forgotten = attempts!(call, |attempt| self.store.forget(key, attempt), |failure| {
            repeated |= may_have_been_done(failure)
        });
        // An earlier attempt that was not answered may have removed the mark.
        Ok(forgotten? || repeated)
    }

    pub(crate) async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        let mut call = self.call();
        attempts!(call, |attempt| self
            .store
            .raise_tokens(floor, attempt.deadline))
    }

    /// Ends the lease or the place of another owner, which learns this from the store. Repeating
    /// this ends nothing else, since owners are never reused.
    pub(crate) async fn break_off(&self, broken: &Break) -> Result<Released, BackendError> {
        let mut call = self.call();
        // An attempt that may have been run, even in part, counts as a break. (A release cannot
        // count it: a server that has lost its data refuses first, and then has no lease, so the
        // holder would not learn of the loss.)
        let mut repeated = false;
        let freed = attempts!(
            call,
            |attempt| self.store.break_off(broken, attempt),
            |failure| repeated |= failure.applied != Applied::No
        )?;
        // The store may not notify the waiters of this process.
        self.events.waiters().wake_key(&broken.key);
        Ok(freed.released(repeated))
    }

    pub(crate) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let mut call = self.call();
        let mut lock = attempts!(call, |attempt| self.store.inspect(key, attempt))?;
        if let Some(lock) = &mut lock {
            lock.stored_as = self.store.stored_as(key);
        }
        // A waiter may have missed the message that was to wake it, so any look that finds the lock
        // free wakes the waiters.
        if lock.as_ref().is_none_or(|lock| lock.holders.is_empty()) {
            self.events.waiters().wake_key(key);
        }
        Ok(lock)
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let mut call = self.call();
        parts!(call, |attempt| self.store.list(prefix, attempt))
    }

    pub(crate) async fn list_some(
        &self,
        prefix: &str,
        most: usize,
    ) -> Result<Listed, BackendError> {
        let mut call = self.call();
        parts!(call, |attempt| self.store.list_some(prefix, most, attempt))
    }
}

// Grants to owners of this process that do not wait: undone, or answered.
//
// A server that was cut off may serve for a moment longer than its replica hears of it. When that
// replica takes over, its queues hold waiters that had their lock long ago. It would grant the
// lock to them one after the other, each time for as long as a grant waits for an answer. Their
// process is alive and is notified of the first such grant. It then undoes that grant and removes
// all its unknown places from that queue. So the stale places of each process cost those who wait
// two round trips, and nobody has to search for them.
//
// Such an owner may also still hold the lock, which the earlier server granted. Then it keeps the
// lock by the new grant. The engine answers that grant with a renewal at once, because the
// holder's next regular renewal may come too late.
impl<S: Store> Running<S> {
    /// Undoes a grant to an owner that does not wait. If this fails, the grant soon ends by itself.
    pub(super) async fn disown(self: Arc<Self>, key: Arc<str>, place: String, claim: Duration) {
        let knows = |owner| self.events.knows(owner, &key);
        let mut call = self.call_within(claim);
        let undone = attempts!(call, |attempt| {
            let deadline = attempt.deadline;
            self.store.disown(&key, &place, &knows, deadline)
        });
        if let Err(error) = undone {
            tracing::debug!(
                target: "dlock::store",
                "a grant of `{}` to somebody who does not wait for it any more stands until it \
                 ends: {error}",
                Shown(&key)
            );
        }
    }

    /// Forgets the holders whose leases have ended, according to these answers to their renewals.
    /// Their bodies may go on after the loss, but a later grant to one of their old places is not
    /// for them.
    pub(super) fn forget_lost(
        &self,
        requests: &[Request],
        renewed: &[Result<Renewed, BackendError>],
    ) {
        if S::CLAIM.is_none() {
            return;
        }
        for (request, renewed) in requests.iter().zip(renewed) {
            if let Ok(Renewed::Gone) = renewed {
                self.events.holders().remove(request.owner);
            }
        }
    }

    /// Extends the lease of a holder that is granted its own lock. It has no effect if the lock has
    /// gone back meanwhile. If it fails and the lock is lost, the holder's own renewals report
    /// that.
    pub(super) async fn answer(self: Arc<Self>, holder: Request, claim: Duration) {
        let holder = [holder];
        let renewed = outlined(self.renew_within(&holder, claim)).await;
        self.forget_lost(&holder, &renewed);
        if let Some(Err(error)) = renewed.first() {
            tracing::debug!(
                target: "dlock::store",
                "lock `{}` was granted to its holder once more, which was not answered: {error}",
                Shown(&holder[0].key)
            );
        }
    }
}

fn may_have_been_done(failure: &Failure) -> bool {
    matches!(failure.applied, Applied::OnItsWay | Applied::Unknown { .. })
}
