//! A task that waits at the gate.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::queue::Queue;
use super::ticket::{Stage, Ticket};
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
