//! Having some locks while one waits for the rest of them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use super::attention::Attention;
use super::sweep::{Sweep, Tick};
use super::turn::Turn;
use crate::observe;
use crate::sync::Mutex;

/// The calls of several keys that have some of them.
#[derive(Debug)]
pub(super) struct Calls {
    sweep: Arc<Sweep>,
    /// And such as had some, until the sweep looks.
    known: Mutex<Vec<Weak<Collected>>>,
}

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
        let collected = Collected {
            attention: Attention::new(&self.sweep),
            turns: Mutex::new(Some(Vec::new())),
        };
        Collecting {
            calls: Arc::clone(self),
            collected: Arc::new(collected),
        }
    }

    /// Takes them from those who have not come for too long. Whether there are any
    /// calls.
    pub(super) fn look(&self, tick: Tick) -> bool {
        let known: Vec<_> = {
            let mut known = self.known.lock();
            known.retain(|call| call.strong_count() > 0);
            known.iter().filter_map(Weak::upgrade).collect()
        };
        for collected in &known {
            let turns = collected.look(tick).unwrap_or_default();
            if let Some(turn) = turns.first() {
                observe::nobody_came(turn.lease().key());
            }
        }
        !known.is_empty()
    }
}

impl Collected {
    fn look(&self, tick: Tick) -> Option<Vec<Turn>> {
        match self.attention.neglects_since(tick) {
            None => {
                self.attention.wake();
                None
            }
            Some(first) if tick.is_too_long_after(first) => {
                let mut turns = self.turns.lock();
                if self.attention.attends() {
                    return None;
                }
                turns.take()
            }
            Some(_) => None,
        }
    }
}

impl Collecting {
    /// One more. `None`, and it passes on, if the others were taken away.
    pub(crate) fn add(&self, turn: Turn) -> Option<()> {
        let mut turns = self.collected.turns.lock();
        let Some(turns) = &mut *turns else {
            drop(turns);
            drop(turn);
            return None;
        };
        turns.push(turn);
        if let [_] = &turns[..] {
            self.calls
                .known
                .lock()
                .push(Arc::downgrade(&self.collected));
            self.calls.sweep.arm();
        }
        Some(())
    }

    /// Waits for `more`; `None` as soon as what was collected was taken away.
    pub(crate) async fn wait_for<T>(&self, more: impl Future<Output = T>) -> Option<T> {
        let mut more = pin!(more);
        poll_fn(|cx| {
            {
                let turns = self.collected.turns.lock();
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
        self.collected.turns.lock().take()
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        let turns = self.collected.turns.lock().take();
        // Outside of the lock: they pass on.
        drop(turns);
    }
}
