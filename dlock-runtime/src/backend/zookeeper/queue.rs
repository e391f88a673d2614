//! Whose turn it is, by the nodes in a lock's folder.
//!
//! The recipes of ZooKeeper and Curator: the requests are in the order of their
//! sequence. A writer waits for the request right before it, whatever that is;
//! a reader for the last writer before it. Each watches that one node only, so
//! that the end of a lease wakes those who can go on with it, and not all.

use super::names::{Member, Sequence};
use crate::backend::Mode;

/// Where a request stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It holds the lock.
    Holds,
    /// It waits until the node of this name is gone.
    Behind(String),
    /// Its node is not there.
    Missing,
}

/// Where the request with this sequence stands among the nodes of its folder.
pub(super) fn standing(names: &[String], own: Sequence, mode: Mode) -> Standing {
    let mut is_there = false;
    // The last of those before it that it waits for.
    let mut before: Option<Member> = None;
    for member in names.iter().filter_map(|name| Member::read(name)) {
        match member.sequence.behind(own) {
            0 => is_there = true,
            1.. => {}
            _ if mode == Mode::Read && member.mode == Mode::Read => {}
            behind => {
                let is_later = |other: &Member| behind > other.sequence.behind(own);
                if before.as_ref().is_none_or(is_later) {
                    before = Some(member);
                }
            }
        }
    }
    match before {
        _ if !is_there => Standing::Missing,
        Some(member) => Standing::Behind(member.name),
        None => Standing::Holds,
    }
}

/// The requests of a folder: those who hold the lock, and those who wait.
pub(super) fn holders(names: &[String]) -> (Vec<Member>, Vec<Member>) {
    let mut holders: Vec<_> = names.iter().filter_map(|name| Member::read(name)).collect();
    if let Some(any) = holders.first().map(|member| member.sequence) {
        holders.sort_by_key(|member| member.sequence.behind(any));
    }
    let readers = holders
        .iter()
        .take_while(|member| member.mode == Mode::Read)
        .count();
    let waiters = holders.split_off(readers.max(1).min(holders.len()));
    (holders, waiters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn behind(name: &str) -> Standing {
        Standing::Behind(name.to_owned())
    }

    #[test]
    fn a_writer_waits_for_whoever_came_right_before() {
        let names = folder(&[
            "w-lock-3",
            "r-read-lock-2",
            "x-lock-1",
            "config",
            "w-lock-9",
        ]);
        let stands = |sequence| standing(&names, Sequence(sequence), Mode::Write);
        assert_eq!(stands(1), Standing::Holds);
        assert_eq!(stands(3), behind("r-read-lock-2"));
        assert_eq!(stands(9), behind("w-lock-3"));
        assert_eq!(stands(4), Standing::Missing);
    }

    #[test]
    fn a_reader_waits_for_the_last_writer_before_it() {
        let names = folder(&[
            "a__READ__1",
            "b__WRIT__2",
            "c__READ__3",
            "d-lock-4",
            "e__READ__5",
        ]);
        let stands = |sequence| standing(&names, Sequence(sequence), Mode::Read);
        assert_eq!(stands(1), Standing::Holds);
        assert_eq!(stands(3), behind("b__WRIT__2"));
        assert_eq!(stands(5), behind("d-lock-4"));
    }

    #[test]
    fn the_order_outlives_the_end_of_the_numbers() {
        let names = folder(&["a-lock--2147483648", "b-lock-2147483647"]);
        let stands = |sequence| standing(&names, Sequence(sequence), Mode::Write);
        assert_eq!(stands(i32::MAX), Standing::Holds);
        assert_eq!(stands(i32::MIN), behind("b-lock-2147483647"));
        assert_eq!(holders(&names).0[0].name, "b-lock-2147483647");
    }

    #[test]
    fn readers_hold_together() {
        let count = |names: &[&str]| {
            let (holders, waiters) = holders(&folder(names));
            (holders.len(), waiters.len())
        };
        assert_eq!(count(&[]), (0, 0));
        assert_eq!(count(&["lock-1", "lock-2", "read-lock-3"]), (1, 2));
        assert_eq!(count(&["read-lock-4", "read-lock-3", "lock-5"]), (2, 1));
    }
}
