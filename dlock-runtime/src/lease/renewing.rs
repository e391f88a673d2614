//! The keeper's task: where it runs, how it renews leases, and how it handles the leases that the
//! store reports as ended.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Leases;
use super::keeper::Keeper;
use super::state::Lease;
use crate::backend::{Backend, BackendError, Owner, Renewed, Request};
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
        let here = keepers.iter().find(|(id, _)| *id == runtime.id());
        if let Some((_, keeper)) = here {
            return Arc::clone(keeper);
        }
        let keeper = Arc::new(Keeper::new(self.executor.clock()));
        keepers.push((runtime.id(), Arc::clone(&keeper)));
        drop(keepers);
        AtWork::begin(self, Arc::clone(&keeper), &runtime);
        keeper
    }

    /// Extends leases to their whole ttl from now on. Each lease shows afterwards whether it is
    /// still held.
    ///
    /// A task of the manager does so: the release of a lease waits for its renewal, and must not
    /// wait for a caller that is not polled.
    pub(crate) async fn renew_now(&self, leases: Vec<Renewable>) -> Result<(), BackendError> {
        let (mut tell, told) = oneshot::channel();
        let backend = Arc::clone(&self.backend);
        self.executor.spawn_for_caller(async move {
            let mut batch = RenewalBatch::default();
            let begin = async {
                for renewable in leases {
                    // The keeper may be renewing it, and a store gets one request of an owner at a
                    // time.
                    renewable.lease.begin_renewal().await;
                    batch.sent.push_back(renewable);
                }
            };
            // If the caller leaves, the leases are given back, and nothing is to be sent beside that.
            tokio::select! {
                biased;
                () = tell.closed() => return,
                () = begin => {}
            }
            let answers = backend.renew(&batch.requests()).await;
            let failed = batch.answered(answers);
            drop(batch);
            let _ = tell.send(failed.map_or(Ok(()), Err));
        });
        told.await.unwrap_or_else(|_| {
            let ended = "the runtime that renews leases has ended before the store answered";
            Err(BackendError::unavailable(ended))
        })
    }

    /// Ends the leases that the store reports as gone.
    fn taken_away(&self, owners: &HashSet<Owner>) {
        let keepers = self.keepers.lock().clone();
        for lease in keepers
            .iter()
            .flat_map(|(_, keeper)| keeper.leases_of(owners))
        {
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
                let batch = RenewalBatch::of(&self.keeper, &due.renewals);
                let (keeper, backend) = (Arc::clone(&self.keeper), Arc::clone(&self.backend));
                let renewing = batch.renew(due.renewals, keeper, backend, self.reach.clone());
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
        let home = self.keeper.other_home(self.runtime);
        leases.keepers.lock().retain_mut(|(runtime, keeper)| {
            let is_this = Arc::ptr_eq(keeper, &self.keeper);
            if let Some(home) = home.as_ref().filter(|_| is_this) {
                *runtime = home.id();
            }
            !is_this || home.is_some()
        });
        match home {
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

/// A lease, with the keeper that has it in its schedule.
pub(crate) struct Renewable {
    pub(super) lease: Arc<Lease>,
    pub(super) keeper: Arc<Keeper>,
}

impl Renewable {
    /// Its renewal has had no answer, or the store has failed. It is tried again soon.
    fn failed(&self) {
        let now = self.keeper.clock.now();
        let pause = self.lease.ttl() / RETRIES_PER_TTL;
        let pause = pause.clamp(Duration::from_millis(5), Duration::from_secs(1));
        self.lease.renewal_failed(now + pause);
        self.keeper.reschedule(&self.lease, now);
    }

    fn answered(&self, answer: &Renewed) {
        self.lease.renewed(answer);
        self.keeper.reschedule(&self.lease, self.keeper.clock.now());
    }
}

/// Leases whose renewal is in flight. Its drop, whatever ends the task, wakes a release that waits
/// for the renewal and schedules leases that were not renewed for another attempt.
#[derive(Default)]
struct RenewalBatch {
    /// Those that were not renewed so far.
    sent: VecDeque<Renewable>,
}

impl RenewalBatch {
    fn of(keeper: &Arc<Keeper>, leases: &[Arc<Lease>]) -> Self {
        let sent = leases.iter().map(|lease| Renewable {
            lease: Arc::clone(lease),
            keeper: Arc::clone(keeper),
        });
        let sent = sent.collect();
        Self { sent }
    }

    /// Renews leases that are due at a keeper. Those that are not renewed return to its schedule,
    /// and are tried again together.
    async fn renew(
        mut self,
        leases: Vec<Arc<Lease>>,
        keeper: Arc<Keeper>,
        backend: Arc<dyn Backend>,
        reach: Reach,
    ) {
        let requests = self.requests();
        let mut renewed = backend.renew(&requests);
        let answers = tokio::select! {
            biased;
            answers = &mut renewed => answers,
            // The store retries its server for a while before it gives up. A log entry after that
            // may be too late for its reader, so a late renewal is logged now.
            error = late(&leases, &reach) => {
                keeper.say_that_late(&leases, &error);
                renewed.await
            }
        };
        let error = self.answered(answers);
        let failed = self.sent.iter().map(|sent| Arc::clone(&sent.lease));
        // Before they are tried again, when this is dropped.
        keeper.batch_ended(&leases, &failed.collect::<Vec<_>>(), error.as_ref());
    }

    fn requests(&self) -> Vec<Request> {
        let leases = self.sent.iter();
        leases.map(|sent| sent.lease.request.clone()).collect()
    }

    /// Handles the answers. Returns the last error, if a lease was not renewed.
    fn answered(&mut self, answers: Vec<Result<Renewed, BackendError>>) -> Option<BackendError> {
        let (mut answers, mut last) = (answers.into_iter(), None);
        for _ in 0..self.sent.len() {
            let Some(sent) = self.sent.front() else { break };
            let answer = answers.next().unwrap_or_else(|| {
                let few = "it gave fewer answers than there were renewals";
                Err(BackendError::unavailable(few))
            });
            match answer {
                Ok(answer) => {
                    sent.answered(&answer);
                    // From here on, the next renewal may be in flight, which is not of this batch.
                    self.sent.pop_front();
                }
                Err(error) => {
                    let lease = &sent.lease;
                    lease.section().renewal(lease.key(), "failed");
                    if last.is_none() {
                        lease.store_failed("renew", &error);
                    }
                    last = Some(error);
                    self.sent.rotate_left(1);
                }
            }
        }
        last
    }
}

impl Drop for RenewalBatch {
    fn drop(&mut self) {
        self.sent.iter().for_each(Renewable::failed);
    }
}

/// Resolves with the reason when a renewal is late.
async fn late(leases: &[Arc<Lease>], reach: &Reach) -> BackendError {
    let [least, most] = LATE;
    let shortest = leases.iter().map(|lease| lease.ttl()).min();
    let late = shortest.map_or(most, |ttl| (ttl / LATE_PER_TTL).clamp(least, most));
    clock::sleep(late).await;
    let silent = format!("the store has not answered for {late:?}");
    reach.explained(BackendError::unavailable(silent)).await
}
