//! Durations as people write them in settings, and as stores count them.

use std::time::Duration;

/// Parses `500ms`, `30s`, `5m`, `1h`, and sums such as `1m30s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration; write for example 500ms, 30s, 5m, 1h or 1m30s");
    let too_long = || format!("{text:?} is too long");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let number: u64 = match number {
            "" => return Err(wrong()),
            number => number.parse().map_err(|_| too_long())?,
        };
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        let part = number
            .checked_mul(millis)
            .map(Duration::from_millis)
            .ok_or_else(too_long)?;
        total = total.checked_add(part).ok_or_else(too_long)?;
        rest = tail;
    }
    if total.is_zero() {
        return Err(format!("{text:?} is zero; give a time above it"));
    }
    Ok(total)
}

/// In whole milliseconds, rounded up: a lease must not end before its ttl.
#[cfg(any(feature = "redis", feature = "sqlx", feature = "zookeeper"))]
pub(crate) fn milliseconds_up(time: Duration) -> u64 {
    let whole = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// In whole seconds, rounded up.
#[cfg(any(feature = "etcd", feature = "memcached"))]
pub(crate) fn seconds_up(time: Duration) -> u64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(begun)
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_add_up() {
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(
            parse_duration("1h2ms"),
            Ok(Duration::from_millis(3_600_002))
        );
    }
}
