//! A service.

pub use crate::usual::*;

/// Serves until it is told to stop.
///
/// # Errors
///
/// The port is taken.
pub async fn serve() -> std::io::Result<()> {
    Ok(())
}
