//! Sets of voters, by their number.

/// So many voters a set can hold.
pub(crate) const MOST_VOTERS: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VoterSet(u64);

impl VoterSet {
    pub(super) fn insert(&mut self, voter: usize) {
        self.0 |= 1 << voter;
    }

    pub(super) fn remove(&mut self, voter: usize) {
        self.0 &= !(1 << voter);
    }

    pub(super) fn contains(self, voter: usize) -> bool {
        self.0 & (1 << voter) != 0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MOST_VOTERS).filter(move |&voter| self.contains(voter))
    }
}

impl FromIterator<usize> for VoterSet {
    fn from_iter<I: IntoIterator<Item = usize>>(voters: I) -> Self {
        let mut set = Self::default();
        for voter in voters {
            set.insert(voter);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_voters() {
        let one: VoterSet = [0, 2, 63].into_iter().collect();
        let other: VoterSet = [2, 4].into_iter().collect();
        assert_eq!(one.iter().collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(one.with(other).len(), 4);
        assert_eq!(one.without(other).iter().collect::<Vec<_>>(), [0, 63]);
        assert_eq!(one.both(other).iter().collect::<Vec<_>>(), [2]);
        assert!(one.contains(63) && !one.contains(1));
        assert!(VoterSet::default().is_empty());
    }
}
