//! The right to speak to the store, and the request to it that is on its way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Handle, Id};

use crate::backend::Request;
use crate::lease::{Answer, Follower, Lease, Leases};
use crate::observe::Labels;

/// Which of the leads of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeadNumber(pub(super) u32);

/// The queue of a lead.
pub(super) trait Led: Follower {
    /// The lead goes to the next, with the request that is on its way.
    fn pass_on(self: Arc<Self>, number: LeadNumber, place: Option<StorePlace>);
}

/// The lead of a queue. Dropped, it passes on, with the request that is on its way.
#[derive(Debug)]
pub(super) struct Lead {
    /// Present until it passes on, or follows a lease.
    queue: Option<Arc<dyn Led>>,
    pub(super) number: LeadNumber,
    place: Option<StorePlace>,
    /// The store's, once it has come.
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

    /// This lead with a request that is on its way.
    pub(super) fn asks(
        mut self,
        leases: &Arc<Leases>,
        request: Request,
        tries: bool,
        labels: Labels,
    ) -> Self {
        let leases = Arc::clone(leases);
        self.place = Some(StorePlace {
            answer: Box::pin(async move { leases.request(request, tries, labels).await }),
            tries,
            runtime: this_runtime(),
        });
        self
    }

    /// Ready with the store's answer, or if it was not asked, or on another runtime.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Out of it while it is polled: what panics is not polled again.
        if let Some(mut place) = self.place.take_if(|place| place.runtime == this_runtime()) {
            let Poll::Ready(answer) = place.answer.as_mut().poll(cx) else {
                self.place = Some(place);
                return Poll::Pending;
            };
            self.answer = Some(answer);
        }
        Poll::Ready(())
    }

    /// From here on it comes behind this lease.
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

/// A request to the store, as a rule one that waits in its queue. It belongs to
/// the gate and not to the task that polls it: when that task is dropped, or is
/// not polled itself, the next one goes on polling, and the place is kept.
pub(super) struct StorePlace {
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
    /// It does not wait in the store, and is of no use to who does.
    pub(super) tries: bool,
    /// Where it was begun. Its timers and connections are of that runtime, and
    /// of no use when that has ended: elsewhere, the place is given up.
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
