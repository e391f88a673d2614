//! The tasks that wait for one key in this process, in the order they came.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::{Baton, Gate, Name, Refusal, Turn};
use crate::backend::Progress;

/// What a waiting task is given. Whatever of it is dropped passes itself on.
#[derive(Debug)]
pub(super) enum Delivery {
    Turn(Turn),
    Lead(Baton),
    Failed(Refusal),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    /// What the request of whoever leads has heard; none while the lock is held
    /// in this process.
    asked: Option<Progress>,
    /// Waiters that were dropped and still stand in the queue.
    gone: usize,
}

#[derive(Debug)]
pub(super) struct Waiter {
    sender: oneshot::Sender<Delivery>,
    fresh: bool,
}

impl Waiter {
    pub(super) fn deliver(self, delivery: Delivery) {
        // A delivery that nobody takes comes back here and is dropped.
        drop(self.sender.send(delivery));
    }
}

impl Queue {
    pub(super) fn join(&mut self, fresh: bool) -> oneshot::Receiver<Delivery> {
        let (sender, receiver) = oneshot::channel();
        self.waiters.push_back(Waiter { sender, fresh });
        receiver
    }

    pub(super) fn set_asked(&mut self, asked: Option<Progress>) {
        self.asked = asked;
    }

    pub(super) fn asked(&self) -> Option<&Progress> {
        self.asked.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len().saturating_sub(self.gone)
    }

    /// The next waiter that is still there.
    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.skip_gone();
        self.waiters.pop_front()
    }

    /// The next waiter that is still there, if a used lease will do for it.
    pub(super) fn pop_if_any_lease(&mut self) -> Option<Waiter> {
        self.skip_gone();
        if self.waiters.front()?.fresh {
            return None;
        }
        self.waiters.pop_front()
    }

    pub(super) fn take_all(&mut self) -> VecDeque<Waiter> {
        self.gone = 0;
        std::mem::take(&mut self.waiters)
    }

    fn skip_gone(&mut self) {
        while self
            .waiters
            .front()
            .is_some_and(|waiter| waiter.sender.is_closed())
        {
            self.waiters.pop_front();
            self.gone = self.gone.saturating_sub(1);
        }
    }

    /// A waiter was dropped. The queue is swept when half of it is gone, so
    /// that leaving costs little and nothing piles up.
    fn left(&mut self) {
        self.gone += 1;
        if self.gone * 2 > self.waiters.len() {
            self.waiters.retain(|waiter| !waiter.sender.is_closed());
            self.gone = 0;
        }
    }
}

/// A task's place in the queue of its process.
#[derive(Debug)]
pub(super) struct Waiting {
    gate: Arc<Gate>,
    name: Name,
    ticket: oneshot::Receiver<Delivery>,
    served: bool,
}

impl Waiting {
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn new(gate: Arc<Gate>, name: Name, ticket: oneshot::Receiver<Delivery>) -> Self {
        Self {
            gate,
            name,
            ticket,
            served: false,
        }
    }
}

impl Future for Waiting {
    type Output = Delivery;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Delivery> {
        let delivery = ready!(Pin::new(&mut self.ticket).poll(cx));
        self.served = true;
        // A waiter is only taken out of the queue to be given something.
        Poll::Ready(delivery.unwrap_or_else(|_| unreachable!("a waiter was forgotten")))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.served {
            return;
        }
        self.ticket.close();
        match self.ticket.try_recv() {
            // It crossed with the drop. Dropping it passes it on.
            Ok(delivery) => drop(delivery),
            Err(_) => {
                if let Some(queue) = self.gate.queues().get_mut(&self.name) {
                    queue.left();
                }
            }
        }
    }
}
