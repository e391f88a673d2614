//! Durations in arguments: `500ms`, `30s`, `1m30s`.

use std::time::Duration;

/// The units, from the largest to the smallest, with their milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses a duration, or says what is wrong with it and how to write it.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err(format!("the duration is empty; {HOW}"));
    }
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut millis = 0_u64;
    while !rest.is_empty() {
        let (digits, unit, tail) = split_term(rest);
        if digits.is_empty() {
            return Err(format!("`{text}` is not a duration; {HOW}"));
        }
        if unit.is_empty() {
            return Err(match tail.chars().next() {
                None => format!("`{digits}` has no unit; {HOW}"),
                Some('.') => format!("`{text}` has a fraction; write a sum such as `1s500ms`"),
                Some(_) => format!("`{text}` is not a duration; {HOW}"),
            });
        }
        // `units` only moves forward, so a unit that was passed is not found again.
        let Some((_, factor)) = units.find(|(name, _)| *name == unit) else {
            return Err(if UNITS.iter().any(|(name, _)| *name == unit) {
                format!("in `{text}`, larger units go first, and each only once: `1h30m`")
            } else {
                format!("`{unit}` is no unit of time; {HOW}")
            });
        };
        millis = digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(*factor))
            .and_then(|term| millis.checked_add(term))
            .ok_or_else(|| format!("`{text}` is longer than can be counted in milliseconds"))?;
        rest = tail;
    }
    if millis == 0 {
        return Err(format!("`{text}` is no time at all; give at least `1ms`"));
    }
    Ok(Duration::from_millis(millis))
}

const HOW: &str = "write whole numbers with `ms`, `s`, `m` or `h`, such as `30s` or `1m30s`";

/// The digits at the start, the unit after them, and the rest.
fn split_term(text: &str) -> (&str, &str, &str) {
    let (digits, rest) = split_while(text, |c| c.is_ascii_digit());
    let (unit, rest) = split_while(rest, char::is_alphabetic);
    (digits, unit, rest)
}

fn split_while(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
#[path = "../tests/properties/duration.rs"]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> u64 {
        let duration = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        u64::try_from(duration.as_millis()).expect("a duration in range")
    }

    fn error(text: &str) -> String {
        parse(text).expect_err(text)
    }

    #[test]
    fn single_units() {
        assert_eq!(millis("1ms"), 1);
        assert_eq!(millis("30s"), 30_000);
        assert_eq!(millis("2m"), 120_000);
        assert_eq!(millis("24h"), 86_400_000);
    }

    #[test]
    fn sums() {
        assert_eq!(millis("1m30s"), 90_000);
        assert_eq!(millis("1h2m3s4ms"), 3_723_004);
        assert_eq!(millis("1h5ms"), 3_600_005);
        assert_eq!(millis("0m1s"), 1_000);
    }

    #[test]
    fn the_longest_and_one_more() {
        assert_eq!(millis("18446744073709551615ms"), u64::MAX);
        for text in [
            "18446744073709551616ms",
            "18446744073709551s616ms",
            "5124095576031h",
        ] {
            assert!(
                error(text).contains("longer than"),
                "{text}: {}",
                error(text)
            );
        }
    }

    #[test]
    fn zero_is_refused() {
        for text in ["0s", "0ms", "0h0m"] {
            assert!(
                error(text).contains("no time at all"),
                "{text}: {}",
                error(text)
            );
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("", "is empty"),
            ("30", "`30` has no unit"),
            ("1m30", "`30` has no unit"),
            ("1.5s", "has a fraction"),
            ("30 s", "is not a duration"),
            (" 30s", "is not a duration"),
            ("-1s", "is not a duration"),
            ("s", "is not a duration"),
            ("1_000ms", "is not a duration"),
            ("1s30m", "larger units go first"),
            ("1s1s", "each only once"),
            ("3d", "`d` is no unit of time"),
            ("3sec", "`sec` is no unit of time"),
            ("3S", "`S` is no unit of time"),
            ("٣s", "is not a duration"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }
}
