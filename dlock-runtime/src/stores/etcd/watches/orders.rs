//! What listeners ask of the stream's task.

use tokio::sync::mpsc;

/// What the stream's task is to do.
pub(super) enum Order {
    Watch(i64),
    Cancel(i64),
}

/// What listeners ask of the stream's task.
pub(crate) struct Orders(pub(super) mpsc::UnboundedReceiver<Order>);

impl From<mpsc::UnboundedReceiver<Order>> for Orders {
    fn from(received: mpsc::UnboundedReceiver<Order>) -> Self {
        Self(received)
    }
}
