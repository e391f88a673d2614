//! What an axum handler answers when it did not get the lock, or lost it.

use axum_core::response::{IntoResponse, Response};

use super::answer::{answer, log_failed, respond};
use crate::error::LockError;

/// With feature `axum`, a handler may return a `LockError`.
///
/// | error | status | `Retry-After`, in seconds | body |
/// |---|---|---|---|
/// | `Busy` | 423 Locked | none: nothing is known of how long the lock will be held | `{"error":"lock_busy"}` |
/// | `Done` | 409 Conflict | none: there is nothing left to do | `{"error":"lock_done"}` |
/// | `Timeout` | 503 Service Unavailable | as long as the request has waited, rounded up | `{"error":"lock_timeout"}` |
/// | `Unavailable` | 503 Service Unavailable | 5 | `{"error":"lock_unavailable"}` |
/// | `ShutDown` | 503 Service Unavailable | 1: another copy of the service takes over | `{"error":"lock_shut_down"}` |
/// | `TakenOut` | 503 Service Unavailable | none: an operator ended the wait | `{"error":"lock_taken_out"}` |
/// | `Lost` | 500 Internal Server Error | none | `{"error":"lock_lost"}` |
/// | all others: mistakes in the program or its settings | 500 Internal Server Error | none | `{"error":"lock_failed"}` |
///
/// `Lost` is a 500 because the body has begun, and what it did so far stays done. Proxies and
/// clients retry a 503 by themselves, and a 409 would blame the client.
///
/// Clients see only the body, so it shows neither the key, which may contain a user's data, nor
/// anything about the store. The whole error is an extension of the response, for a layer of yours.
/// A 500 is logged as an error and `Unavailable` as a warning, with target `dlock::axum`. The
/// warning, and the error of an invalid key, are logged at most once in five seconds each, with the
/// number of those that were left out before. The other errors are normal for a lock and are not logged.
///
/// A key that does not fit a store is `InvalidKey`, and so a 500: limit the length of a path
/// parameter before it becomes part of a key.
///
/// # A handler with an error of its own
///
/// ```
/// # mod axum { pub use axum_core::response; pub use http; }
/// # use dlock_runtime as dlock;
/// use axum::http::StatusCode;
/// use axum::response::{IntoResponse, Response};
/// use dlock::LockError;
///
/// /// What the handlers return as `Result<_, ShopError>`.
/// enum ShopError {
///     SoldOut,
///     Lock(LockError),
/// }
///
/// // Lets `#[distributed_lock]` end the handler with this error.
/// impl From<LockError> for ShopError {
///     fn from(error: LockError) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// impl IntoResponse for ShopError {
///     fn into_response(self) -> Response {
///         match self {
///             Self::SoldOut => (StatusCode::CONFLICT, "sold out").into_response(),
///             Self::Lock(error) => error.into_response(),
///         }
///     }
/// }
/// # let response = ShopError::from(LockError::AlreadyInitialized).into_response();
/// # assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
/// # assert_eq!(ShopError::SoldOut.into_response().status(), StatusCode::CONFLICT);
/// ```
impl IntoResponse for LockError {
    fn into_response(self) -> Response {
        let answer = answer(&self);
        log_failed!("dlock::axum", &self, answer.0);
        respond(self, answer)
    }
}
