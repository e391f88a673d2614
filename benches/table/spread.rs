//! Medians, quartiles and other quantiles.

use std::fmt;

/// Values in order.
#[derive(Clone, Debug)]
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value below which this part of all values lies; NaN of none.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * part).round() as usize;
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    pub(crate) fn min(&self) -> f64 {
        self.quantile(0.0)
    }
}

/// The median, and between which values the middle half lies.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (self.quantile(0.25), self.quantile(0.75));
        let median = self.median();
        if median >= 10.0 {
            write!(f, "{median:.1} ({low:.1} to {high:.1})")
        } else {
            write!(f, "{median:.2} ({low:.2} to {high:.2})")
        }
    }
}
