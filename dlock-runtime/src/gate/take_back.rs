//! Taking back what a task does not come for.

use std::sync::Arc;
use std::task::Wake;

use tokio::runtime;

use super::asking::{Asked, Asking};
use super::collected::Other;
use super::queue::{self, Neglected};
use super::state::Gate;
use super::sweep::{Look, Tick};
use super::ticket::Delivery;
use crate::observe;

impl Look for Gate {
    fn runtime(&self) -> runtime::Handle {
        self.leases.executor().keeper_runtime().clone()
    }

    fn look(&self, tick: Tick) -> bool {
        let mut neglected = Vec::new();
        let mut outstanding = false;
        for queue in self.queues().values_mut() {
            outstanding |= queue.look(tick, &mut neglected);
        }
        let others = self.others().all();
        for other in others {
            match other {
                Other::Asking(asking) => {
                    outstanding |= queue::look_at(&asking, tick, &mut neglected);
                }
                Other::Collected(collected) => {
                    outstanding = true;
                    let turns = collected.look(tick).unwrap_or_default();
                    if let Some(turn) = turns.first() {
                        observe::nobody_came(turn.lease().key());
                    }
                    drop(turns);
                }
            }
        }
        for one in neglected {
            self.take_back(one);
        }
        outstanding
    }
}

impl Gate {
    fn take_back(&self, neglected: Neglected) {
        match neglected {
            Neglected::Unseen(ticket) => ticket.show(),
            Neglected::Unheard(asking) => self.show_if_granted(asking),
            // It may have an answer that its runtime, which is blocked, would have
            // to hear.
            Neglected::Ahead(asking) => asking.wake(),
            Neglected::Given(ticket) => match ticket.take_back() {
                Some(Delivery::Turn(turn)) => {
                    if let Some(name) = turn.queue() {
                        observe::nobody_came(name.key());
                        if let Some(queue) = self.queues().get_mut(name) {
                            queue.doubt();
                        }
                    }
                    turn.give_back();
                }
                Some(Delivery::Lead(leadership)) => {
                    observe::nobody_came(leadership.name().key());
                    leadership.let_loose();
                }
                Some(Delivery::Failed(_)) | None => {}
            },
            Neglected::Asking(asking) => match asking.take_away() {
                Some(Asked::Leads(leadership)) => {
                    observe::nobody_came(leadership.name().key());
                    leadership.let_loose();
                }
                Some(Asked::Alone(place)) => {
                    observe::nobody_came(&place.request.key);
                    drop(place);
                }
                None => {}
            },
            Neglected::Place { .. } => {}
        }
    }

    /// Nobody is there to hear the store's answer. Whether it has granted the
    /// lock, it is asked.
    fn show_if_granted(&self, asking: Arc<Asking>) {
        let backend = Arc::clone(self.leases.backend());
        let runtime = self.leases.executor().keeper_runtime();
        runtime.spawn(async move {
            let request = asking.request();
            if let Ok(Some(lock)) = backend.inspect(&request.key).await
                && lock
                    .holders
                    .iter()
                    .any(|holder| backend.is_owner(holder, request.asker()))
            {
                asking.show();
            }
        });
    }
}
