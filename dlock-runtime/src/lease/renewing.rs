//! The keeper's task: who runs it and where, the renewals, and what the store says
//! of leases that it ended by itself.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Lease;
use super::keeper::Keeper;
use super::leases::Leases;
use crate::backend::{Backend, BackendError, Owner};
use crate::error::LossReason;
use crate::observe::{Operation, Renewal};
use crate::reach::Reach;

/// How often a failed renewal is tried again, as a part of the ttl.
const RETRIES_PER_TTL: u32 = 20;

/// When a store is asked for losses again that had none to tell of.
const NO_LOSSES_PAUSE: Duration = Duration::from_secs(1);

/// When a renewal counts as late, as a part of the ttl and within these bounds.
const LATE_PER_TTL: u32 = 6;
const LATE: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

impl Leases {
    /// The keeper for leases taken by the caller, at work.
    pub(super) fn keeper(self: &Arc<Self>) -> Arc<Keeper> {
        let runtime = self.executor().keeper_runtime();
        let mut keepers = self.keepers();
        if let Some(keeper) = keepers.get(&runtime.id()) {
            return Arc::clone(keeper);
        }
        let keeper = Arc::new(Keeper::new(self.executor().clock()));
        keepers.insert(runtime.id(), Arc::clone(&keeper));
        drop(keepers);
        self.put_to_work(Arc::clone(&keeper), &runtime, Vec::new());
        keeper
    }

    fn put_to_work(
        self: &Arc<Self>,
        keeper: Arc<Keeper>,
        runtime: &runtime::Handle,
        ended: Vec<runtime::Id>,
    ) {
        let work = work(
            Arc::clone(&keeper),
            Arc::clone(self.backend()),
            Arc::downgrade(self),
        );
        let at_work = AtWork {
            keeper,
            leases: Arc::downgrade(self),
            runtime: runtime.id(),
            ended,
        };
        runtime.spawn(async move {
            let _at_work = at_work;
            work.await;
        });
    }
}

/// Renews what is due and ends what has run out, until the manager is gone: it
/// holds no strong reference to that.
async fn work(keeper: Arc<Keeper>, backend: Arc<dyn Backend>, leases: Weak<Leases>) {
    let mut renewals = JoinSet::new();
    let Some(reach) = leases.upgrade().map(|leases| leases.reach().clone()) else {
        return;
    };
    loop {
        let Some(due) = keeper.look() else {
            return;
        };
        for lease in due.ended {
            lease.lose(LossReason::Expired);
        }
        if !due.renewals.is_empty() {
            // In a task of its own: a store that does not answer must not
            // keep the others from being renewed, or from being seen lost.
            let batch = RenewalBatch {
                keeper: Arc::clone(&keeper),
                leases: due.renewals,
            };
            let (keeper, backend) = (Arc::clone(&keeper), Arc::clone(&backend));
            renewals.spawn(renew(keeper, backend, reach.clone(), batch));
        }
        tokio::select! {
            () = sleep_until(due.next) => {}
            () = keeper.woken() => {}
            Some(_) = renewals.join_next() => {}
            owners = losses(&*backend) => {
                match leases.upgrade() {
                    Some(leases) => leases.taken_away(&owners),
                    None => return,
                }
            }
        }
    }
}

/// The next owners whose leases the store has ended by itself. One that tells of
/// nothing, again and again, keeps nobody from being renewed.
async fn losses(backend: &dyn Backend) -> HashSet<Owner> {
    loop {
        let owners = backend.next_losses().await;
        if !owners.is_empty() {
            return owners.into_iter().collect();
        }
        tokio::time::sleep(NO_LOSSES_PAUSE).await;
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Renews one batch. What got no answer goes back into the schedule, to be
/// tried again together.
async fn renew(keeper: Arc<Keeper>, backend: Arc<dyn Backend>, reach: Reach, batch: RenewalBatch) {
    let requests: Vec<_> = batch
        .leases
        .iter()
        .map(|lease| lease.request.clone())
        .collect();
    let mut renewed = backend.renew(&requests);
    let answers = tokio::select! {
        biased;
        answers = &mut renewed => answers,
        // The store asks its server again and again before it gives up. Whoever
        // reads the log has less time than that.
        error = late(&reach, &batch.leases) => {
            keeper.say_whether_failing(Some(&error));
            renewed.await
        }
    };
    let mut answers = answers.into_iter();
    let mut failed: Option<BackendError> = None;
    for lease in &batch.leases {
        match answers.next() {
            Some(Ok(answer)) => {
                lease.renewed(&answer);
                lease.state().plan.renewal_answered(lease.request.ttl);
            }
            answer => {
                lease.say_renewal(Renewal::Failed);
                if let Some(Err(error)) = answer {
                    failed = Some(error);
                }
            }
        }
    }
    keeper.say_whether_failing(failed.as_ref());
    if let (Some(error), Some(lease)) = (&failed, batch.leases.first()) {
        lease.store_failed(Operation::Renew, error);
    }
}

/// Resolves when a renewal is late, with the reason.
async fn late(reach: &Reach, batch: &[Arc<Lease>]) -> BackendError {
    let [least, most] = LATE;
    let shortest = batch.iter().map(|lease| lease.request.ttl).min();
    let late = shortest.map_or(most, |ttl| (ttl / LATE_PER_TTL).clamp(least, most));
    tokio::time::sleep(late).await;
    let silent = format!("the store has not answered for {late:?}");
    reach.explained(BackendError::unavailable(silent)).await
}

fn retry_pause(lease: &Lease) -> Duration {
    let pause = lease.request.ttl / RETRIES_PER_TTL;
    pause.clamp(Duration::from_millis(5), Duration::from_secs(1))
}

/// Leases whose renewal is in flight. Whatever becomes of the task that waits
/// for the answer, a release that waits for the renewal to end is let go, and
/// what was not renewed is tried again.
struct RenewalBatch {
    keeper: Arc<Keeper>,
    leases: Vec<Arc<Lease>>,
}

impl Drop for RenewalBatch {
    fn drop(&mut self) {
        let now = self.keeper.clock().now();
        for lease in &self.leases {
            {
                let mut state = lease.state();
                if state.plan.is_renewal_in_flight() {
                    state.plan.renewal_failed(now + retry_pause(lease));
                }
            }
            lease.answered.notify_waiters();
            self.keeper.reschedule(lease);
        }
    }
}

/// A keeper's task. When it ends, with its runtime or by a panic, the next
/// lease gets another keeper, and the leases that this one has are kept on a
/// runtime that took one of them.
struct AtWork {
    keeper: Arc<Keeper>,
    leases: Weak<Leases>,
    runtime: runtime::Id,
    /// Where this keeper was at work before.
    ended: Vec<runtime::Id>,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let Some(leases) = self.leases.upgrade() else {
            return self.keeper.forget_all();
        };
        let mut keepers = leases.keepers();
        if keepers
            .get(&self.runtime)
            .is_some_and(|keeper| Arc::ptr_eq(keeper, &self.keeper))
        {
            keepers.remove(&self.runtime);
        }
        drop(keepers);
        let mut ended = std::mem::take(&mut self.ended);
        ended.push(self.runtime);
        match self.keeper.home_other_than(&ended) {
            Some(home) => leases.put_to_work(Arc::clone(&self.keeper), &home, ended),
            None => self.keeper.forget_all(),
        }
    }
}
