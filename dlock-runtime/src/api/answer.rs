//! What a client is answered over HTTP when its request did not have the lock, or lost it.

use std::time::Duration;

use http::StatusCode;

use crate::error::LockError;

/// How soon a store may answer again: a restart or a failover takes seconds.
const OUTAGE: Duration = Duration::from_secs(5);

/// Another copy of the service takes the next request.
const SHUT_DOWN: Duration = Duration::from_secs(1);

/// A status, after how long to ask again, and a body in JSON.
pub(super) type Answer = (StatusCode, Option<Duration>, &'static str);

pub(super) fn answer(error: &LockError) -> Answer {
    use StatusCode as Status;

    match error {
        LockError::Busy { .. } => (Status::LOCKED, None, r#"{"error":"lock_busy"}"#),
        // It need not be asked for again.
        LockError::Done { .. } => (Status::CONFLICT, None, r#"{"error":"lock_done"}"#),
        LockError::TakenOut { .. } => (
            Status::SERVICE_UNAVAILABLE,
            None,
            r#"{"error":"lock_taken_out"}"#,
        ),
        // It was held for all of that time. To ask again sooner than after as
        // long is to wait in vain again.
        LockError::Timeout { waited, .. } => (
            Status::SERVICE_UNAVAILABLE,
            Some(*waited),
            r#"{"error":"lock_timeout"}"#,
        ),
        LockError::Unavailable { .. } => (
            Status::SERVICE_UNAVAILABLE,
            Some(OUTAGE),
            r#"{"error":"lock_unavailable"}"#,
        ),
        LockError::ShutDown { .. } => (
            Status::SERVICE_UNAVAILABLE,
            Some(SHUT_DOWN),
            r#"{"error":"lock_shut_down"}"#,
        ),
        LockError::Lost { .. } => (
            Status::INTERNAL_SERVER_ERROR,
            None,
            r#"{"error":"lock_lost"}"#,
        ),
        LockError::WouldDeadlock { .. }
        | LockError::InvalidKey { .. }
        | LockError::Config { .. }
        | LockError::Unsupported { .. }
        | LockError::NotInitialized { .. }
        | LockError::AlreadyInitialized => (
            Status::INTERNAL_SERVER_ERROR,
            None,
            r#"{"error":"lock_failed"}"#,
        ),
    }
}

/// For `Retry-After`: rounded up, and never 0, which would say "at once".
pub(super) fn whole_seconds(time: Duration) -> u64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(begun).max(1)
}
