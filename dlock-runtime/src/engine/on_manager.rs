//! Operations on the manager's runtime, for a store whose connections belong to that runtime: each
//! operation is a task there, whatever runtime the caller is on.
//!
//! So a caller whose runtime stands still holds up nobody: its request continues, and what it was
//! granted ends when its time has passed.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;

use super::Running;
use super::unsettled::{Remains, Unsettled};
use crate::backend::{BackendError, Request};
use crate::store::Store;

impl<S: Store> Running<S> {
    /// Runs `work` to its end, even if the caller leaves.
    ///
    /// The task begins before the returned future is polled. If the future began it, the code of
    /// the task would be in the binary even for stores that never ask for this: a future may be
    /// resumed in any of its states, as far as the compiler knows.
    pub(super) fn on_manager<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Result<T, BackendError>> {
        let (done, answer) = oneshot::channel();
        self.spawn(async move {
            // The caller may have left.
            let _ = done.send(work.await);
        });
        async move { answer.await.map_err(|_| self.has_stopped()) }
    }

    /// Runs `work` while the caller is there. A grant that the caller does not see goes back.
    pub(super) fn ask_on_manager<T: Send + 'static>(
        self: &Arc<Self>,
        request: &Request,
        work: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, BackendError>> {
        let left = Arc::new(OnceLock::new());
        let leaving = Leaving {
            left: Arc::clone(&left),
            unsettled: self.unsettled.clone(),
            key: Arc::clone(&request.key),
        };
        let (mut done, answer) = oneshot::channel();
        let unclaimed = (Arc::clone(self), request.clone());
        self.spawn(async move {
            let _left = left;
            let answer = tokio::select! {
                biased;
                answer = work => answer,
                () = done.closed() => return,
            };
            let _ = done.send(answer.map(|had| (had, Unclaimed(Some(unclaimed)))));
        });
        async move {
            let _leaving = leaving;
            let (had, mut unclaimed) = answer.await.map_err(|_| self.has_stopped())??;
            unclaimed.0 = None;
            Ok(had)
        }
    }
}

/// Counts what a caller leaves behind from the moment it leaves.
struct Leaving {
    left: Arc<OnceLock<Remains>>,
    unsettled: Unsettled,
    key: Arc<str>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // If the task has ended, nothing is left to count.
        if Arc::strong_count(&self.left) > 1 {
            let _ = self.left.set(self.unsettled.count(&self.key));
        }
    }
}

/// Gives back a grant, if there was one, unless the caller takes it.
struct Unclaimed<S: Store>(Option<(Arc<Running<S>>, Request)>);

impl<S: Store> Drop for Unclaimed<S> {
    fn drop(&mut self) {
        if let Some((running, request)) = &self.0 {
            running.give_back(request);
        }
    }
}
