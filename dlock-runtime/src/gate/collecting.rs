//! Having some locks while one waits for the rest of them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::ticket::Entry;
use super::turn::Turn;
use super::waiting::Waiting;

/// What a call of several keys has so far. Nobody has begun under these leases, and
/// they are renewed while the call waits. So each lies in a ticket, and the sweep wakes
/// the call now and then to see whether it still comes. Dropped, they pass on.
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

    /// Waits for `more`; `None` as soon as anything that was collected was taken away.
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

    /// All of them, in the order in which they were added.
    pub(crate) fn finish(self) -> Option<Vec<Turn>> {
        self.0.iter().map(Waiting::leave).collect()
    }
}
