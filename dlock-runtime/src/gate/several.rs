//! The locks that a call has while it waits for the rest of them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use super::asking::Asking;
use super::attention::Attention;
use super::sweep::Tick;
use super::{Gate, Turn};

/// What the sweep looks after and no queue knows.
#[derive(Debug, Default)]
pub(super) struct Others {
    next: u64,
    known: HashMap<u64, Other>,
}

#[derive(Clone, Debug)]
pub(super) enum Other {
    Asking(Arc<Asking>),
    Collected(Arc<Collected>),
}

impl Others {
    pub(super) fn enter(&mut self, other: Other) -> u64 {
        self.next += 1;
        self.known.insert(self.next, other);
        self.next
    }

    pub(super) fn leave(&mut self, number: u64) -> Option<Other> {
        self.known.remove(&number)
    }

    pub(super) fn all(&self) -> Vec<Other> {
        self.known.values().cloned().collect()
    }
}

/// Turns that nobody has begun. They are renewed while the call waits, and so
/// the sweep wakes it now and then to see whether it still comes.
#[derive(Debug)]
pub(super) struct Collected {
    attention: Attention,
    /// Taken out by the call when it has all, or by the sweep.
    turns: Mutex<Option<Vec<Turn>>>,
}

impl Collected {
    /// Takes them from a call that has not come for too long: to be dropped.
    pub(super) fn look(&self, tick: Tick) -> Option<Vec<Turn>> {
        match self.attention.neglects_since(tick) {
            None => {
                self.attention.wake();
                None
            }
            Some(first) if tick.is_too_long_after(first) => {
                let mut turns = self.turns();
                if self.attention.attends() {
                    return None;
                }
                turns.take()
            }
            Some(_) => None,
        }
    }

    fn turns(&self) -> MutexGuard<'_, Option<Vec<Turn>>> {
        // No code of ours panics while it holds this.
        self.turns
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A call's end of its [`Collected`] turns. Dropped, they pass on.
pub(crate) struct Collecting {
    gate: Arc<Gate>,
    number: u64,
    collected: Arc<Collected>,
}

impl Collecting {
    pub(crate) fn begin(gate: &Arc<Gate>) -> Self {
        let collected = Arc::new(Collected {
            attention: Attention::new(&gate.sweep),
            turns: Mutex::new(Some(Vec::new())),
        });
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
