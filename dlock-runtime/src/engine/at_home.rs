//! Operations on the manager's runtime, for a store whose connections belong to
//! it: each is a task there, whoever calls.
//!
//! A caller whose runtime stands still then holds up nobody: its request goes on,
//! and what it was granted ends when its time has passed.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;

use super::Running;
use crate::backend::{BackendError, Request};
use crate::in_flight::{Counted, InFlight};
use crate::store::Store;

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
        let (had, mut unclaimed) = answer.await.map_err(|_| self.has_stopped())??;
        unclaimed.0 = None;
        Ok(had)
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

/// What was had, if anything was, is given back unless somebody hears of it.
struct Unclaimed<S: Store>(Option<(Arc<Running<S>>, Request)>);

impl<S: Store> Drop for Unclaimed<S> {
    fn drop(&mut self) {
        if let Some((running, request)) = &self.0 {
            running.give_back(request);
        }
    }
}
