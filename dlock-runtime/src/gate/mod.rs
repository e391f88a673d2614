//! The gate: tasks of this process that want the same key queue here, and one
//! of them speaks to the store.
//!
//! There is a queue for each key and ttl, for writers only: readers do not
//! exclude each other, so each of them asks the store by itself. Whoever finds
//! no queue opens one and *leads* it: the right to speak to the store is its
//! [`Leadership`](leadership::Leadership). What the leader gets is a [`Turn`]: a
//! lease, which the leadership follows. After a body that ended normally the turn
//! may go to the next task in the queue without the store being asked; otherwise
//! the lease goes back and the leadership passes on. Dropping either, at any
//! moment, does the same.
//!
//! A task that is not polled drops nothing. Whatever it is given therefore lies
//! where the [`sweep`] can take it back: see there.
//!
//! What a task holds (a turn, the leadership) knows the gate only by what it needs
//! of it; [`state`] knows them all, and what tasks do stands above it.

mod alone;
mod asking;
mod attention;
mod collected;
mod collecting;
mod enter;
mod entry;
mod lead;
mod leadership;
mod name;
mod outage;
mod place;
mod probe;
mod queue;
mod state;
mod sweep;
mod take_back;
mod ticket;
mod turn;
mod wait_state;
mod waiting;

pub(crate) use self::collecting::Collecting;
pub(crate) use self::entry::{Entry, Refusal};
pub(crate) use self::state::Gate;
pub(crate) use self::turn::Turn;
pub(crate) use self::wait_state::WaitState;
