//! Polling a request to the store, in such a way that it can be taken away from
//! a task that does not.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use super::attention::Attention;
use super::leadership::Leadership;
use super::place::StorePlace;
use super::sweep::{Sweep, Tick};
use crate::backend::{Progress, Request};
use crate::lease::Answer;
use crate::observe::{Labels, Unclaimed};

/// A request that a task has to poll. It is what the store wakes, and so knows
/// whether the task comes.
#[derive(Debug)]
pub(super) struct Asking {
    attention: Attention,
    request: Request,
    labels: Labels,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Exactly one takes it out: the task with the answer or when it is
    /// dropped, or the sweep.
    asked: Option<Asked>,
    /// The store has granted the lock, and the task does not come.
    shown: Option<Unclaimed>,
}

#[derive(Debug)]
pub(super) enum Asked {
    /// For a queue; the place is with the leadership.
    Leads(Leadership),
    /// For one task only.
    Alone(StorePlace),
}

impl Asking {
    pub(super) fn begin(
        sweep: &Arc<Sweep>,
        request: Request,
        asked: Asked,
        labels: Labels,
    ) -> Arc<Self> {
        Arc::new(Self {
            attention: Attention::new(sweep),
            request,
            labels,
            state: Mutex::new(State {
                asked: Some(asked),
                shown: None,
            }),
        })
    }

    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    pub(super) fn progress(&self) -> &Progress {
        self.request.progress()
    }

    /// The store says that the lock is this request's: it counts as held until
    /// the task comes, or it is taken away.
    pub(super) fn show(&self) {
        let shown = Unclaimed::begin(self.labels);
        let mut state = self.state();
        // Dropped outside of the lock, here and below: a recorder's code is not ours.
        let _too_late = if state.asked.is_none() || self.attention.attends() {
            Some(shown)
        } else {
            state.shown.replace(shown)
        };
        drop(state);
    }

    pub(super) fn neglected_since(&self, tick: Tick) -> Option<Tick> {
        self.attention.neglects_since(tick)
    }

    /// Takes the request from a task that does not come. `None` if it has just
    /// come, or left.
    pub(super) fn take_away(&self) -> Option<Asked> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is polled at this very moment.
            Err(TryLockError::WouldBlock) => return None,
        };
        if self.attention.attends() {
            return None;
        }
        let (asked, _shown) = (state.asked.take(), state.shown.take());
        drop(state);
        asked
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Wake for Asking {
    fn wake(self: Arc<Self>) {
        self.attention.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.attention.wake();
    }
}

/// The task's end of an [`Asking`]. Dropped, what it asked passes on.
pub(super) struct Polling {
    asking: Arc<Asking>,
    waker: Waker,
}

impl Polling {
    pub(super) fn new(asking: Arc<Asking>) -> Self {
        let waker = Waker::from(Arc::clone(&asking));
        Self { asking, waker }
    }
}

impl Future for Polling {
    /// The answer, with the leadership of whoever leads; `None` if the request was
    /// taken away.
    type Output = Option<(Option<Leadership>, Answer)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { asking, waker } = &*self;
        let mut state = asking.state();
        // Behind the lock: or the sweep, which has just seen it not come, would
        // be told that it does, and take the request all the same.
        asking.attention.attend(cx.waker());
        let _shown = state.shown.take();
        let mut context = Context::from_waker(waker);
        let answer = match &mut state.asked {
            None => return Poll::Ready(None),
            Some(Asked::Alone(place)) => place.answer.as_mut().poll(&mut context),
            Some(Asked::Leads(leadership)) => {
                // Out of it while it is polled: what panics is not polled again.
                let Some(mut place) = leadership.place.take() else {
                    return Poll::Ready(None);
                };
                let answer = place.answer.as_mut().poll(&mut context);
                if answer.is_pending() {
                    leadership.place = Some(place);
                }
                answer
            }
        };
        let asked = match answer.is_ready() {
            true => state.asked.take(),
            false => None,
        };
        drop(state);
        answer.map(|answer| match asked {
            Some(Asked::Leads(leadership)) => Some((Some(leadership), answer)),
            Some(Asked::Alone(_)) | None => Some((None, answer)),
        })
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        let (asked, shown) = {
            let mut state = self.asking.state();
            (state.asked.take(), state.shown.take())
        };
        drop((asked, shown));
    }
}
