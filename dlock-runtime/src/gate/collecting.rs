//! Having some locks while one waits for the rest of them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::collected::{Collected, Other};
use super::state::Gate;
use super::turn::Turn;

/// A call's end of its [`Collected`] turns. Dropped, they pass on.
pub(crate) struct Collecting {
    gate: Arc<Gate>,
    number: u64,
    collected: Arc<Collected>,
}

impl Collecting {
    pub(crate) fn begin(gate: &Arc<Gate>) -> Self {
        let collected = Collected::new(&gate.sweep);
        let other = Other::Collected(Arc::clone(&collected));
        Self {
            gate: Arc::clone(gate),
            number: gate.others().enter(other),
            collected,
        }
    }

    /// One more. `None`, and it passes on, if the others were taken away.
    pub(crate) fn add(&self, turn: Turn) -> Option<()> {
        let mut turns = self.collected.turns();
        let Some(turns) = &mut *turns else {
            drop(turns);
            drop(turn);
            return None;
        };
        turns.push(turn);
        self.gate.sweep.arm();
        Some(())
    }

    /// Waits for `more`; `None` as soon as what was collected was taken away.
    pub(crate) async fn wait_for<T>(&self, more: impl Future<Output = T>) -> Option<T> {
        let mut more = pin!(more);
        poll_fn(|cx| {
            {
                let turns = self.collected.turns();
                self.collected.attention.attend(cx.waker());
                if turns.is_none() {
                    return Poll::Ready(None);
                }
            }
            more.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// All of them, in the order in which they were added.
    pub(crate) fn finish(self) -> Option<Vec<Turn>> {
        self.collected.turns().take()
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        let left = self.gate.others().leave(self.number);
        let turns = self.collected.turns().take();
        // Outside of the locks: turns pass on.
        drop(left);
        drop(turns);
    }
}
