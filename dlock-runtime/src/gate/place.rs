//! A request to the store on its way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime;

use crate::backend::Request;
use crate::lease::{Answer, Leases};
use crate::observe::SectionSpan;

/// A request to the store, as a rule one that waits in its queue. It belongs to
/// the gate and not to the task that polls it: when that task is dropped, or is
/// not polled itself, the next one goes on polling, and the place is kept.
pub(super) struct StorePlace {
    pub(super) answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
    pub(super) request: Request,
    /// It does not wait in the store, and is of no use to who does.
    tries: bool,
    /// Where it was begun. Its timers and connections are of that runtime, and
    /// of no use when that has ended: elsewhere, the place is given up.
    runtime: runtime::Id,
}

impl StorePlace {
    pub(super) fn begin(
        leases: &Arc<Leases>,
        request: Request,
        try_only: bool,
        section: &SectionSpan,
    ) -> Self {
        let leases = Arc::clone(leases);
        let asked = request.clone();
        // The place may serve another.
        let section = section.without_span();
        Self {
            answer: Box::pin(async move { leases.request(asked, try_only, &section).await }),
            request,
            tries: try_only,
            runtime: runtime::Handle::current().id(),
        }
    }

    /// Whether a task that waits can go on with it.
    pub(super) fn can_be_kept(&self) -> bool {
        !self.tries
    }

    /// Whether it can here and now.
    pub(super) fn is_of_use(&self) -> bool {
        self.can_be_kept() && self.runtime == runtime::Handle::current().id()
    }
}

impl std::fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorePlace")
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}
