//! A request to the store on its way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Handle, Id};

use crate::backend::Request;
use crate::lease::{Answer, Leases};
use crate::observe::Labels;

/// A request to the store, as a rule one that waits in its queue. It belongs to
/// the gate and not to the task that polls it: when that task is dropped, or is
/// not polled itself, the next one goes on polling, and the place is kept.
pub(super) struct StorePlace {
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
    /// It does not wait in the store, and is of no use to who does.
    tries: bool,
    /// Where it was begun. Its timers and connections are of that runtime, and
    /// of no use when that has ended: elsewhere, the place is given up.
    runtime: Option<Id>,
}

impl StorePlace {
    pub(super) fn begin(
        leases: &Arc<Leases>,
        request: Request,
        try_only: bool,
        labels: Labels,
    ) -> Self {
        let leases = Arc::clone(leases);
        Self {
            answer: Box::pin(async move { leases.request(request, try_only, labels).await }),
            tries: try_only,
            runtime: this_runtime(),
        }
    }

    /// Whether another task can go on with it.
    pub(super) fn can_be_kept(&self) -> bool {
        !self.tries
    }

    /// Whether it can be polled on this runtime.
    pub(super) fn is_here(&self) -> bool {
        self.runtime == this_runtime()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        self.answer.as_mut().poll(cx)
    }
}

fn this_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

impl std::fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorePlace")
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
