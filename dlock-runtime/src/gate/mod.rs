//! The gate: tasks of this process that want the same key queue here, and one
//! of them speaks to the store.
//!
//! There is a [queue](queue::Queue) for each key and ttl, for writers only: readers do
//! not exclude each other, so each of them has a queue of its own. Whoever finds no
//! queue opens one and *leads* it: it has the right to speak to the store. What the
//! leader gets is a [`Turn`]: a lease, which the lead follows. After a body that
//! ended normally the lease may go to the next task in the queue without the store
//! being asked; otherwise it goes back, and the lead goes to the next. A task that
//! is dropped, at any moment, leaves the same behind.
//!
//! A task that is not polled drops nothing. Whatever it is given therefore lies in
//! its [`Ticket`](ticket::Ticket), where the [`sweep`] can take it back.

mod attention;
mod collecting;
mod enter;
mod outage;
mod place;
mod probe;
mod queue;
mod shared_lease;
mod sweep;
mod take_back;
mod ticket;
mod turn;

use std::sync::{Arc, Weak};

pub(crate) use self::outage::WaitState;
pub(crate) use self::ticket::Entry;
pub(crate) use self::turn::Turn;

use self::collecting::{Calls, Collecting};
use self::queue::Queues;
use self::sweep::Sweep;
use crate::lease::Leases;

/// The gate of one manager.
#[derive(Debug)]
pub(crate) struct Gate {
    leases: Arc<Leases>,
    /// How many times in a row a lease may be handed over.
    handoff: u32,
    queues: Arc<Queues>,
    /// Calls of several keys, which have some of them.
    calls: Arc<Calls>,
    sweep: Arc<Sweep>,
}

impl Gate {
    pub(crate) fn new(leases: Arc<Leases>, handoff: u32) -> Arc<Self> {
        Arc::new_cyclic(|gate: &Weak<Self>| {
            let gate = gate.clone();
            let look = move |tick| {
                gate.upgrade()
                    .is_some_and(|gate: Arc<Self>| gate.look(tick))
            };
            let sweep = Sweep::new(&leases, look);
            Self {
                leases,
                handoff,
                queues: Arc::default(),
                calls: Calls::new(&sweep),
                sweep,
            }
        })
    }

    /// For a call that wants several keys.
    pub(crate) fn collect(&self) -> Collecting {
        self.calls.begin()
    }
}
