//! What the operations of a started backend have in common with its tasks.

use std::sync::Arc;
use std::time::Duration;

use super::held::Held;
use super::nodes::Node;
use super::waiters::Waiters;
use crate::backend::clock::Clock;

/// What the operations have in common with the tasks of the backend.
pub(crate) struct Common {
    pub(super) nodes: Vec<Node>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) held: Held,
    pub(super) clock: Clock,
    pub(super) request_timeout: Duration,
}
