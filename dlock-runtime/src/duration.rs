//! Durations as people write them in settings, and as stores count them.

use std::time::Duration;

/// The units, from the largest to the smallest, with their milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses `500ms`, `30s`, `5m`, `1h`, and sums such as `1m30s`, as the attribute does: larger units
/// go first, and each only once.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration; write for example 500ms, 30s, 5m, 1h or 1m30s");
    let mut units = UNITS.iter();
    let mut millis = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        if number.is_empty() || !UNITS.iter().any(|(name, _)| *name == unit) {
            return Err(wrong());
        }
        // `units` only moves forward, so a unit that was passed is not found again.
        let Some((_, factor)) = units.find(|(name, _)| *name == unit) else {
            return Err(format!(
                "{text:?} is not in order; larger units go first, and each only once, such as 1h30m"
            ));
        };
        millis = number
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(*factor))
            .and_then(|term| millis.checked_add(term))
            .ok_or_else(|| format!("{text:?} is too long"))?;
        rest = tail;
    }
    if millis == 0 {
        return Err(format!("{text:?} is zero; give a time above it"));
    }
    Ok(Duration::from_millis(millis))
}

/// In whole milliseconds, rounded up: a lease must not end before its ttl.
pub(crate) fn milliseconds_up(time: Duration) -> u64 {
    let whole = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// In whole seconds, rounded up.
pub(crate) fn seconds_up(time: Duration) -> u64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(begun)
}

#[cfg(test)]
#[path = "../tests/properties/duration.rs"]
mod properties;
