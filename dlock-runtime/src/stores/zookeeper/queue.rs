//! Which requests hold a lock and which wait for whom, by the nodes in the lock's folder.
//!
//! It is as in the recipes of ZooKeeper and Curator
//! (<https://zookeeper.apache.org/doc/r3.8.0/recipes.html#sc_recipes_Locks>). Requests are in the
//! order of their sequence. A writer waits for the request right before it; a reader waits for the
//! last writer before it. Each watches only that one node, so that the end of a lease wakes only
//! requests that can go on. A waiter for permits, or behind one, waits for any of several nodes
//! (`folders`).

use super::names::Member;
use crate::backend::Mode;

/// The position of a request in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueuePosition {
    /// It holds the lock.
    Holds,
    /// It waits until the node of this name is gone.
    Behind(String),
    /// It waits until one or more of the nodes before it are gone.
    BehindSome,
    /// Its node is not there.
    Missing,
}

/// The position of a request among the nodes of its folder.
pub(super) fn queue_position(names: &[String], own: &Member) -> QueuePosition {
    let queue = in_order(names);
    let Some(place) = queue.iter().position(|member| member.name == own.name) else {
        return QueuePosition::Missing;
    };
    if place < Mode::holding(queue.iter().map(|member| member.mode)) {
        return QueuePosition::Holds;
    }
    let mut before = queue.into_iter().take(place);
    let one = match own.mode.most_beside() {
        0 => before.next_back(),
        _ if own.mode == Mode::Read => {
            let last = before.rfind(|member| member.mode != Mode::Read);
            last.filter(|last| last.mode == Mode::Write)
        }
        _ => None,
    };
    one.map_or(QueuePosition::BehindSome, |member| {
        QueuePosition::Behind(member.name)
    })
}

/// The requests of a folder: the holders and the waiters.
pub(super) fn holders(names: &[String]) -> (Vec<Member>, Vec<Member>) {
    let mut holders = in_order(names);
    let holding = Mode::holding(holders.iter().map(|member| member.mode));
    let waiters = holders.split_off(holding);
    (holders, waiters)
}

fn in_order(names: &[String]) -> Vec<Member> {
    let mut queue: Vec<_> = names.iter().filter_map(|name| Member::read(name)).collect();
    queue.sort_by(|one, other| one.order().cmp(&other.order()));
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn position(names: &[String], own: &str) -> QueuePosition {
        queue_position(names, &Member::read(own).expect("a request"))
    }

    fn behind(name: &str) -> QueuePosition {
        QueuePosition::Behind(name.to_owned())
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
        assert_eq!(position(&names, "x-lock-1"), QueuePosition::Holds);
        assert_eq!(position(&names, "w-lock-3"), behind("r-read-lock-2"));
        assert_eq!(position(&names, "w-lock-9"), behind("w-lock-3"));
        assert_eq!(position(&names, "w-lock-4"), QueuePosition::Missing);
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
        assert_eq!(position(&names, "a__READ__1"), QueuePosition::Holds);
        assert_eq!(position(&names, "c__READ__3"), behind("b__WRIT__2"));
        assert_eq!(position(&names, "e__READ__5"), behind("d-lock-4"));
    }

    #[test]
    fn who_does_not_fit_beside_all_before_it_waits_for_some_of_them() {
        let names = folder(&[
            "a-permit-2-__READ__1",
            "b__READ__2",
            "c-permit-2-__READ__3",
            "d-permit-9-__READ__4",
            "e__READ__5",
            "f-permit-1-__READ__6",
            "g__WRIT__7",
            "h__READ__8",
            "i-permit-99-__READ__9",
            "j__READ__10",
        ]);
        for name in &names[..2] {
            assert_eq!(position(&names, name), QueuePosition::Holds, "{name}");
        }
        for number in [2, 3, 4, 8, 9] {
            let name = &names[number];
            assert_eq!(position(&names, name), QueuePosition::BehindSome, "{name}");
        }
        assert_eq!(position(&names, &names[5]), behind(&names[4]));
        assert_eq!(position(&names, &names[6]), behind(&names[5]));
        assert_eq!(position(&names, &names[7]), behind(&names[6]));
        assert_eq!(holders(&names).0.len(), 2);
    }

    #[test]
    fn a_node_of_the_same_number_is_not_ones_own() {
        let names = folder(&["a-lock-7", "b-lock-7"]);
        assert_eq!(position(&names, "a-lock-7"), QueuePosition::Holds);
        assert_eq!(position(&names, "b-lock-7"), behind("a-lock-7"));
        assert_eq!(position(&names, "c-lock-7"), QueuePosition::Missing);
        // One of Curator's writers goes on as a reader, with the same number.
        let names = folder(&["a__WRIT__7", "a__READ__7", "b__WRIT__8", "c__READ__9"]);
        assert_eq!(position(&names, "b__WRIT__8"), behind("a__WRIT__7"));
        let names = folder(&["a__READ__7", "c__READ__9"]);
        assert_eq!(position(&names, "c__READ__9"), QueuePosition::Holds);
    }

    /// Curator compares them as text, in which they come before all others.
    #[test]
    fn a_number_below_zero_goes_first() {
        let names = folder(&["a-lock--2147483648", "b-lock-0000000007"]);
        assert_eq!(
            position(&names, "b-lock-0000000007"),
            behind("a-lock--2147483648")
        );
        assert_eq!(holders(&names).0[0].name, "a-lock--2147483648");
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
