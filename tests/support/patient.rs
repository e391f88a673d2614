//! Managers that wait longer than a server on a busy machine is silent, or takes to restart.

use std::time::Duration;

use dlock::{Config, LockManager};

use super::locks;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(REQUEST_TIMEOUT)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}
