//! Managers that soon take silence for an outage, but not what a busy machine takes.

use std::time::Duration;

use dlock::{Config, LockManager};

use super::locks;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(REQUEST_TIMEOUT)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}
