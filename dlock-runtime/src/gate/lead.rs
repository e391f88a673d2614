//! The lead of a queue: the right to ask the store, and the request that is on its way.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, Id};

use crate::lease::{Answer, Follower, Lease};

/// The index of a lead among those of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeadNumber(pub(super) u32);

/// The queue of a lead.
pub(super) trait Led: Follower {
    /// Gives the lead to the next task, with the request that is on its way.
    fn pass_on(self: Arc<Self>, number: LeadNumber, place: Option<StorePlace>);
}

/// The lead of a queue. When dropped, it goes to the next task, with the request that is on
/// its way.
#[derive(Debug)]
pub(super) struct Lead {
    /// `None` once the lead has gone to another task, or follows a lease.
    queue: Option<Arc<dyn Led>>,
    pub(super) number: LeadNumber,
    place: Option<StorePlace>,
    /// The store's answer, once it is there.
    pub(super) answer: Option<Answer>,
}

impl Lead {
    pub(super) fn new(queue: Arc<dyn Led>, number: LeadNumber, place: Option<StorePlace>) -> Self {
        Self {
            queue: Some(queue),
            number,
            place,
            answer: None,
        }
    }

    /// This lead, with a request that has begun: `answer` runs it. `tries` if it is a `try`.
    pub(super) fn asks(mut self, answer: BoxFuture<'static, Answer>, tries: bool) -> Self {
        self.place = Some(StorePlace {
            answer,
            tries,
            runtime: this_runtime(),
        });
        self
    }

    /// Ready when the store has answered, and also if there is no request, or it belongs to
    /// another runtime.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Taken out while it is polled, so that a future that panics is not polled again.
        if let Some(mut place) = self.place.take_if(|place| place.runtime == this_runtime()) {
            let Poll::Ready(answer) = place.answer.as_mut().poll(cx) else {
                self.place = Some(place);
                return Poll::Pending;
            };
            self.answer = Some(answer);
        }
        Poll::Ready(())
    }

    /// The lead goes to the next task when this lease has gone back, or is lost.
    pub(super) fn follow(mut self, lease: &Lease) {
        if let Some(queue) = self.queue.take() {
            lease.follow_with(queue, self.number.0);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.pass_on(self.number, self.place.take());
        }
    }
}

/// A request to the store, which usually waits in the store's queue. It belongs to the gate and
/// not to the task that polls it: when that task is dropped or no longer polled, the next one
/// polls it instead, and the place in the store's queue is kept.
pub(super) struct StorePlace {
    answer: BoxFuture<'static, Answer>,
    /// A `try`: it has no place in the store's queue, so a task that waits cannot use it.
    pub(super) tries: bool,
    /// The runtime on which it began, which has its timers and connections. On another one the
    /// place is given up.
    runtime: Option<Id>,
}

fn this_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorePlace")
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
