//! The tasks that wait for one key in this process, in the order they came.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use tokio::time::Instant;

use super::asking::Asking;
use super::place::StorePlace;
use super::probe::Probe;
use super::sweep::Tick;
use super::ticket::{Claim, Ticket};
use crate::backend::Progress;
use crate::observe::Labels;

/// A queue is there while somebody leads it or has a turn. Its leadership is with
/// one of those, or on its way to a waiter, or loose.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Arc<Ticket>>,
    /// Waiters that were dropped and still stand in the queue.
    gone: usize,
    /// Those who do not wait for the lock, but for the answer that somebody else
    /// is about to get.
    tries: Vec<Arc<Ticket>>,
    /// The request of whoever leads.
    asked: Option<Arc<Asking>>,
    holding: Holding,
    /// Who was given something last, and may not have come for it yet.
    given: Option<Arc<Ticket>>,
    /// Somebody did not come for what it was given. Those behind may be the
    /// same: the leadership goes to the first of them who comes, and not to the first.
    doubtful: bool,
    /// The right to speak to the store is for the first who comes, with the place
    /// in the store's queue until the next look.
    loose: Option<Option<StorePlace>>,
    /// A question whether the store is there.
    probe: Option<Arc<Probe>>,
}

/// Whether the lock is held in this process, as far as its queue knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Holding {
    #[default]
    Nobody,
    Held,
    /// Nobody works under it any more. Since then the store is asked to take it
    /// back, and has not answered.
    Returning(Instant),
}

/// What the sweep has found in a queue.
#[derive(Debug)]
pub(super) enum Neglected {
    /// Not for long yet.
    Unseen(Arc<Ticket>),
    Given(Arc<Ticket>),
    /// The store has answered, as it seems, and for a while nobody has heard.
    Unheard(Arc<Asking>),
    Asking(Arc<Asking>),
    /// Others wait behind it. Whether it comes if it is woken shows at the next
    /// look.
    Ahead(Arc<Asking>),
    /// Nobody has come to go on with it. To be dropped.
    Place {
        _place: StorePlace,
    },
}

impl Queue {
    pub(super) fn join(&mut self, fresh: bool, labels: Labels) -> Arc<Ticket> {
        let ticket = Ticket::new(fresh, labels);
        self.waiters.push_back(Arc::clone(&ticket));
        ticket
    }

    /// A place among those who wait for an answer only.
    pub(super) fn join_tries(&mut self, labels: Labels) -> Arc<Ticket> {
        let ticket = Ticket::new(true, labels);
        self.tries.push(Arc::clone(&ticket));
        ticket
    }

    /// Somebody has begun to ask the store. Who should know of it is to be
    /// woken.
    #[must_use]
    pub(super) fn asks(&mut self, asking: Arc<Asking>) -> (Option<Arc<Asking>>, Vec<Waker>) {
        let before = self.asked.replace(asking);
        let called = self.tries.iter().filter_map(|one| one.call()).collect();
        (before, called)
    }

    /// The lock is held from now on; returns those who only asked for an answer.
    pub(super) fn holds(&mut self) -> (Option<Arc<Asking>>, Vec<Arc<Ticket>>) {
        self.holding = Holding::Held;
        (self.asked.take(), std::mem::take(&mut self.tries))
    }

    pub(super) fn holding(&self) -> Holding {
        self.holding
    }

    pub(super) fn is_held(&self) -> bool {
        self.holding == Holding::Held
    }

    pub(super) fn returns(&mut self, now: Instant) {
        if self.is_held() {
            self.holding = Holding::Returning(now);
        }
    }

    /// What the request of whoever leads has heard; none if nobody has asked.
    pub(super) fn progress(&self) -> Option<&Progress> {
        self.asked.as_deref().map(Asking::progress)
    }

    pub(super) fn probe(&mut self) -> &mut Option<Arc<Probe>> {
        &mut self.probe
    }

    /// How many wait for the lock.
    pub(super) fn len(&self) -> usize {
        self.waiters.len().saturating_sub(self.gone)
    }

    /// The next who is to speak to the store: one who waits, or else one who
    /// only tries.
    /// Whether it waits is said beside it.
    pub(super) fn next_leader(&mut self, keeps_place: bool) -> Option<(Arc<Ticket>, bool)> {
        self.holding = Holding::Nobody;
        self.skip_gone();
        let next = self.waiters.pop_front();
        let waits = next.is_some();
        let next = next.or_else(|| {
            self.tries.retain(|one| !one.is_gone());
            (!self.tries.is_empty()).then(|| self.tries.swap_remove(0))
        })?;
        if !(keeps_place && waits) {
            self.asked = None;
        }
        self.given = Some(Arc::clone(&next));
        Some((next, waits))
    }

    /// The next waiter that is still there, if a used lease will do for it.
    pub(super) fn next_holder(&mut self) -> Option<Arc<Ticket>> {
        self.skip_gone();
        if self.waiters.front()?.is_fresh() {
            return None;
        }
        let next = self.waiters.pop_front()?;
        self.given = Some(Arc::clone(&next));
        Some(next)
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<Ticket>> {
        self.gone = 0;
        let waiters = std::mem::take(&mut self.waiters).into_iter();
        waiters.chain(std::mem::take(&mut self.tries)).collect()
    }

    pub(super) fn take_tries(&mut self) -> Vec<Arc<Ticket>> {
        std::mem::take(&mut self.tries)
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// Leaves the leadership to the first who comes, and calls all: to be woken.
    #[must_use]
    pub(super) fn let_loose(&mut self, place: Option<StorePlace>) -> Vec<Waker> {
        self.holding = Holding::Nobody;
        if place.is_none() {
            self.asked = None;
        }
        self.loose = Some(place);
        let all = self.waiters.iter().chain(&self.tries);
        all.filter_map(|one| one.call()).collect()
    }

    pub(super) fn is_loose(&self) -> bool {
        self.loose.is_some()
    }

    /// The leadership, with the place in the store's queue if that was kept, for who
    /// has come.
    pub(super) fn take_loose(&mut self) -> Option<Option<StorePlace>> {
        let loose = self.loose.take()?;
        self.doubtful = false;
        Some(loose)
    }

    /// Whether nobody waits for anything.
    pub(super) fn is_deserted(&self) -> bool {
        let mut all = self.waiters.iter().chain(&self.tries);
        all.all(|one| one.is_gone())
    }

    /// A waiter was dropped. The queue is swept when half of it is gone, so
    /// that leaving costs little and nothing piles up.
    pub(super) fn left(&mut self) {
        self.gone += 1;
        if self.gone * 2 > self.waiters.len() {
            self.waiters.retain(|waiter| !waiter.is_gone());
            self.gone = 0;
        }
    }

    pub(super) fn left_tries(&mut self) {
        self.tries.retain(|one| !one.is_gone());
    }

    fn skip_gone(&mut self) {
        while self.waiters.front().is_some_and(|waiter| waiter.is_gone()) {
            self.waiters.pop_front();
            self.gone = self.gone.saturating_sub(1);
        }
    }

    /// Looks for what nobody has come for. Whether there is anything that may
    /// come to that.
    pub(super) fn look(&mut self, tick: Tick, neglected: &mut Vec<Neglected>) -> bool {
        let mut outstanding = false;
        if let Some(ticket) = &self.given {
            match ticket.look(tick) {
                Claim::Claimed => self.given = None,
                Claim::Unclaimed => {
                    outstanding = true;
                    neglected.push(Neglected::Unseen(Arc::clone(ticket)));
                }
                Claim::Outstanding => outstanding = true,
                Claim::Neglected => {
                    outstanding = true;
                    neglected.push(Neglected::Given(Arc::clone(ticket)));
                }
            }
        }
        if let Some(asking) = &self.asked {
            if look_at(asking, tick, neglected) {
                outstanding = true;
            } else if self.len() > 0 {
                outstanding = true;
                neglected.push(Neglected::Ahead(Arc::clone(asking)));
            }
        }
        if let Some(place) = self.loose.as_mut().and_then(Option::take) {
            self.asked = None;
            neglected.push(Neglected::Place { _place: place });
        }
        outstanding
    }
}

/// The same for one request.
pub(super) fn look_at(asking: &Arc<Asking>, tick: Tick, neglected: &mut Vec<Neglected>) -> bool {
    let Some(first) = asking.neglected_since(tick) else {
        return false;
    };
    if tick.is_too_long_after(first) {
        neglected.push(Neglected::Asking(Arc::clone(asking)));
    } else if tick.is_next_after(first) {
        neglected.push(Neglected::Unheard(Arc::clone(asking)));
    }
    true
}
