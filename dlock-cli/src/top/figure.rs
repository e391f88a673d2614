//! One number on the screen, and where it comes from.

use std::cmp::Ordering;
use std::time::Duration;

use crate::show;

/// A number that somebody has counted exactly, or a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure<T> {
    pub(super) value: T,
    /// It is not exact, and is marked with `~`. A count from looks at the store misses what came
    /// and went between two looks; an age may be by another clock than the store's.
    pub(super) is_sample: bool,
}

impl<T: PartialOrd> Figure<T> {
    pub(super) fn counted(value: T) -> Self {
        Self {
            value,
            is_sample: false,
        }
    }

    pub(super) fn sample(value: T) -> Self {
        Self {
            value,
            is_sample: true,
        }
    }

    /// The greatest first, and what is not known last.
    pub(super) fn descending(one: Option<&Self>, other: Option<&Self>) -> Ordering {
        let value = |figure: Option<&Self>| figure.is_some();
        match (one, other) {
            (Some(one), Some(other)) => other
                .value
                .partial_cmp(&one.value)
                .unwrap_or(Ordering::Equal),
            _ => value(other).cmp(&value(one)),
        }
    }
}

/// With `~` before a sample, and `-` for what nobody knows.
fn shown<T>(figure: Option<Figure<T>>, text: impl FnOnce(T) -> String) -> String {
    match figure {
        None => show::nothing(),
        Some(Figure {
            value,
            is_sample: true,
        }) => format!("~{}", text(value)),
        Some(Figure { value, .. }) => text(value),
    }
}

pub(super) fn time(figure: Option<Figure<Duration>>) -> String {
    shown(figure, short)
}

pub(super) fn rate(figure: Option<Figure<f64>>) -> String {
    shown(figure, |rate| match rate {
        0.0 => "0".to_owned(),
        ..0.1 => format!("{rate:.2}"),
        ..100.0 => format!("{rate:.1}"),
        ..100_000.0 => format!("{rate:.0}"),
        rate => format!("{:.0}k", rate / 1000.0),
    })
}

pub(super) fn count(count: Option<u64>) -> String {
    count.map_or_else(show::nothing, |count| count.to_string())
}

/// Shows microseconds too, because waits are often much shorter than a millisecond.
pub(super) fn short(time: Duration) -> String {
    match time.as_micros() {
        0 => "0".to_owned(),
        micros @ 1..1000 => format!("{micros}µs"),
        _ => show::time(Some(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_samples_are_marked() {
        let rates = [
            (0.0, "0"),
            (0.05, "0.05"),
            (3.25, "3.2"),
            (412.4, "412"),
            (123_456.0, "123k"),
        ];
        for (value, text) in rates {
            assert_eq!(rate(Some(Figure::counted(value))), text);
            assert_eq!(rate(Some(Figure::sample(value))), format!("~{text}"));
        }
        assert_eq!(rate(None), "-");
        assert_eq!(short(Duration::from_micros(432)), "432µs");
        assert_eq!(short(Duration::from_millis(2)), "2ms");
        assert_eq!(short(Duration::from_secs(62)), "1m2s");
    }

    #[test]
    fn what_is_not_known_comes_last() {
        let mut figures = [None, Some(Figure::sample(1)), Some(Figure::counted(2))];
        figures.sort_by(|a, b| Figure::descending(a.as_ref(), b.as_ref()));
        let values = figures.map(|figure| figure.map(|figure| figure.value));
        assert_eq!(values, [Some(2), Some(1), None]);
    }
}
