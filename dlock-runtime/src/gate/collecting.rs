//! Holding some locks of a call while it waits for the others.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::ticket::Entry;
use super::turn::Turn;
use super::waiting::Waiting;

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
