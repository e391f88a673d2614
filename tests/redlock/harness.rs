//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockManager};

use crate::support::locks;
use crate::support::nodes::Nodes;
use crate::support::wait::until;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(REQUEST_TIMEOUT)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}

/// Waits until no server keeps anything but its token counter.
pub(crate) async fn nothing_left(nodes: &Nodes) {
    let keys = async || nodes.keys().await;
    until("nothing is left", keys, Vec::is_empty).await;
}
