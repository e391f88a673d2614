//! What the tests below share.

pub(crate) use crate::support::impatient::{REQUEST_TIMEOUT, config, connect};
use crate::support::nodes::Nodes;
use crate::support::wait::until;

/// Waits until no server keeps anything but its token counter.
pub(crate) async fn nothing_left(nodes: &Nodes) {
    let keys = async || nodes.keys().await;
    until("nothing is left", keys, Vec::is_empty).await;
}
