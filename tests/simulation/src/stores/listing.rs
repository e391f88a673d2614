//! What is listed of locks, and who may have one beside whom.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{HolderInfo, LockInfo, Mode, Owner};

/// A lock that is held, or whose body has been done.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) key: Arc<str>,
    pub(crate) holders: Vec<(Owner, Mode)>,
    /// `None`: who waits is known to nobody else.
    pub(crate) waiters: Option<usize>,
    pub(crate) done: Option<Mark>,
}

/// A body has been done, by whom, and until when that is remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) owner: Owner,
    pub(crate) until: Duration,
}

/// Whether one who asks so may have the lock beside those who have it.
pub(crate) fn fits(mode: Mode, beside: impl IntoIterator<Item = Mode>) -> bool {
    let mut beside = beside.into_iter();
    match mode {
        Mode::Read => beside.all(Mode::is_shared),
        Mode::Permits(most) => {
            let held: Vec<_> = beside.collect();
            held.len() < most as usize && held.into_iter().all(Mode::is_shared)
        }
        _ => beside.next().is_none(),
    }
}

pub(super) fn infos(locks: Vec<Listed>, is_one: impl Fn(&str) -> bool) -> Vec<LockInfo> {
    let locks = locks.into_iter().filter(|lock| is_one(&lock.key));
    locks.filter_map(info).collect()
}

fn info(lock: Listed) -> Option<LockInfo> {
    let shown = |owner: Owner| HolderInfo::new(owner.to_string(), None);
    let key = lock.key.to_string();
    if let Some(mark) = lock.done {
        return Some(LockInfo::of_done(key, shown(mark.owner)));
    }
    let modes = lock.holders.iter().map(|(_, mode)| *mode);
    let permits = modes.clone().filter_map(|mode| match mode {
        Mode::Permits(most) => Some(most),
        _ => None,
    });
    let mode = permits.max().map(Mode::Permits).or(modes.clone().next())?;
    let holders = lock.holders.iter().map(|(owner, _)| shown(*owner));
    Some(LockInfo::new(key, mode, holders.collect(), lock.waiters))
}

#[cfg(test)]
mod tests {
    use super::Mode::{Permits, Read, Write};
    use super::*;

    #[test]
    fn who_may_have_it_beside_whom() {
        for mode in [Read, Write, Permits(1)] {
            assert!(fits(mode, []));
            assert!(!fits(mode, [Write]));
            assert!(!fits(Write, [mode]));
        }
        assert!(fits(Read, [Permits(1), Read]));
        assert!(fits(Permits(3), [Read, Permits(2)]));
        assert!(!fits(Permits(2), [Read, Permits(9)]));
    }
}
