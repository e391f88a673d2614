//! A request that is for one task only.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::asking::{Asked, Asking, Polling};
use super::collected::Other;
use super::place::StorePlace;
use super::state::Gate;
use crate::lease::Answer;
use crate::observe::Labels;

/// A request of one task only, which the sweep knows for as long.
pub(super) struct Alone {
    gate: Arc<Gate>,
    number: u64,
    polling: Polling,
}

impl Alone {
    pub(super) fn begin(gate: &Arc<Gate>, place: StorePlace, labels: Labels) -> Self {
        let request = place.request.clone();
        let asking = Asking::begin(&gate.sweep, request, Asked::Alone(place), labels);
        Self {
            gate: Arc::clone(gate),
            number: gate.others().enter(Other::Asking(Arc::clone(&asking))),
            polling: Polling::new(asking),
        }
    }
}

impl Future for Alone {
    type Output = Option<Answer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polling = Pin::new(&mut self.polling);
        polling
            .poll(cx)
            .map(|answer| answer.map(|(_, answer)| answer))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let left = self.gate.others().leave(self.number);
        drop(left);
    }
}
