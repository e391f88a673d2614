//! The keeper: the schedule of all leases of a manager, by when each is to be
//! looked at next. A task of its own goes by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::plan::Step;
use super::state::{Lease, Phase, State};
use crate::backend::{BackendError, Owner};
use crate::clock::Clock;
use crate::observe;
use crate::sync::Mutex;
use crate::tables::HashSet;

#[derive(Debug)]
pub(crate) struct Keeper {
    pub(super) clock: Clock,
    schedule: Mutex<Schedule>,
    /// Told when something has to be done earlier than the last look said.
    pub(super) earlier: Notify,
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

impl Schedule {
    fn insert(&mut self, at: Instant, lease: &Arc<Lease>, state: &mut State) {
        state.scheduled = Some(at);
        let key = (at, lease.request.owner.sequence());
        self.leases.insert(key, Arc::clone(lease));
    }

    fn remove(&mut self, lease: &Lease, state: &mut State) {
        if let Some(at) = state.scheduled.take() {
            self.leases.remove(&(at, lease.request.owner.sequence()));
        }
    }
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

    pub(super) fn say_whether_failing(&self, error: Option<&BackendError>) {
        let before = self.failing.swap(error.is_some(), Ordering::Relaxed);
        if before != error.is_some() {
            observe::renewals_failing(error.map(|error| error as _));
        }
    }

    /// Puts a lease in the schedule, or moves it to where it belongs now.
    pub(super) fn reschedule(&self, lease: &Arc<Lease>, now: Instant) {
        let mut schedule = self.schedule.lock();
        let mut state = lease.state.lock();
        schedule.remove(lease, &mut state);
        // One that nobody looks at would keep its leases for ever.
        if state.phase != Phase::Held || schedule.closed {
            return;
        }
        let due = match state.plan.step(now) {
            Step::End | Step::Renew => now,
            Step::LookAt(instant) => instant,
        };
        schedule.insert(due, lease, &mut state);
        drop(state);
        if schedule.armed.is_none_or(|armed| due < armed) {
            schedule.armed = Some(due);
            drop(schedule);
            self.earlier.notify_one();
        }
    }

    pub(super) fn unschedule(&self, lease: &Lease) {
        let mut schedule = self.schedule.lock();
        schedule.remove(lease, &mut lease.state.lock());
    }

    /// Takes out what is to be done now, and says when to look again: each lease
    /// leaves the schedule, or moves behind `now`, so that there is an end. `None`
    /// once it is closed.
    pub(super) fn look(&self) -> Option<Due> {
        let mut schedule = self.schedule.lock();
        if schedule.closed {
            return None;
        }
        let now = self.clock.now();
        let mut due = Due::default();
        while let Some(entry) = schedule.leases.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let lease = entry.remove();
            let mut state = lease.state.lock();
            state.scheduled = None;
            let step = match state.phase {
                Phase::Held => state.plan.step(now),
                Phase::Lost(_) | Phase::Released => Step::End,
            };
            match step {
                Step::End => {
                    drop(state);
                    due.ended.push(lease);
                }
                Step::Renew => {
                    state.plan.renewal_sent();
                    due.renewals.push(Arc::clone(&lease));
                    // To see it end, if there is no answer before.
                    let deadline = state.plan.deadline();
                    schedule.insert(deadline, &lease, &mut state);
                }
                Step::LookAt(instant) => schedule.insert(instant, &lease, &mut state),
            }
        }
        // A lease that was given back before this looked at it does not disarm it:
        // the next would wake it again, and so each of many short holds.
        let next = schedule.leases.keys().next().map(|(next, _)| *next);
        schedule.armed = next.or(schedule.armed.filter(|&armed| armed > now));
        due.next = schedule.armed;
        Some(due)
    }

    /// The leases of these owners.
    pub(super) fn leases_of(&self, owners: &HashSet<Owner>) -> Vec<Arc<Lease>> {
        let schedule = self.schedule.lock();
        let leases = schedule.leases.values();
        let of_them = leases.filter(|lease| owners.contains(&lease.request.owner));
        of_them.cloned().collect()
    }

    /// A runtime has ended. Another one that took one of the leases, if there is any.
    pub(super) fn other_home(&self, ended: runtime::Id) -> Option<runtime::Handle> {
        let schedule = self.schedule.lock();
        let mut other = None;
        for lease in schedule.leases.values() {
            let home = &mut lease.state.lock().home;
            home.take_if(|home| home.id() == ended);
            other = other.or_else(|| home.clone());
        }
        other
    }

    /// Forgets all leases, for good, and ends the task once it looks.
    pub(super) fn close(&self) {
        let leases = {
            let mut schedule = self.schedule.lock();
            schedule.closed = true;
            std::mem::take(&mut schedule.leases)
        };
        drop(leases);
        self.earlier.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::Renewals;
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
        keeper.schedule.lock().armed = Some(due);
        let look = || {
            let next = keeper.look().and_then(|due| due.next);
            assert_eq!(keeper.schedule.lock().armed, next);
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
                    lease.state.lock().plan.set_renewals(renewals);
                    keeper.reschedule(&lease, start);
                    lease
                })
                .collect();
            tokio::time::advance(late).await;
            for _ in 0..2 {
                let due = keeper.look().expect("not closed");
                let schedule = keeper.schedule.lock();
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
        Arc::new(Lease::new(request, grant, keeper.clock, section))
    }
}
