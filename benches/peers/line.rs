//! One figure of one work, for each contestant.

use crate::spread::Spread;
use crate::units::{per_second, time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Sections a second: the more, the better.
    Rate,
    /// Of the time: the more, the better.
    Part,
    /// Nanoseconds: the fewer, the better.
    Time,
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) work: &'static str,
    pub(crate) figure: &'static str,
    pub(crate) unit: Unit,
    /// Of each contestant, round by round. dlock is the first.
    pub(crate) rounds: Vec<Vec<f64>>,
}

impl Unit {
    /// For people.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            _ if value.is_nan() => "none".to_owned(),
            Self::Rate => per_second(value),
            Self::Part => format!("{:.1} %", value * 100.0),
            Self::Time => time(value),
        }
    }
}

impl Line {
    /// Of all rounds that have one: a peer that polls may not have been handed a
    /// lock over in a whole round.
    pub(crate) fn median(&self, contestant: usize) -> f64 {
        let rounds = self.rounds[contestant].iter().copied();
        Spread::new(rounds.filter(|value| value.is_finite())).median()
    }

    /// dlock ÷ the peer, round by round: what slows the machine down slows both.
    pub(crate) fn ratio(&self, peer: usize) -> Spread {
        let rounds = self.rounds[0].iter().zip(&self.rounds[peer]);
        let ratios = rounds.map(|(ours, theirs)| ours / theirs);
        Spread::new(ratios.filter(|ratio| ratio.is_finite()))
    }

    /// [`Self::ratio`] for people: what is next to nothing has digits too.
    pub(crate) fn shown_ratio(&self, peer: usize) -> Option<String> {
        let ratio = self.ratio(peer);
        let [median, low, high] = [0.5, 0.25, 0.75].map(|part| ratio.quantile(part));
        if median.is_nan() {
            None
        } else if median < 0.05 {
            Some(format!("{median:.4} ({low:.4} to {high:.4})"))
        } else {
            Some(ratio.to_string())
        }
    }

    /// Whether the peer did better in the median of the rounds.
    pub(crate) fn is_ahead(&self, peer: usize) -> bool {
        let ratio = self.ratio(peer).median();
        match self.unit {
            Unit::Rate | Unit::Part => ratio < 1.0,
            Unit::Time => ratio > 1.0,
        }
    }
}
