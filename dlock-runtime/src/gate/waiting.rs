//! Waiting in the queue of a process.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::name::Name;
use super::state::Gate;
use super::ticket::{Came, Delivery, Ticket};

/// A task that waits in the queue of its process.
#[derive(Debug)]
pub(super) struct Waiting {
    gate: Arc<Gate>,
    name: Name,
    ticket: Arc<Ticket>,
    /// Among those who only want an answer.
    tries: bool,
}

impl Waiting {
    pub(super) fn new(gate: Arc<Gate>, name: Name, ticket: Arc<Ticket>, tries: bool) -> Self {
        Self {
            gate,
            name,
            ticket,
            tries,
        }
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Waits to be given something.
    pub(super) async fn comes(&mut self) -> Came {
        loop {
            match (&mut *self).await {
                Came::Called => {
                    let Self {
                        gate, name, ticket, ..
                    } = self;
                    if let Some(leadership) = gate.take_loose(name, ticket, self.tries) {
                        return Came::For(Delivery::Lead(leadership));
                    }
                    if self.tries {
                        return Came::Called;
                    }
                }
                came => return came,
            }
        }
    }
}

impl Future for &mut Waiting {
    type Output = Came;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Came> {
        self.ticket.poll(cx)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.ticket.leave() {
            self.gate.left(&self.name, self.tries);
        } else {
            // What crossed with the drop passes itself on.
            drop(self.ticket.take());
        }
    }
}
