//! A task that waits at the gate, for a lock or for the rest of several.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::queue::Queue;
use super::ticket::{Entry, Stage, Ticket};
use super::turn::Turn;

/// A task's side of its [`Ticket`]. When dropped, what the task was given goes to the next.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) queue: Arc<Queue>,
    pub(super) ticket: Arc<Ticket>,
}

impl Waiting {
    /// What the task was given.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Stage> {
        loop {
            match ready!(self.ticket.poll(cx)) {
                Stage::Called => self.queue.take_loose(&self.ticket),
                came => return Poll::Ready(came),
            }
        }
    }

    /// Leaves the gate. Returns the turn that the task was given, if it was given one.
    pub(super) fn leave(&self) -> Option<Turn> {
        match self.ticket.leave() {
            Stage::Waits | Stage::Called => {
                self.queue.left(&self.ticket);
                None
            }
            Stage::Lease(lease) => Some(Turn::new(lease, &self.queue)),
            Stage::Lead(_) | Stage::Failed(_) | Stage::Gone => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

/// The leases that a call for several keys has so far. They are renewed while it waits for the
/// rest. Each lies in a ticket, so that the sweep can wake the call now and then to see whether
/// it is still polled. When this is dropped, the leases go to whoever is next.
#[derive(Debug, Default)]
pub(crate) struct Collecting(Vec<Waiting>);

impl Collecting {
    pub(crate) fn add(&mut self, mut turn: Turn, entry: &Entry<'_>) {
        if let Some(lease) = turn.lease.take() {
            let queue = Arc::clone(&turn.queue);
            let ticket = queue.keeps(lease, entry);
            self.0.push(Waiting { queue, ticket });
        }
    }

    /// Waits for `more`; `None` as soon as one of the collected leases was taken back.
    pub(crate) async fn wait_for<T>(&self, more: impl Future<Output = T>) -> Option<T> {
        let mut more = pin!(more);
        poll_fn(|cx| {
            if !self.0.iter().all(|one| one.ticket.still_has(cx)) {
                return Poll::Ready(None);
            }
            more.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// The turns, in the order in which they were added; `None` if one was taken back.
    pub(crate) fn finish(self) -> Option<Vec<Turn>> {
        self.0.iter().map(Waiting::leave).collect()
    }
}
