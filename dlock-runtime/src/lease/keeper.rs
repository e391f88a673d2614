//! The keeper: the schedule of all leases of a manager, sorted by when each has to be looked at
//! next. A task of its own works through the schedule.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::plan::Step;
use super::state::{Lease, State};
use crate::backend::{BackendError, Owner};
use crate::clock::Clock;
use crate::observe;
use crate::sync::Mutex;
use crate::tables::{HashMap, HashSet};

#[derive(Debug)]
pub(crate) struct Keeper {
    pub(super) clock: Clock,
    schedule: Mutex<Schedule>,
    /// Notified when something is due earlier than the last look said.
    pub(super) earlier: Notify,
    failing: Mutex<Failing>,
}

/// Which leases could not be renewed at the last attempt. An outage is logged once, not for every
/// attempt, and not as over while some of them still fail: one server of several may be down.
#[derive(Debug, Default)]
struct Failing {
    said: bool,
    /// By the sequence number of the owner.
    leases: HashMap<u64, Weak<Lease>>,
    /// Since the last of them has ended, unrenewed: owners of later leases have greater numbers.
    ended: Option<u64>,
}

/// What is to be logged.
enum News {
    Fails,
    Works,
}

impl Failing {
    fn note(&mut self, leases: &[Arc<Lease>]) {
        let numbered = |lease: &Arc<Lease>| (lease.request.owner.sequence(), Arc::downgrade(lease));
        self.leases.extend(leases.iter().map(numbered));
    }

    /// What a batch changes, of which the leases that had failed were renewed if it `recovered`.
    fn news(&mut self, batch: &[Arc<Lease>], recovered: bool) -> Option<News> {
        if !self.leases.is_empty() {
            let told = self.said && self.ended.is_none();
            (self.said, self.ended) = (true, None);
            return (!told).then_some(News::Fails);
        }
        if !self.said {
            return None;
        }
        let ended = self.ended.get_or_insert_with(|| Owner::unique().sequence());
        // A lease of another server says nothing of the one that failed, unless it was taken later:
        // nothing better will be known.
        let is_later = |lease: &Arc<Lease>| lease.request.owner.sequence() > *ended;
        if !recovered && !batch.iter().any(is_later) {
            return None;
        }
        (self.said, self.ended) = (false, None);
        Some(News::Works)
    }

    /// Returns whether one of them had failed.
    fn forget(&mut self, leases: &[Arc<Lease>]) -> bool {
        let mut had = false;
        if !self.leases.is_empty() {
            for lease in leases {
                had |= self
                    .leases
                    .remove(&lease.request.owner.sequence())
                    .is_some();
            }
        }
        had
    }
}

#[derive(Debug, Default)]
struct Schedule {
    /// Sorted by the time of the next look, then by the sequence number of the owner.
    leases: BTreeMap<(Instant, u64), Arc<Lease>>,
    /// When the task will wake up by itself. A lease that is due later need not wake it, so a short
    /// hold costs only a map entry.
    armed: Option<Instant>,
    closed: bool,
}

/// What a look at the schedule found.
#[derive(Default)]
pub(super) struct Due {
    pub(super) renewals: Vec<Arc<Lease>>,
    /// Leases whose deadline has passed, or that ended before it, or whose release has had no answer
    /// for long. They must be dropped after the mutex is released: the last reference to a lease
    /// closes its span.
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
            failing: Mutex::default(),
        }
    }

    /// The leases of a batch have been renewed, except these.
    pub(super) fn batch_ended(
        &self,
        batch: &[Arc<Lease>],
        failed: &[Arc<Lease>],
        error: Option<&BackendError>,
    ) {
        let mut failing = self.failing.lock();
        let mut alive = Vec::new();
        let recovered = failing.forget(batch);
        // That a lease has ended since says nothing of its server.
        failing.leases.retain(|_, lease| {
            let lease = lease.upgrade();
            let is_held = lease.as_ref().is_some_and(|lease| lease.is_to_be_renewed());
            alive.extend(lease);
            is_held
        });
        failing.note(failed);
        let news = failing.news(batch, recovered);
        // A subscriber's code runs after the mutex is released.
        drop(failing);
        drop(alive);
        match (news, error) {
            (Some(News::Fails), Some(error)) => observe::renewals_failing(Some(error)),
            (Some(News::Works), _) => observe::renewals_failing(None),
            _ => {}
        }
    }

    /// A batch has had no answer for long.
    pub(super) fn say_that_late(&self, batch: &[Arc<Lease>], error: &BackendError) {
        let mut failing = self.failing.lock();
        failing.note(batch);
        let news = failing.news(&[], false);
        drop(failing);
        if let Some(News::Fails) = news {
            observe::renewals_failing(Some(error));
        }
    }

    /// Puts a lease in the schedule, or moves it to its new place.
    pub(super) fn reschedule(&self, lease: &Arc<Lease>, now: Instant) {
        let mut schedule = self.schedule.lock();
        let mut state = lease.state.lock();
        schedule.remove(lease, &mut state);
        // A closed schedule is not looked at any more, and would keep the lease for ever.
        let step = state.step(lease.ttl(), now);
        let Some(step) = step.filter(|_| !schedule.closed) else {
            return;
        };
        let due = match step {
            Step::End | Step::Renew | Step::LetFollow => now,
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

    /// Takes out what is due now, and says when to look again. Each lease leaves the schedule or
    /// moves to a time after `now`, so the loop ends. `None` once the keeper is closed.
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
            match state.step(lease.ttl(), now) {
                None | Some(Step::End) => {
                    drop(state);
                    due.ended.push(lease);
                }
                Some(Step::LetFollow) => {
                    let over_at = state.plan.over_at(lease.ttl());
                    schedule.insert(over_at, &lease, &mut state);
                    drop(state);
                    due.ended.push(lease);
                }
                Some(Step::Renew) => {
                    state.plan.renewal_sent();
                    due.renewals.push(Arc::clone(&lease));
                    // Looked at again at the deadline, to see the lease end if no answer has come
                    // by then.
                    let deadline = state.plan.deadline();
                    schedule.insert(deadline, &lease, &mut state);
                }
                Some(Step::LookAt(instant)) => schedule.insert(instant, &lease, &mut state),
            }
        }
        // A lease that was given back before this look does not disarm the timer. Otherwise the
        // next of many short holds would wake the task again, and so would each one after it.
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

    /// A runtime that took one of the leases, other than `ended`, which has ended. `None` if there
    /// is none.
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

    /// Forgets all leases for good. The task ends at its next look.
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
    use super::super::state::GivenBackBy;
    use super::*;
    use crate::backend::{Grant, Mode, Request};
    use crate::observe::{Labels, SectionSpan};
    use crate::token::FencingToken;

    /// Otherwise, each of many short holds would wake the keeper's thread.
    #[tokio::test(start_paused = true)]
    async fn a_look_between_two_short_holds_does_not_disarm() {
        let keeper = Keeper::new(Clock::Tokio);
        let due = Instant::now() + Duration::from_secs(10);
        // A lease woke the keeper, and was given back before the keeper looked.
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

    /// A lease that has gone back would stay in memory, and its span open, until it is looked at.
    #[tokio::test(start_paused = true)]
    async fn only_leases_that_have_not_gone_back_are_scheduled_and_each_once() {
        let keeper = Arc::new(Keeper::new(Clock::Tokio));
        let (start, ttl) = (Instant::now(), Duration::from_secs(3600));
        let scheduled = || keeper.schedule.lock().leases.len();
        let new = || {
            let lease = lease(&keeper, start, ttl);
            keeper.reschedule(&lease, start);
            lease
        };
        let [moved, given_back, released] = [(); 3].map(|()| new());
        assert_eq!(scheduled(), 3);
        moved.state.lock().plan.set_renewals(Renewals::Never);
        keeper.reschedule(&moved, start);
        assert_eq!(scheduled(), 3, "it was moved");
        keeper.unschedule(&given_back);
        assert_eq!(scheduled(), 2);
        released.mark_released();
        keeper.reschedule(&released, start);
        assert_eq!(scheduled(), 2, "it may have to be given up");
        released.state.lock().back.by = GivenBackBy::Nobody;
        keeper.reschedule(&released, start);
        assert_eq!(scheduled(), 1);
        assert_eq!(Arc::strong_count(&given_back), 1);
        assert_eq!(Arc::strong_count(&released), 1);
        keeper.close();
        keeper.reschedule(&moved, start);
        assert_eq!(scheduled(), 0, "nobody looks at it any more");
    }

    /// However late a keeper looks, it leaves nothing overdue in its schedule. Otherwise it would
    /// look again at once, for ever.
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
