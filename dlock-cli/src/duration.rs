//! Durations on the command line, as in the settings of services.

use std::time::Duration;

/// `500ms`, `30s`, `5m`, `1h`, and sums such as `1m30s`.
pub(crate) fn above_zero(text: &str) -> Result<Duration, String> {
    dlock::parse_duration(text)
}

/// As [`above_zero`], and also `0` and `0s`.
pub(crate) fn or_zero(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => above_zero(text),
    }
}

/// The time between two looks at the store. It has a minimum, so that looking does not load the
/// store.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    match above_zero(text)? {
        pause if pause < LEAST_PAUSE => Err(format!("it is at least {LEAST_PAUSE:?}")),
        pause => Ok(pause),
    }
}

const LEAST_PAUSE: Duration = Duration::from_millis(200);
