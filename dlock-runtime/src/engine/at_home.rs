//! Operations on the manager's runtime, for a store whose connections belong to
//! it: each is a task there, whoever calls.
//!
//! A caller whose runtime stands still then holds up nobody: its request goes on,
//! and what it was granted ends when its time has passed.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;

use super::Running;
use super::lease_table::LeaseTable;
use crate::backend::{BackendError, Request};
use crate::in_flight::{Counted, InFlight};
use crate::store::{Abandoned, LeftBehind, Store};

impl<S: Store> Running<S> {
    /// To its end, also when the caller leaves.
    pub(super) async fn at_home<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (done, answer) = oneshot::channel();
        self.spawn(async move {
            // Nobody may be there to hear it.
            let _ = done.send(work.await);
        });
        answer.await.map_err(|_| self.has_stopped())
    }

    /// For as long as the caller is there. What is granted to one who does not hear
    /// of it goes back.
    pub(super) async fn ask_at_home<T: Send + 'static>(
        self: &Arc<Self>,
        request: &Request,
        work: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Result<T, BackendError> {
        let left = Arc::new(OnceLock::new());
        let _leaving = Leaving {
            left: Arc::clone(&left),
            unsettled: self.unsettled.clone(),
        };
        let (mut done, answer) = oneshot::channel();
        let (running, request) = (Arc::clone(self), request.clone());
        self.spawn(async move {
            let _left = left;
            let answer = tokio::select! {
                biased;
                answer = work => answer,
                () = done.closed() => return,
            };
            let _ = done.send(answer.map(|had| Unclaimed {
                had: Some(had),
                running,
                request,
            }));
        });
        answer
            .await
            .map_err(|_| self.has_stopped())?
            .map(Unclaimed::claim)
    }
}

/// What a caller leaves behind counts from the moment it leaves.
struct Leaving {
    left: Arc<OnceLock<Counted>>,
    unsettled: InFlight,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // Without a task any more, there is nobody to end the count but us.
        if Arc::strong_count(&self.left) > 1 {
            let _ = self.left.set(self.unsettled.count());
        }
    }
}

/// What was had, if anything was, and is given back unless somebody hears of it.
struct Unclaimed<S: Store, T> {
    had: Option<T>,
    running: Arc<Running<S>>,
    request: Request,
}

impl<S: Store, T> Unclaimed<S, T> {
    fn claim(mut self) -> T {
        let had = self.had.take();
        had.unwrap_or_else(|| unreachable!("it is taken once"))
    }
}

impl<S: Store, T> Drop for Unclaimed<S, T> {
    fn drop(&mut self) {
        if self.had.is_none() {
            return;
        }
        let (running, owner) = (&self.running, self.request.owner);
        let record = running.table.record(owner);
        if LeaseTable::<S::Record>::KEEPS && !running.table.remove(owner) {
            return;
        }
        let unknown = running.unknown.take(owner, || running.time.now());
        let left = LeftBehind::unknown(unknown);
        running.clean_up(self.request.clone(), Abandoned::at_rest(record), &left);
    }
}
