//! One call of a worker, and the line in which it tells of it.

use std::fmt;
use std::time::Duration;

use crate::moment::Moment;

/// How long a call is ready to wait, and what it does after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Try,
    Briefly,
    Patiently,
    /// Its body goes on after a loss, and comes late.
    Stubbornly,
    /// Beside others that only read.
    Reads,
    /// With a permit, beside others that have one.
    Shares,
    /// Its caller drops it at some moment.
    Dropped,
}

impl Policy {
    /// Whether others may have the lock beside it.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Self::Reads | Self::Shares)
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Done,
    /// What the lock protects has seen a newer token.
    Outdated,
    Lost,
    Busy,
    Timeout,
    Unavailable,
    /// Nobody waited for it any more.
    Dropped,
    /// Nothing that a call of a worker may be told.
    Other(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) key: usize,
    pub(crate) policy: Policy,
    pub(crate) from: Moment,
    /// When its body began and came to its end, if it did.
    pub(crate) entered: Option<Moment>,
    pub(crate) left: Option<Moment>,
    pub(crate) to: Moment,
    /// How long its process stood still meanwhile.
    pub(crate) still: Duration,
    /// What its body had, if there was one, and tokens are.
    pub(crate) token: u64,
    pub(crate) outcome: Outcome,
}

impl Call {
    /// What a line says, if it tells of a call.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("call ")?.splitn(9, ' ');
        let mut word = || words.next();
        Some(Self {
            key: word()?.parse().ok()?,
            policy: match word()? {
                "try" => Policy::Try,
                "briefly" => Policy::Briefly,
                "patiently" => Policy::Patiently,
                "stubbornly" => Policy::Stubbornly,
                "reads" => Policy::Reads,
                "shares" => Policy::Shares,
                "dropped" => Policy::Dropped,
                _ => return None,
            },
            from: word()?.parse().ok()?,
            entered: moment(word()?)?,
            left: moment(word()?)?,
            to: word()?.parse().ok()?,
            still: Duration::from_micros(word()?.parse().ok()?),
            token: word()?.parse().ok()?,
            outcome: match word()? {
                "done" => Outcome::Done,
                "outdated" => Outcome::Outdated,
                "lost" => Outcome::Lost,
                "busy" => Outcome::Busy,
                "timeout" => Outcome::Timeout,
                "unavailable" => Outcome::Unavailable,
                "dropped" => Outcome::Dropped,
                other => Outcome::Other(other.to_owned()),
            },
        })
    }
}

/// Nobody began at the very first.
fn moment(text: &str) -> Option<Option<Moment>> {
    let micros = text.parse().ok()?;
    Some((micros > 0).then_some(Moment::from_micros(micros)))
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            policy,
            from,
            entered,
            left,
            to,
            still,
            token,
            outcome,
        } = self;
        let [entered, left] = [entered, left].map(|moment| moment.map_or(0, Moment::micros));
        let still = still.as_micros();
        let policy = match policy {
            Policy::Try => "try",
            Policy::Briefly => "briefly",
            Policy::Patiently => "patiently",
            Policy::Stubbornly => "stubbornly",
            Policy::Reads => "reads",
            Policy::Shares => "shares",
            Policy::Dropped => "dropped",
        };
        write!(
            f,
            "call {key} {policy} {from} {entered} {left} {to} {still} {token} {outcome}"
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Outdated => "outdated",
            Self::Lost => "lost",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Dropped => "dropped",
            Self::Other(text) => text,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Call, Moment, Outcome, Policy};

    #[test]
    fn a_line_says_what_was_written() {
        let outcomes = [
            Outcome::Done,
            Outcome::Outdated,
            Outcome::Lost,
            Outcome::Busy,
            Outcome::Timeout,
            Outcome::Unavailable,
            Outcome::Dropped,
            Outcome::Other("two words".into()),
        ];
        let policies = [
            Policy::Try,
            Policy::Briefly,
            Policy::Patiently,
            Policy::Stubbornly,
            Policy::Reads,
            Policy::Shares,
            Policy::Dropped,
        ];
        for (outcome, policy) in outcomes.into_iter().zip(policies.into_iter().cycle()) {
            let (from, to) = (Moment::now(), Moment::now());
            let call = Call {
                key: 1,
                policy,
                from,
                entered: Some(from),
                left: None,
                to,
                still: Duration::from_millis(3),
                token: 64,
                outcome,
            };
            let read = Call::parse(&call.to_string()).expect("a call");
            assert_eq!(format!("{read:?}"), format!("{call:?}"));
        }
        assert!(Call::parse("something else").is_none());
    }
}
