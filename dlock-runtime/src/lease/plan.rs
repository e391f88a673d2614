//! When a lease is renewed, and when it ends: one decision for every caller, however late it asks.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::chance;

/// How long the next task of this process waits for the answer to a release: as long as the gate
/// waits for a task that is not polled.
const RETURN_PATIENCE: Duration = Duration::from_secs(3);

/// Whether, and until when, a lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewals {
    Always,
    Until(Instant),
    Never,
}

impl Renewals {
    fn go_on(self, now: Instant) -> bool {
        match self {
            Self::Always => true,
            Self::Until(end) => now < end,
            Self::Never => false,
        }
    }
}

/// The next renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// Due at this instant, if the lease is still to be renewed then.
    Due(Instant),
    /// Sent, and not answered yet.
    InFlight,
}

/// What will happen to a held lease if the store sends nothing more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    deadline: Instant,
    renewals: Renewals,
    renewal: Renewal,
}

/// What to do about a lease at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its local deadline has passed. If it is on its way back: the store has ended it by now.
    End,
    Renew,
    /// It is on its way back, and its release has had no answer for long. Its caller may not poll
    /// it, so the next task is to wait for it no longer.
    LetFollow,
    /// Nothing to do before this instant, which is later than the instant asked about.
    LookAt(Instant),
}

impl Plan {
    /// The plan of a lease that was requested at `sent_at`. It is renewed until `set_renewals` says
    /// otherwise.
    pub(super) fn new(sent_at: Instant, ttl: Duration) -> Self {
        let deadline = local_deadline(sent_at, ttl);
        Self {
            deadline,
            renewals: Renewals::Always,
            renewal: Renewal::Due(renew_at(deadline, ttl)),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn renewals(&self) -> Renewals {
        self.renewals
    }

    /// Returns whether this changes anything.
    pub(super) fn set_renewals(&mut self, renewals: Renewals) -> bool {
        std::mem::replace(&mut self.renewals, renewals) != renewals
    }

    pub(super) fn is_renewal_in_flight(&self) -> bool {
        self.renewal == Renewal::InFlight
    }

    /// The only place that decides the next step. A keeper may ask later than it was told to,
    /// because its thread or machine stood still. Whatever the instant, the keeper either gets
    /// something to do or is told a later instant, so it never asks about the same one twice.
    pub(super) fn step(&self, now: Instant) -> Step {
        if now >= self.deadline {
            return Step::End;
        }
        match self.renewal {
            // Decided by what holds when the renewal would be sent.
            Renewal::Due(instant) if self.renewals.go_on(instant.max(now)) => {
                if instant <= now {
                    Step::Renew
                } else {
                    Step::LookAt(instant.min(self.deadline))
                }
            }
            Renewal::Due(_) | Renewal::InFlight => Step::LookAt(self.deadline),
        }
    }

    /// The next step for a lease that is on its way back, as [`step`](Self::step) is for one that is
    /// held. `awaited_since` says since when the next task waits for the answer to the release.
    pub(super) fn return_step(
        &self,
        ttl: Duration,
        awaited_since: Option<Instant>,
        now: Instant,
    ) -> Step {
        let over_at = self.over_at(ttl);
        if now >= over_at {
            return Step::End;
        }
        match awaited_since.map(|since| since + RETURN_PATIENCE) {
            Some(patience) if patience <= now => Step::LetFollow,
            Some(patience) => Step::LookAt(patience.min(over_at)),
            None => Step::LookAt(over_at),
        }
    }

    /// The store has ended the lease by then, unless a renewal was applied without our knowledge.
    pub(super) fn over_at(&self, ttl: Duration) -> Instant {
        self.deadline + 2 * drift_margin(ttl)
    }

    pub(super) fn renewal_sent(&mut self) {
        self.renewal = Renewal::InFlight;
    }

    /// The renewal in flight has ended without an answer. The next may be sent at `again_at`.
    pub(super) fn renewal_unanswered(&mut self, again_at: Instant) {
        self.renewal = Renewal::Due(again_at);
    }

    /// The store confirmed a renewal that was sent at `sent_at`. A late answer never shortens the
    /// lease.
    pub(super) fn renewed(&mut self, sent_at: Instant, ttl: Duration) {
        self.deadline = self.deadline.max(local_deadline(sent_at, ttl));
        if let Renewal::Due(_) = self.renewal {
            self.renewal = Renewal::Due(renew_at(self.deadline, ttl));
        }
    }

    /// The renewal that was in flight has been answered, whatever the answer.
    pub(super) fn renewal_answered(&mut self, ttl: Duration) {
        self.renewal = Renewal::Due(renew_at(self.deadline, ttl));
    }

    /// The store ends the lease at `instant`, and not before.
    pub(super) fn end_at(&mut self, instant: Instant) {
        self.deadline = instant;
    }
}

/// How far the clocks of this machine and of the store may drift apart during a ttl, plus what
/// their resolution hides: 1% and 2 ms.
pub(super) fn drift_margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

fn local_deadline(sent_at: Instant, ttl: Duration) -> Instant {
    sent_at + ttl.saturating_sub(drift_margin(ttl))
}

/// After a third of the ttl, or a little sooner, so that leases that were taken together are not
/// renewed together for ever. At least two thirds of the ttl are left at that moment.
fn renew_at(deadline: Instant, ttl: Duration) -> Instant {
    let jitter = ttl.mul_f64(chance() / 15.0);
    let before_the_end = ttl * 2 / 3 + jitter;
    deadline.checked_sub(before_the_end).unwrap_or(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTLS: [u64; 4] = [10, 200, 1_000, 30_000];

    /// Every plan that a lease of this ttl can have if it was granted at `start`, in steps of a
    /// twentieth of the ttl.
    fn plans(start: Instant, ttl: Duration) -> impl Iterator<Item = Plan> {
        let at = move |step: u32| start + ttl * step / 20;
        let renewals = [Renewals::Always, Renewals::Never]
            .into_iter()
            .chain((0..=30).map(move |step| Renewals::Until(at(step))));
        let granted = Plan::new(start, ttl);
        renewals.flat_map(move |renewals| {
            let renewal = [granted.renewal, Renewal::InFlight]
                .into_iter()
                .chain((0..=30).map(move |step| Renewal::Due(at(step))));
            renewal.map(move |renewal| Plan {
                renewals,
                renewal,
                ..granted
            })
        })
    }

    /// The instants at which something changes, just before and after them, and some in between: a
    /// look may come at any time.
    fn looks(plan: &Plan, start: Instant, ttl: Duration) -> Vec<Instant> {
        let mut looks: Vec<_> = (0..=60).map(|step| start + ttl * step / 40).collect();
        looks.push(plan.deadline);
        looks.extend(match plan.renewals {
            Renewals::Until(end) => Some(end),
            Renewals::Always | Renewals::Never => None,
        });
        looks.extend(match plan.renewal {
            Renewal::Due(instant) => Some(instant),
            Renewal::InFlight => None,
        });
        let close = Duration::from_nanos(1);
        let around = |look: Instant| [look - close, look, look + close];
        looks.into_iter().flat_map(around).collect()
    }

    #[test]
    fn a_look_however_late_makes_progress() {
        let start = Instant::now() + Duration::from_secs(60);
        for ttl in TTLS.map(Duration::from_millis) {
            for plan in plans(start, ttl) {
                for now in looks(&plan, start, ttl) {
                    let step = plan.step(now);
                    let what = || format!("{step:?} {:?} after {plan:?}", now - start);
                    match step {
                        Step::End => assert!(now >= plan.deadline, "{}", what()),
                        Step::Renew => {
                            assert!(now < plan.deadline, "{}", what());
                            assert!(!plan.is_renewal_in_flight(), "{}", what());
                            assert!(plan.renewals.go_on(now), "{}", what());
                        }
                        Step::LookAt(next) => {
                            assert!(now < next && next <= plan.deadline, "{}", what());
                        }
                        Step::LetFollow => panic!("{}", what()),
                    }
                }
            }
        }
    }

    #[test]
    fn a_look_at_a_lease_on_its_way_back_makes_progress() {
        let start = Instant::now() + Duration::from_secs(60);
        for ttl in TTLS.map(Duration::from_millis) {
            let plan = Plan::new(start, ttl);
            let over_at = plan.over_at(ttl);
            let since = (0..=60).map(|step| Some(start + ttl * step / 40));
            for since in since.chain([None]) {
                let patience = since.map(|since| since + RETURN_PATIENCE);
                let looks = looks(&plan, start, ttl).into_iter();
                for now in looks.chain([over_at]).chain(patience) {
                    let is_over = now >= over_at;
                    match plan.return_step(ttl, since, now) {
                        Step::End => assert!(is_over),
                        Step::LetFollow => {
                            assert!(!is_over && patience.is_some_and(|patience| patience <= now));
                            // There is nobody left to follow.
                            let next = plan.return_step(ttl, None, now);
                            assert_eq!(next, Step::LookAt(over_at));
                        }
                        Step::LookAt(next) => assert!(now < next && next <= over_at),
                        Step::Renew => panic!("nobody works under it"),
                    }
                }
            }
        }
    }

    #[test]
    fn at_their_end_there_are_no_more_renewals() {
        let end = Instant::now() + Duration::from_secs(60);
        let close = Duration::from_nanos(1);
        assert!(Renewals::Until(end).go_on(end - close));
        assert!(!Renewals::Until(end).go_on(end));
    }

    /// A caller that looks when told to, or any time later, needs only a few looks until the lease
    /// ends or is renewed. A renewal makes a new plan.
    #[test]
    fn no_number_of_late_looks_is_without_end() {
        let start = Instant::now() + Duration::from_secs(60);
        for ttl in TTLS.map(Duration::from_millis) {
            for plan in plans(start, ttl) {
                for late in (0..=40).map(|step| ttl * step / 20) {
                    let mut now = start;
                    let mut looks = 0;
                    while let Step::LookAt(next) = plan.step(now) {
                        now = next + late;
                        looks += 1;
                        assert!(looks <= 2, "{looks} looks, {late:?} late, at {plan:?}");
                    }
                }
            }
        }
    }

    /// `Held::deadline` says so, and `dlock run --kill-after` goes by it.
    #[test]
    fn two_thirds_of_the_ttl_are_left_when_it_is_renewed() {
        let start = Instant::now() + Duration::from_secs(60);
        for ttl in TTLS
            .into_iter()
            .chain([3_600_000])
            .map(Duration::from_millis)
        {
            for _ in 0..1_000 {
                let plan = Plan::new(start, ttl);
                let Step::LookAt(due) = plan.step(start) else {
                    panic!("{plan:?}");
                };
                let left = plan.deadline() - due;
                assert!(left >= ttl * 2 / 3, "{left:?} of {ttl:?}");
            }
        }
    }

    #[test]
    fn a_renewal_that_is_due_is_not_forgotten() {
        let start = Instant::now() + Duration::from_secs(60);
        let ttl = Duration::from_secs(3);
        let mut plan = Plan::new(start, ttl);
        let Step::LookAt(due) = plan.step(start) else {
            panic!("{plan:?}");
        };
        assert!(due <= start + ttl / 3, "{:?}", due - start);
        assert_eq!(plan.step(due), Step::Renew);
        plan.renewal_sent();
        assert_eq!(plan.step(due), Step::LookAt(plan.deadline()));
        plan.renewal_unanswered(due + ttl / 20);
        assert_eq!(plan.step(due), Step::LookAt(due + ttl / 20));
        assert_eq!(plan.step(due + ttl / 20), Step::Renew);
        plan.renewal_sent();
        plan.renewed(due, ttl);
        plan.renewal_answered(ttl);
        assert_eq!(plan.deadline(), local_deadline(due, ttl));
        let Step::LookAt(next) = plan.step(due) else {
            panic!("{plan:?}");
        };
        assert!(due < next && next <= due + ttl / 3);
        // A change made meanwhile takes effect at once.
        assert!(plan.set_renewals(Renewals::Until(next)));
        assert_eq!(plan.step(next), Step::LookAt(plan.deadline()));
        assert_eq!(plan.step(plan.deadline()), Step::End);
    }
}
