//! The keeper's task: where it runs, how it renews leases, and how it handles the leases that the
//! store reports as ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Leases;
use super::keeper::Keeper;
use super::state::Lease;
use crate::backend::{Backend, BackendError, Owner};
use crate::clock;
use crate::executor::spawn_into;
use crate::outlast::outlast;
use crate::reach::Reach;
use crate::tables::HashSet;

/// A failed renewal is retried after the ttl divided by this, but not before 5 ms and not after a
/// second.
const RETRIES_PER_TTL: u32 = 20;

/// How long to wait after the store has reported an empty list of losses.
const NO_LOSSES_PAUSE: Duration = Duration::from_secs(1);

/// A renewal counts as late after the ttl divided by this, within these bounds.
const LATE_PER_TTL: u32 = 6;
const LATE: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

impl Leases {
    /// The keeper for leases that the caller takes, with its task running.
    pub(super) fn keeper(self: &Arc<Self>) -> Arc<Keeper> {
        let runtime = self.executor.keeper_runtime();
        let mut keepers = self.keepers.lock();
        if let Some(keeper) = keepers.get(&runtime.id()) {
            return Arc::clone(keeper);
        }
        let keeper = Arc::new(Keeper::new(self.executor.clock()));
        keepers.insert(runtime.id(), Arc::clone(&keeper));
        drop(keepers);
        AtWork::begin(self, Arc::clone(&keeper), &runtime);
        keeper
    }

    /// Ends the leases that the store reports as gone.
    fn taken_away(&self, owners: &HashSet<Owner>) {
        let keepers: Vec<_> = self.keepers.lock().values().cloned().collect();
        for lease in keepers.iter().flat_map(|keeper| keeper.leases_of(owners)) {
            lease.mark_gone();
        }
    }
}

/// The task of a keeper. When it ends, with its runtime or by a panic, the next lease gets a new
/// keeper. The leases of this keeper move to a runtime that took one of them.
struct AtWork {
    keeper: Arc<Keeper>,
    backend: Arc<dyn Backend>,
    reach: Reach,
    /// Weak, so that the task ends once the manager is gone.
    leases: Weak<Leases>,
    runtime: Id,
}

impl AtWork {
    fn begin(leases: &Arc<Leases>, keeper: Arc<Keeper>, runtime: &Handle) {
        let at_work = Self {
            keeper,
            backend: Arc::clone(&leases.backend),
            reach: leases.reach.clone(),
            leases: Arc::downgrade(leases),
            runtime: runtime.id(),
        };
        let work = async move { at_work.work().await };
        leases.executor.spawn_on(runtime, work);
    }

    /// Renews leases that are due and ends those that have run out, on their way back too.
    async fn work(&self) {
        let mut renewals = JoinSet::new();
        while let Some(due) = self.keeper.look() {
            if !due.renewals.is_empty() {
                // In a task of its own: a store that does not answer must not keep other leases
                // from being renewed or from being noticed as lost.
                let batch = RenewalBatch {
                    keeper: Arc::clone(&self.keeper),
                    leases: due.renewals,
                };
                let (backend, reach) = (Arc::clone(&self.backend), self.reach.clone());
                let renewing = async move { batch.renew(&*backend, &reach).await };
                spawn_into(&mut renewals, renewing);
            }
            for lease in due.ended {
                // The last reference to a lease closes its span, in a subscriber's code.
                outlast(|| {
                    lease.end_if_due();
                    drop(lease);
                });
            }
            tokio::select! {
                biased;
                () = sleep_until(due.next) => {}
                () = self.keeper.earlier.notified() => {}
                Some(_) = renewals.join_next() => {}
                owners = self.losses() => {
                    if let Some(leases) = self.leases.upgrade() {
                        leases.taken_away(&owners);
                    }
                }
            }
        }
    }

    /// The next owners whose leases the store has ended by itself. The pause keeps a store that
    /// returns empty lists from blocking renewals.
    async fn losses(&self) -> HashSet<Owner> {
        loop {
            let owners = self.backend.next_losses().await;
            if !owners.is_empty() {
                return owners.into_iter().collect();
            }
            clock::sleep(NO_LOSSES_PAUSE).await;
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let Some(leases) = self.leases.upgrade() else {
            return self.keeper.close();
        };
        let mut keepers = leases.keepers.lock();
        let is_this = |known: &Arc<Keeper>| Arc::ptr_eq(known, &self.keeper);
        if keepers.get(&self.runtime).is_some_and(is_this) {
            keepers.remove(&self.runtime);
        }
        drop(keepers);
        match self.keeper.other_home(self.runtime) {
            Some(home) => Self::begin(&leases, Arc::clone(&self.keeper), &home),
            None => self.keeper.close(),
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => clock::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Leases whose renewal is in flight. Its drop, whatever ends the task, wakes a release that waits
/// for the renewal and schedules leases that were not renewed for another attempt.
struct RenewalBatch {
    keeper: Arc<Keeper>,
    leases: Vec<Arc<Lease>>,
}

impl RenewalBatch {
    /// Leases that get no answer return to the schedule and are retried together.
    async fn renew(self, backend: &dyn Backend, reach: &Reach) {
        let leases = self.leases.iter();
        let requests: Vec<_> = leases.map(|lease| lease.request.clone()).collect();
        let mut renewed = backend.renew(&requests);
        let answers = tokio::select! {
            biased;
            answers = &mut renewed => answers,
            // The store retries its server for a while before it gives up. A log entry after that
            // may be too late for its reader, so a late renewal is logged now.
            error = self.late(reach) => {
                self.keeper.say_that_late(&error);
                renewed.await
            }
        };
        let mut answers = answers.into_iter();
        let mut failed = Vec::new();
        let mut error: Option<BackendError> = None;
        for lease in &self.leases {
            match answers.next() {
                Some(Ok(answer)) => lease.renewed(&answer),
                answer => {
                    lease.section().renewal(lease.key(), "failed");
                    error = answer.and_then(Result::err).or(error);
                    failed.push(lease);
                }
            }
        }
        self.keeper
            .batch_ended(&self.leases, &failed, error.as_ref());
        if let (Some(error), Some(lease)) = (&error, self.leases.first()) {
            lease.store_failed("renew", error);
        }
    }

    /// Resolves with the reason when a renewal is late.
    async fn late(&self, reach: &Reach) -> BackendError {
        let [least, most] = LATE;
        let shortest = self.leases.iter().map(|lease| lease.ttl()).min();
        let late = shortest.map_or(most, |ttl| (ttl / LATE_PER_TTL).clamp(least, most));
        clock::sleep(late).await;
        let silent = format!("the store has not answered for {late:?}");
        reach.explained(BackendError::unavailable(silent)).await
    }
}

impl Drop for RenewalBatch {
    fn drop(&mut self) {
        let now = self.keeper.clock.now();
        for lease in &self.leases {
            let pause = lease.ttl() / RETRIES_PER_TTL;
            let pause = pause.clamp(Duration::from_millis(5), Duration::from_secs(1));
            lease.end_renewal(now + pause);
            self.keeper.reschedule(lease, now);
        }
    }
}
