//! Connections, and what becomes of what is sent over them.
//!
//! As with TCP, what is sent over one connection arrives in order, or not at all.
//! A connection that breaks tells its client so, or nothing: then the client finds
//! out when its patience ends. What was sent before may arrive all the same, but no
//! later than [`LATEST`].

mod connection;
mod server;
mod weather;

use std::time::Duration;

pub(crate) use self::connection::Connection;
pub(crate) use self::server::{
    Holder, Machine, Marked, Pushed, RanOut, Server, ServerId, Service, Visit, Witness,
};
pub(crate) use self::weather::Weather;

/// For so long what was sent may be on its way, whatever has become of its
/// connection.
pub(crate) const LATEST: Duration = Duration::from_secs(4);

/// At most so long after a partition what was sent meanwhile is sent again.
const SENT_AGAIN: Duration = Duration::from_secs(1);

/// From one side to the other, when nothing is wrong.
const SOONEST: Duration = Duration::from_micros(80);
const USUAL: Duration = Duration::from_micros(1_500);
