//! The manager of the whole process: the one that calls use which name none.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::inner::Inner;
use crate::error::LockError;

static INSTALLED: OnceCell<Arc<Inner>> = OnceCell::new();

pub(crate) fn installed() -> Option<&'static Arc<Inner>> {
    INSTALLED.get()
}

/// Refuses a second one.
pub(crate) fn install(manager: Arc<Inner>) -> Result<(), LockError> {
    INSTALLED
        .set(manager)
        .map_err(|_| LockError::AlreadyInitialized)
}
