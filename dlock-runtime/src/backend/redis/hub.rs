//! What a backend does by itself, on the manager's own runtime: it looks after
//! the waiters, and gives back what callers have left behind.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::disown::see_to_unexpected;
use super::give_back::GiveBack;
use super::shared::Shared;
use crate::backend::clock::Deadline;
use crate::in_flight::{Counted, InFlight};

/// The tasks of a backend. They end with this.
pub(super) struct Hub {
    left_behind: mpsc::UnboundedSender<(GiveBack, Counted)>,
    /// Counts what the server has not been told yet.
    unsettled: InFlight,
    stopping: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Hub {
    /// Starts the tasks on the current runtime.
    ///
    /// `others` are those that depend on the kind of store. They end when
    /// `stopping` is cancelled.
    pub(super) fn start(
        shared: &Arc<Shared>,
        others: Vec<JoinHandle<()>>,
        stopping: CancellationToken,
    ) -> Self {
        let (left_behind, inbox) = mpsc::unbounded_channel();
        let mut tasks = others;
        let give_back = give_back_all(Arc::clone(shared), inbox, stopping.clone());
        tasks.push(tokio::spawn(give_back));
        let unexpected = see_to_unexpected(Arc::clone(shared), stopping.clone());
        tasks.push(tokio::spawn(unexpected));
        Self {
            left_behind,
            unsettled: InFlight::default(),
            stopping,
            tasks: Mutex::new(tasks),
        }
    }

    /// Works from a `Drop`, and outside a runtime.
    pub(super) fn give_back(&self, what: GiveBack) {
        // If the backend has stopped, the lease ends by its ttl.
        let _ = self.left_behind.send((what, self.unsettled.count()));
    }

    /// Waits until the server has been told of all that was left behind, or
    /// that has run out.
    pub(super) async fn settle(&self) {
        self.unsettled.wait_idle().await;
    }

    /// Lets the tasks finish what they have begun, but no longer than `limit`.
    pub(super) async fn stop(&self, shared: &Shared, limit: Duration) {
        self.stopping.cancel();
        let tasks = std::mem::take(&mut *self.tasks());
        let deadline = Deadline::after(limit);
        for mut task in tasks {
            if shared
                .connector
                .clock
                .bound(deadline, &mut task)
                .await
                .is_err()
            {
                task.abort();
            }
        }
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for task in self.tasks().drain(..) {
            task.abort();
        }
    }
}

/// Gives back whatever is sent to it, side by side: one that has to be repeated
/// for a whole ttl must not hold up the others.
async fn give_back_all(
    shared: Arc<Shared>,
    mut inbox: mpsc::UnboundedReceiver<(GiveBack, Counted)>,
    stopping: CancellationToken,
) {
    let mut in_flight = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = in_flight.join_next() => {}
            left = inbox.recv() => match left {
                Some((left, unsettled)) => {
                    let work = left.run(Arc::clone(&shared), stopping.clone(), unsettled);
                    in_flight.spawn(work);
                }
                None => break,
            },
            () = stopping.cancelled(), if !inbox.is_closed() => inbox.close(),
        }
    }
    while in_flight.join_next().await.is_some() {}
}
