//! The HTTP answer to a client whose request did not get the lock, or lost it.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use tokio::time::Instant;

use crate::error::LockError;
use crate::sync::Mutex;

/// How soon to retry after an outage: a restart or a failover of the store takes seconds.
const OUTAGE: Duration = Duration::from_secs(5);

/// How soon to retry after a shutdown: another copy of the service takes the next request.
const SHUT_DOWN: Duration = Duration::from_secs(1);

/// The status, the time after which to retry, and the body in JSON.
pub(super) type Answer = (StatusCode, Option<Duration>, &'static str);

pub(super) fn answer(error: &LockError) -> Answer {
    use StatusCode as Status;

    match error {
        LockError::Busy { .. } => (Status::LOCKED, None, r#"{"error":"lock_busy"}"#),
        // There is nothing to retry: the work is done.
        LockError::Done { .. } => (Status::CONFLICT, None, r#"{"error":"lock_done"}"#),
        LockError::TakenOut { .. } => (
            Status::SERVICE_UNAVAILABLE,
            None,
            r#"{"error":"lock_taken_out"}"#,
        ),
        // The lock was held for that whole time, so an earlier retry would probably wait in vain
        // again.
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

/// The response for a request that ended with this error.
pub(super) fn respond<Out: From<&'static str>>(
    error: LockError,
    (status, retry_after, body): Answer,
) -> Response<Out> {
    let mut response = Response::new(Out::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(time) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(time)));
    }
    response.extensions_mut().insert(error);
    response
}

/// Logs the error of a request that got this status, if an operator should know. A macro, since
/// the target of a log line is a constant.
macro_rules! log_failed {
    ($target:literal, $error:expr, $status:expr) => {{
        static TURNED_AWAY: $crate::api::answer::Limited =
            $crate::api::answer::Limited::new();
        static INVALID: $crate::api::answer::Limited = $crate::api::answer::Limited::new();

        let error = $error;
        if let $crate::LockError::InvalidKey { .. } = error {
            // Anybody can send such a key, as often as he likes.
            if let Some((untold, since)) = INVALID.one_more() {
                tracing::error!(
                    target: $target,
                    %error,
                    untold,
                    ?since,
                    "a request has failed; of those that follow for their key, one line in 5 s has \
                     the number in `untold`, and the time since the line before it in `since`"
                );
            }
        } else if $status == http::StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(target: $target, %error, "a request has failed");
        } else if let $crate::LockError::Unavailable { .. } = error
            && let Some((untold, since)) = TURNED_AWAY.one_more()
        {
            tracing::warn!(
                target: $target,
                %error,
                untold,
                ?since,
                "a request was turned away; of those that follow, one line in 5 s has the number \
                 in `untold`, and the time since the line before it in `since`"
            );
        }
    }};
}

pub(super) use log_failed;

/// For `Retry-After`: rounded up and never 0, which would mean "at once".
fn whole_seconds(time: Duration) -> u64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(begun).max(1)
}

/// The least time between two lines: in an outage every request is refused for the same reason.
const PAUSE: Duration = Duration::from_secs(5);

/// Lets a line through once in a while, and counts those left out.
pub(super) struct Limited(Mutex<Option<Line>>);

struct Line {
    at: Instant,
    /// Number of lines left out since then.
    untold: u64,
}

impl Limited {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether to log this one, and then how many were left out since the last, and how long ago
    /// that was.
    pub(super) fn one_more(&self) -> Option<(u64, Duration)> {
        let now = Instant::now();
        let mut last = self.0.lock();
        match &mut *last {
            Some(line) if now < line.at + PAUSE => {
                line.untold += 1;
                None
            }
            line => {
                let next = Line { at: now, untold: 0 };
                let before = line.replace(next);
                let told = before.map(|before| (before.untold, now - before.at));
                Some(told.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_are_few_lines_and_none_is_left_uncounted() {
        let limited = Limited::new();
        assert_eq!(limited.one_more(), Some((0, Duration::ZERO)));
        for untold in [99, 0, 7] {
            for _ in 0..untold {
                assert_eq!(limited.one_more(), None);
            }
            // However late the next comes.
            tokio::time::advance(2 * PAUSE).await;
            assert_eq!(limited.one_more(), Some((untold, 2 * PAUSE)));
        }
    }
}
