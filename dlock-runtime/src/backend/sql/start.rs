//! The start of a backend: the tasks that go on by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::opened::Opened;
use super::watch;
use crate::backend::BackendError;

/// Starts the tasks, on the current runtime.
pub(super) fn start(
    opened: Opened,
    process: String,
    request_timeout: Duration,
) -> Result<Arc<Core>, BackendError> {
    let (core, news) = Core::new(opened, process, request_timeout)?;
    let core = Arc::new(core);
    let (this, stopping) = (|| Arc::clone(&core), || core.stopping.clone());
    core.add_task(watch::keep_watch(this(), stopping()));
    core.add_task(watch::keep_clean(this(), stopping()));
    if let Some(news) = news {
        core.add_task(watch::listen(this(), news, stopping()));
    }
    Ok(core)
}
