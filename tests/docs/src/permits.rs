//! A service that calls another one, which bears only so many calls at once.

pub use crate::usual::*;

/// What is asked for.
#[derive(Debug)]
pub struct Order;

/// What was answered.
#[derive(Debug)]
pub struct Receipt;

/// Why nothing came of it.
#[derive(Debug)]
pub enum ApiError {
    /// Too many calls run.
    Busy(LockError),
}

impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self::Busy(error)
    }
}

/// A handler.
pub async fn place() {}

/// The other service.
///
/// # Errors
///
/// It never fails.
pub async fn send(_: &Order) -> Result<Receipt, ApiError> {
    Ok(Receipt)
}
