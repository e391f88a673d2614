//! The gate: tasks of this process that want the same key queue here, and one
//! of them speaks to the store.
//!
//! There is a [queue](queue::Queue) for each key and ttl, of writers, and one for each
//! number of permits: readers do not exclude each other, so each of them has a queue of its
//! own. Whoever finds no queue opens one and has its [lead](lead::Lead): the right to speak
//! to the store. A queue for permits has as many [leads](leads::Leads) as there are permits.
//! What the leader gets is a [`Turn`]: a lease, which the lead follows. After a body
//! that ended normally the lease may go to the next task in the queue without the
//! store being asked; otherwise it goes back, and the lead goes to the next. A task
//! that is dropped, at any moment, leaves the same behind.
//!
//! A task that is not polled drops nothing. Whatever it is given therefore lies in
//! its [`Ticket`](ticket::Ticket), where the [`sweep`] can take it back.

mod attention;
mod collecting;
mod enter;
mod lead;
mod leads;
mod outage;
mod probe;
mod queue;
mod shared_lease;
mod state;
mod sweep;
mod take_back;
mod ticket;
mod turn;
mod waiting;

use std::sync::Arc;

pub(crate) use self::collecting::Collecting;
pub(crate) use self::outage::{Known, WaitState};
pub(crate) use self::ticket::Entry;
pub(crate) use self::turn::Turn;

use self::queue::Queues;
use crate::backend::numbers::PermitNumbers;
use crate::backend::origin::Origin;
use crate::lease::Leases;

/// The gate of one manager.
#[derive(Debug)]
pub(crate) struct Gate {
    leases: Arc<Leases>,
    /// How many times in a row a lease may be handed over.
    handoff: u32,
    /// Who asks, as a person knows it.
    origin: Origin,
    /// Told of numbers of permits that the store has shown.
    permits: Arc<PermitNumbers>,
    queues: Arc<Queues>,
}

impl Gate {
    pub(crate) fn new(
        leases: &Arc<Leases>,
        handoff: u32,
        origin: Origin,
        permits: &Arc<PermitNumbers>,
    ) -> Self {
        Self {
            origin,
            permits: Arc::clone(permits),
            leases: Arc::clone(leases),
            handoff,
            queues: Queues::new(leases),
        }
    }
}
