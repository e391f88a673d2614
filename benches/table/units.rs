//! Figures for people.

/// A rate for people.
pub(crate) fn per_second(rate: f64) -> String {
    if rate >= 10_000.0 {
        format!("{:.1} k/s", rate / 1000.0)
    } else {
        format!("{rate:.0}/s")
    }
}

/// A time for people.
pub(crate) fn time(nanoseconds: f64) -> String {
    if nanoseconds >= 1e6 {
        format!("{:.1} ms", nanoseconds / 1e6)
    } else if nanoseconds >= 1e4 {
        format!("{:.0} µs", nanoseconds / 1e3)
    } else {
        format!("{nanoseconds:.0} ns")
    }
}
