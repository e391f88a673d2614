//! What an operation remembers from attempt to attempt.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::connection::Connection;
use super::connections::Lane;
use super::topology::Subscription;
use crate::backend::LockInfo;

#[derive(Default)]
pub(crate) struct Attempt {
    /// Commands are on their way over this connection.
    pub(super) in_flight: Option<Connection>,
    /// The channel of its lock is listened to for as long as this is here, and a
    /// little longer.
    pub(super) subscription: Option<Box<Subscription>>,
    pub(super) listing: Option<Box<Listing>>,
}

/// How far a list has come.
pub(super) struct Listing {
    /// To the servers that are still to be asked.
    pub(super) lanes: VecDeque<Arc<Lane>>,
    pub(super) cursor: u64,
    /// A scan may show a key twice, and so may two nodes when its slot moves.
    pub(super) seen: HashSet<String>,
    pub(super) locks: Vec<LockInfo>,
}
