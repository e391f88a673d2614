//! The gate: the tasks of this process that want the same key queue here, and one of them asks
//! the store.
//!
//! Writers of one key and ttl share a [queue](queue::Queue), and so do tasks that want one of
//! the same number of permits. Readers do not exclude each other, so each has a queue of its
//! own. The task that opens a queue has its [lead](lead::Lead): the right to ask the store. A
//! queue for permits has up to as many [leads](leads::Leads) as there are permits.
//!
//! The leader is granted a [`Turn`]: a lease, which the lead follows. When its body has ended
//! normally, the lease may be handed to the next task in the queue, without asking the store.
//! Otherwise the lease goes back to the store, and the lead to the next task. A task may be
//! dropped at any moment: what it had goes on in the same way.
//!
//! A task that is no longer polled cannot give anything away. Therefore all that it is given
//! lies in its [`Ticket`](ticket::Ticket), where the [`sweep`] can take it back.

mod enter;
mod lead;
mod leads;
mod outage;
mod probe;
mod queue;
mod shared_lease;
mod sweep;
mod take_back;
mod ticket;
mod turn;
mod waiting;

use std::sync::Arc;

pub(crate) use self::outage::{Known, WaitState};
pub(crate) use self::ticket::Entry;
pub(crate) use self::turn::Turn;
pub(crate) use self::waiting::Collecting;

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
    /// The host, process and label that stand in the store beside each owner.
    origin: Origin,
    /// Warns of callers that name different numbers of permits for one key.
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
