//! Which other requests may have the lock at the same time.

use std::fmt;
use std::ops::Range;

use super::{BackendError, BackendErrorKind};

/// Which other requests may have the lock at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Mode {
    /// Shared with other readers and with permits.
    Read,
    /// Exclusive.
    #[default]
    Write,
    /// One of this many permits (at least one). Shared with readers and other permits, as long as
    /// all of them together, this one included, are no more than the number.
    Permits(u32),
}

impl Mode {
    /// Whether others may have the lock too.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::Write)
    }

    /// The largest number of other holders beside which this mode may have the lock.
    pub(crate) fn most_beside(self) -> usize {
        match self {
            Self::Write => 0,
            Self::Read => usize::MAX,
            Self::Permits(most) => usize::try_from(most).unwrap_or(usize::MAX).max(1) - 1,
        }
    }

    /// Whether the lock may be had beside the present holders.
    pub(crate) fn fits(self, mut held: impl ExactSizeIterator<Item = Self>) -> bool {
        held.len() <= self.most_beside() && held.all(Self::is_shared)
    }

    /// How many requests of a queue, in its order, hold the lock. A request holds it if it fits
    /// beside all before it and they hold it too.
    pub(crate) fn holding(queue: impl IntoIterator<Item = Self>) -> usize {
        let mut shared = true;
        let hold = queue.into_iter().enumerate().take_while(|&(before, mode)| {
            let fits = shared && before <= mode.most_beside();
            shared = mode.is_shared();
            fits
        });
        hold.count()
    }

    /// Which of the places ahead in a queue must still exist so that a request of this mode has
    /// to wait, whatever becomes of the others. Fails if they are more than one step can look at.
    pub(crate) fn in_the_way(
        self,
        ahead: impl DoubleEndedIterator<Item = Self> + ExactSizeIterator,
        most: usize,
    ) -> Result<Range<usize>, BackendError> {
        let count = ahead.len();
        let writer = ahead.rev().position(|mode| !mode.is_shared());
        let range = match (self.is_shared(), writer) {
            (true, Some(behind)) => count - behind - 1..count - behind,
            // One more than may be beside it.
            (true, None) => 0..count.min(self.most_beside().saturating_add(1)),
            (false, _) => count.saturating_sub(1)..count,
        };
        if range.len() > most {
            let message = format!(
                "a waiter is taken out in one step, which must see that all {} in its way are \
                 there, and can see {most}; break some of the holders, or end the process that waits",
                range.len()
            );
            return Err(BackendError::new(BackendErrorKind::Unsupported, message));
        }
        Ok(range)
    }

    /// The mode to show for a lock with these holders.
    pub(crate) fn shown(held: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut held = held.into_iter();
        let first = held.next()?;
        Some(held.fold(first, |shown, mode| match (shown, mode) {
            (Self::Permits(one), Self::Permits(other)) => Self::Permits(one.max(other)),
            (Self::Read, other) => other,
            (shown, _) => shown,
        }))
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Permits(_) => "permits",
        }
    }

    /// How a task holds the lock in this mode, for messages.
    pub(crate) const fn held(self) -> &'static str {
        match self {
            Self::Read => "for reading",
            Self::Write => "for writing",
            Self::Permits(_) => "by a permit",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Permits(most) => write!(f, " = {most}"),
            Self::Read | Self::Write => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{self, Permits, Read, Write};

    #[test]
    fn who_fits_beside_whom() {
        let fits = |mode: Mode, held: &[Mode]| mode.fits(held.iter().copied());
        for mode in [Read, Write, Permits(1), Permits(u32::MAX)] {
            assert!(fits(mode, &[]));
            assert!(!fits(mode, &[Write]));
            assert!(!fits(Write, &[mode]));
        }
        assert!(fits(Read, &[Permits(1)]) && fits(Read, &[Read; 100]));
        assert!(!fits(Permits(1), &[Read]) && !fits(Permits(2), &[Read, Permits(9)]));
        assert!(fits(Permits(3), &[Read, Permits(1)]));
    }

    #[test]
    fn who_holds_follows_from_the_order() {
        for (queue, holding) in [
            (&[][..], 0),
            (&[Write, Write, Read], 1),
            (&[Read, Read, Write, Read], 2),
            (&[Permits(1), Permits(1)], 1),
            (&[Permits(0)], 1),
            (&[Write, Permits(9)], 1),
            (&[Permits(2); 5], 2),
            // A request that does not fit is not overtaken.
            (&[Permits(2), Permits(2), Permits(2), Permits(9), Read], 2),
            (&[Permits(1), Read, Read, Permits(4), Permits(4), Read], 4),
            (&[Read, Permits(1), Read], 1),
            (&[Permits(9), Permits(u32::MAX), Write], 2),
        ] {
            assert_eq!(Mode::holding(queue.iter().copied()), holding, "{queue:?}");
            // The same as asking `fits` for each place in turn.
            let one_by_one = (0..queue.len())
                .take_while(|&place| queue[place].fits(queue[..place].iter().copied()));
            assert_eq!(one_by_one.count(), holding, "{queue:?}");
        }
    }

    #[test]
    fn who_waits_has_somebody_in_the_way() {
        for (mode, ahead, range) in [
            (Write, &[Read, Write][..], 1..2),
            (Read, &[Read, Write, Read], 1..2),
            (Permits(2), &[Write, Read, Permits(2)], 0..1),
            (Permits(2), &[Permits(9); 5], 0..2),
            (Permits(9), &[Read, Permits(1)], 0..2),
        ] {
            let in_the_way = mode.in_the_way(ahead.iter().copied(), 2);
            assert_eq!(in_the_way.expect("few enough"), range, "{mode:?} {ahead:?}");
        }
    }

    /// If only some of them were looked at, the step could not know that the request waits and
    /// holds nothing.
    #[test]
    fn more_than_are_looked_at_are_too_many() {
        let in_the_way = Permits(3).in_the_way([Read; 4].into_iter(), 2);
        let error = in_the_way.expect_err("3 of them").to_string();
        assert!(
            error.contains("all 3") && error.contains("see 2"),
            "{error}"
        );
    }

    #[test]
    fn what_is_shown_of_holders_of_several_modes() {
        assert_eq!(Mode::shown([]), None);
        assert_eq!(Mode::shown([Write]), Some(Write));
        assert_eq!(Mode::shown([Read, Read]), Some(Read));
        assert_eq!(
            Mode::shown([Read, Permits(2), Permits(5), Read]),
            Some(Permits(5))
        );
    }
}
