//! Having some locks while one waits for the rest of them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use super::attention::Attention;
use super::sweep::{Sweep, Tick};
use super::turn::Turn;
use crate::observe;

/// The calls of several keys that have some of them.
#[derive(Debug)]
pub(super) struct Calls {
    sweep: Arc<Sweep>,
    known: Mutex<Known>,
}

/// By where they lie.
type Known = HashMap<usize, Arc<Collected>>;

/// Turns that nobody has begun. They are renewed while the call waits, and so
/// the sweep wakes it now and then to see whether it still comes.
#[derive(Debug)]
struct Collected {
    attention: Attention,
    /// Taken out by the call when it has all, or by the sweep.
    turns: Mutex<Option<Vec<Turn>>>,
}

/// A call's end of its turns. Dropped, they pass on.
pub(crate) struct Collecting {
    calls: Arc<Calls>,
    collected: Arc<Collected>,
}

impl Calls {
    pub(super) fn new(sweep: &Arc<Sweep>) -> Arc<Self> {
        Arc::new(Self {
            sweep: Arc::clone(sweep),
            known: Mutex::default(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> Collecting {
        let collected = Arc::new(Collected {
            attention: Attention::new(&self.sweep),
            turns: Mutex::new(Some(Vec::new())),
        });
        self.known()
            .insert(place(&collected), Arc::clone(&collected));
        Collecting {
            calls: Arc::clone(self),
            collected,
        }
    }

    /// Takes them from those who have not come for too long. Whether there are any
    /// calls.
    pub(super) fn look(&self, tick: Tick) -> bool {
        let known: Vec<_> = self.known().values().cloned().collect();
        for collected in &known {
            let turns = collected.look(tick).unwrap_or_default();
            if let Some(turn) = turns.first() {
                observe::nobody_came(turn.lease().key());
            }
        }
        !known.is_empty()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // No code of ours panics while it holds this, here and below.
        self.known
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn place(collected: &Arc<Collected>) -> usize {
    Arc::as_ptr(collected) as usize
}

impl Collected {
    fn look(&self, tick: Tick) -> Option<Vec<Turn>> {
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
        self.turns
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Collecting {
    /// One more. `None`, and it passes on, if the others were taken away.
    pub(crate) fn add(&self, turn: Turn) -> Option<()> {
        let mut turns = self.collected.turns();
        let Some(turns) = &mut *turns else {
            drop(turns);
            drop(turn);
            return None;
        };
        turns.push(turn);
        self.calls.sweep.arm();
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
        let left = self.calls.known().remove(&place(&self.collected));
        let turns = self.collected.turns().take();
        // Outside of the locks: turns pass on.
        drop(left);
        drop(turns);
    }
}
