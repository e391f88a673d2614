//! Speaking to the store for a queue, and telling it what was answered.

use std::future::Future;
use std::sync::Arc;

use super::asking::{Asked, Asking, Polling};
use super::entry::{Entry, Refusal};
use super::leadership::Leadership;
use super::name::Name;
use super::place::StorePlace;
use super::queue::Queue;
use super::state::Gate;
use super::ticket::Delivery;
use super::turn::{Successors, Turn};
use crate::backend::{BackendError, Mode, Request};
use crate::lease::{LeaseGuard, NotHad};

impl Gate {
    /// Asks the store until it grants or refuses; `None` if that was taken away
    /// from a task that was not polled.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an `async fn` has room for its arguments twice: rust-lang/rust#62958"
    )]
    pub(super) fn lead(
        self: &Arc<Self>,
        mut leadership: Leadership,
        entry: &Entry<'_>,
    ) -> impl Future<Output = Option<Result<Turn, Refusal>>> {
        async move {
            let (leadership, answer) = match self.request_of(&mut leadership, entry) {
                Ok(request) => self.ask(leadership, request, entry).await?,
                Err(error) => (Some(leadership), Err(error.into())),
            };
            let leadership = leadership?;
            Some(match self.leases.answered(answer, entry.section.clone()) {
                Ok(Some(lease)) => Ok(self.begin_turns(leadership, lease)),
                Ok(None) => {
                    self.tell_tries(leadership.name(), &Refusal::Busy);
                    Err(Refusal::Busy)
                }
                Err(NotHad::Store(error)) => {
                    let refusal = Refusal::from(error);
                    self.fail_all(leadership.name(), &refusal);
                    Err(refusal)
                }
                // The next one asks by itself.
                Err(too_late @ NotHad::TooLate(_)) => Err(too_late.into()),
            })
        }
    }

    /// The request whose place in the store's queue the leader has, or a new one.
    fn request_of(
        &self,
        leadership: &mut Leadership,
        entry: &Entry<'_>,
    ) -> Result<Request, BackendError> {
        let try_only = entry.try_only;
        let place = &mut leadership.place;
        place.take_if(|place| try_only || !place.is_of_use());
        if let Some(place) = place {
            return Ok(place.request.clone());
        }
        let name = leadership.name();
        let request = self.request(Arc::clone(name.key()), Mode::Write, name.ttl())?;
        let asked = request.clone();
        let place = StorePlace::begin(&self.leases, asked, try_only, entry.section);
        leadership.place = Some(place);
        Ok(request)
    }

    fn ask(&self, leadership: Leadership, request: Request, entry: &Entry<'_>) -> Polling {
        let name = leadership.name().clone();
        let labels = entry.section.labels();
        let asking = Asking::begin(&self.sweep, request, Asked::Leads(leadership), labels);
        let (before, called) = {
            let mut queues = self.queues();
            match queues.get_mut(&name) {
                Some(queue) => queue.asks(Arc::clone(&asking)),
                None => (None, Vec::new()),
            }
        };
        drop(before);
        called.into_iter().for_each(std::task::Waker::wake);
        Polling::new(asking)
    }

    /// A fresh lease serves those who queue now, up to the limit: whoever
    /// comes later queues behind the other processes that wait in the store.
    fn begin_turns(self: &Arc<Self>, leadership: Leadership, lease: LeaseGuard) -> Turn {
        let name = leadership.name().clone();
        let (waiting, asked, tries) = {
            let mut queues = self.queues();
            match queues.get_mut(&name) {
                Some(queue) => {
                    let (asked, tries) = queue.holds();
                    (queue.len(), asked, tries)
                }
                None => (0, None, Vec::new()),
            }
        };
        drop(asked);
        for one in tries {
            one.deliver(Delivery::Failed(Refusal::Busy));
        }
        let handovers = u32::try_from(waiting).unwrap_or(u32::MAX).min(self.handoff);
        lease.lease().follow_with(Box::new(leadership));
        Turn::first(
            lease,
            handovers,
            Arc::clone(self) as Arc<dyn Successors>,
            name,
        )
    }

    /// An outage is everybody's: those behind would only wait for it again,
    /// one after the other.
    fn fail_all(&self, name: &Name, refusal: &Refusal) {
        let waiters = self.queues().get_mut(name).map(Queue::take_all);
        for waiter in waiters.into_iter().flatten() {
            waiter.deliver(Delivery::Failed(refusal.clone()));
        }
    }

    /// The answer is that of those who wait for one only.
    fn tell_tries(&self, name: &Name, refusal: &Refusal) {
        let tries = self.queues().get_mut(name).map(Queue::take_tries);
        for one in tries.into_iter().flatten() {
            one.deliver(Delivery::Failed(refusal.clone()));
        }
    }
}
