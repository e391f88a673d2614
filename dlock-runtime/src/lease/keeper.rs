//! The keeper: the schedule of all leases of a manager, by when each is to be
//! looked at next. A task of its own goes by it.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::plan::Step;
use super::{Lease, Phase};
use crate::backend::{BackendError, Owner};
use crate::clock::Clock;
use crate::error::LossReason;
use crate::observe;

#[derive(Debug)]
pub(crate) struct Keeper {
    clock: Clock,
    schedule: Mutex<Schedule>,
    /// Told when something has to be done earlier than the task is set for.
    earlier: Notify,
    /// Whether the last renewals failed: an outage is one warning, not one for
    /// every attempt.
    failing: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    /// By the time of the next look, then by the number of the request.
    leases: BTreeMap<(Instant, u64), Arc<Lease>>,
    /// When the task will wake up by itself. A lease that is due later need
    /// not wake it, so a short hold costs no more than a map entry.
    armed: Option<Instant>,
    closed: bool,
}

/// What a look at the schedule found.
#[derive(Default)]
pub(super) struct Due {
    pub(super) renewals: Vec<Arc<Lease>>,
    /// Leases whose deadline has passed, or that have ended before. To be dropped
    /// outside of the lock: the last to know one closes its span.
    pub(super) ended: Vec<Arc<Lease>>,
    pub(super) next: Option<Instant>,
}

impl Keeper {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            schedule: Mutex::default(),
            earlier: Notify::new(),
            failing: AtomicBool::new(false),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(super) fn say_whether_failing(&self, error: Option<&BackendError>) {
        let before = self.failing.swap(error.is_some(), Ordering::Relaxed);
        if before != error.is_some() {
            observe::renewals_failing(error.map(|error| error as _));
        }
    }

    /// A runtime that took one of the leases, other than these.
    pub(super) fn home_other_than(&self, ended: &[runtime::Id]) -> Option<runtime::Handle> {
        let schedule = self.schedule();
        let mut homes = schedule
            .leases
            .values()
            .filter_map(|lease| lease.home.as_ref());
        homes.find(|home| !ended.contains(&home.id())).cloned()
    }

    /// Forgets all leases, for good: the runtime has ended, and there is no
    /// other.
    pub(super) fn forget_all(&self) {
        let leases = {
            let mut schedule = self.schedule();
            schedule.closed = true;
            std::mem::take(&mut schedule.leases)
        };
        drop(leases);
    }

    /// Ends the task once it looks.
    pub(super) fn close(&self) {
        self.schedule().closed = true;
        self.earlier.notify_one();
    }

    /// Puts a lease in the schedule, or moves it to where it belongs now.
    pub(super) fn reschedule(&self, lease: &Arc<Lease>) {
        self.reschedule_at(lease, self.clock.now());
    }

    /// The same at `now`.
    pub(super) fn reschedule_at(&self, lease: &Arc<Lease>, now: Instant) {
        let mut schedule = self.schedule();
        let due = {
            let mut state = lease.state();
            if let Some(before) = state.scheduled.take() {
                schedule
                    .leases
                    .remove(&(before, lease.request.owner.sequence()));
            }
            // One that nobody looks at would keep its leases for ever.
            if state.phase != Phase::Held || schedule.closed {
                return;
            }
            let due = match state.plan.step(now) {
                Step::End | Step::Renew => now,
                Step::LookAt(instant) => instant,
            };
            state.scheduled = Some(due);
            due
        };
        schedule
            .leases
            .insert((due, lease.request.owner.sequence()), Arc::clone(lease));
        if schedule.armed.is_none_or(|armed| due < armed) {
            schedule.armed = Some(due);
            drop(schedule);
            self.earlier.notify_one();
        }
    }

    pub(super) fn unschedule(&self, lease: &Lease) {
        let mut schedule = self.schedule();
        if let Some(due) = lease.state().scheduled.take() {
            schedule
                .leases
                .remove(&(due, lease.request.owner.sequence()));
        }
    }

    /// Ends the leases that the store says are gone.
    pub(super) fn taken_away(&self, owners: &HashSet<Owner>) {
        let leases: Vec<_> = {
            let schedule = self.schedule();
            let taken = |lease: &&Arc<Lease>| owners.contains(&lease.request.owner);
            schedule.leases.values().filter(taken).cloned().collect()
        };
        for lease in leases {
            lease.lose(LossReason::Gone);
        }
    }

    /// Takes out what is to be done now; none once the keeper is closed.
    pub(super) fn look(&self) -> Option<Due> {
        let mut schedule = self.schedule();
        (!schedule.closed).then(|| self.take_due(&mut schedule))
    }

    /// Resolves when something has to be done earlier than the last look said.
    pub(super) async fn woken(&self) {
        self.earlier.notified().await;
    }

    /// Takes out what is to be done now, and says when to look again: each lease
    /// leaves the schedule, or moves behind `now`, so that there is an end.
    fn take_due(&self, schedule: &mut Schedule) -> Due {
        let now = self.clock.now();
        let mut due = Due::default();
        while let Some(entry) = schedule.leases.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let lease = entry.remove();
            let mut state = lease.state();
            state.scheduled = None;
            let step = match state.phase {
                Phase::Held => state.plan.step(now),
                Phase::Lost(_) | Phase::Released | Phase::TooLate => Step::End,
            };
            let next = match step {
                Step::End => {
                    drop(state);
                    due.ended.push(lease);
                    continue;
                }
                Step::Renew => {
                    state.plan.renewal_sent();
                    due.renewals.push(Arc::clone(&lease));
                    // To see it end, if there is no answer before.
                    state.plan.deadline()
                }
                Step::LookAt(instant) => instant,
            };
            state.scheduled = Some(next);
            drop(state);
            schedule
                .leases
                .insert((next, lease.request.owner.sequence()), lease);
        }
        // A lease that was given back before this looked at it does not disarm it:
        // the next would wake it again, and so each of many short holds.
        let next = schedule.leases.keys().next().map(|(next, _)| *next);
        schedule.armed = next.or(schedule.armed.filter(|&armed| armed > now));
        due.next = schedule.armed;
        due
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        // No code of ours panics while it holds this.
        self.schedule
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Renewals;
    use super::*;
    use crate::backend::{Grant, Mode, Request};
    use crate::observe::{Labels, SectionSpan};
    use crate::token::FencingToken;

    /// Each of many short holds would otherwise wake the keeper's thread.
    #[tokio::test(start_paused = true)]
    async fn a_look_between_two_short_holds_does_not_disarm() {
        let keeper = Keeper::new(Clock::Tokio);
        let due = Instant::now() + Duration::from_secs(10);
        // A lease woke it, and had been given back before it looked.
        keeper.schedule().armed = Some(due);
        let look = || {
            let mut schedule = keeper.schedule();
            let next = keeper.take_due(&mut schedule).next;
            assert_eq!(schedule.armed, next);
            next
        };
        assert_eq!(look(), Some(due));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(look(), None);
    }

    /// A keeper that is late by anything leaves nothing in its schedule that it
    /// should have looked at: else it would look again at once, and for ever.
    #[tokio::test(start_paused = true)]
    async fn a_look_leaves_nothing_behind_however_late() {
        let ttl = Duration::from_secs(1);
        for late in (0..=60).map(|step| ttl * step / 40) {
            let keeper = Arc::new(Keeper::new(Clock::Tokio));
            let start = Instant::now();
            let leases: Vec<_> = limits(start, ttl)
                .map(|renewals| {
                    let lease = lease(&keeper, start, ttl);
                    lease.state().plan.set_renewals(renewals);
                    keeper.reschedule(&lease);
                    lease
                })
                .collect();
            tokio::time::advance(late).await;
            let mut schedule = keeper.schedule();
            for _ in 0..2 {
                let due = keeper.take_due(&mut schedule);
                let now = Instant::now();
                assert!(due.next.is_none_or(|next| next > now), "{late:?} late");
                assert!(schedule.leases.keys().all(|(next, _)| *next > now));
                let ended = due.ended.len();
                assert!(ended == 0 || ended == leases.len(), "of one ttl");
                assert_eq!(ended + schedule.leases.len(), leases.len());
                if ended > 0 {
                    break;
                }
            }
        }
    }

    fn limits(start: Instant, ttl: Duration) -> impl Iterator<Item = Renewals> {
        let until = (0..=60).map(move |step| Renewals::Until(start + ttl * step / 40));
        [Renewals::Always, Renewals::Never].into_iter().chain(until)
    }

    fn lease(keeper: &Arc<Keeper>, sent_at: Instant, ttl: Duration) -> Arc<Lease> {
        let request = Request::new("key", Mode::Write, ttl);
        let grant = Grant::new(FencingToken::NONE, sent_at);
        let labels = Labels {
            template: "",
            store: "memory",
            mode: Mode::Write,
        };
        let section = SectionSpan::of_nobody(labels);
        Arc::new(Lease::new(request, grant, Arc::clone(keeper), section))
    }
}
