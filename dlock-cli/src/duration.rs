//! Durations on the command line, as in the settings of services.

use std::time::Duration;

/// `500ms`, `30s`, `5m`, `1h`, and sums such as `1m30s`.
pub(crate) fn above_zero(text: &str) -> Result<Duration, String> {
    dlock::parse_duration(text)
}

/// The same, or none.
pub(crate) fn or_zero(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => above_zero(text),
    }
}

/// The time from look to look, which is not a load for the store.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    match above_zero(text)? {
        pause if pause < LEAST_PAUSE => Err(format!("it is at least {LEAST_PAUSE:?}")),
        pause => Ok(pause),
    }
}

const LEAST_PAUSE: Duration = Duration::from_millis(200);
