//! An owner, and the number of permits if it asks for one, as stores keep them: as text.

use std::fmt;

use crate::backend::{Mode, Owner, Request};

/// An owner as a store keeps it: `1.1`, or `1.1/7` if it asks for one of seven permits. Where the
/// number of permits does not matter, a request for one is a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredOwner {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
}

impl StoredOwner {
    pub(crate) fn of(request: &Request) -> Self {
        let Request { owner, mode, .. } = *request;
        Self { owner, mode }
    }

    /// Reads the text of an owner that shares the lock.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (owner, mode) = match text.split_once('/') {
            Some((owner, most)) => (owner, Mode::Permits(most.parse().ok()?)),
            None => (text, Mode::Read),
        };
        let owner = Owner::read(owner)?;
        Some(Self { owner, mode })
    }
}

impl fmt::Display for StoredOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        match self.mode {
            Mode::Permits(most) => write!(f, "/{most}"),
            Mode::Read | Mode::Write => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_is_read_back() {
        let owner = Owner::unique();
        for mode in [Mode::Read, Mode::Permits(1), Mode::Permits(u32::MAX)] {
            let stored = StoredOwner { owner, mode };
            assert_eq!(StoredOwner::read(&stored.to_string()), Some(stored));
        }
        for nonsense in [
            "",
            "/7",
            "1.1/",
            "1.1/x",
            "1.1/-1",
            "1.1/7/7",
            "1.1/4294967296",
        ] {
            assert_eq!(StoredOwner::read(nonsense), None, "{nonsense}");
        }
    }
}
