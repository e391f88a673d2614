//! The names of nodes: those of locks, and those of requests, which are like Apache Curator's.
//!
//! A lock is a folder, `<root>/<key>`. Each request makes an ephemeral sequential node in it,
//! `_c_<guid>-<mark><sequence>`. Curator calls such names *protected*: by its name, a request finds
//! its own node again if it was not told that the node was created. Curator's recipes know a node
//! by the mark, and sort the nodes by what follows it:
//!
//! | mark | made by |
//! |---|---|
//! | `lock-` | `InterProcessMutex`; dlock, to write |
//! | `read-lock-` | dlock, to read: an `InterProcessMutex` takes it for one of its own, and waits |
//! | `__WRIT__`, `__READ__` | `InterProcessReadWriteLock`; dlock with `recipe=read-write` |
//!
//! A request for one of n permits has a reader's mark, and `permit-<n>-` before it, where Curator
//! does not look: to services in Java it is a reader.

use percent_encoding::{percent_decode_str, percent_encode_byte};

use crate::backend::{Mode, Owner};

/// What Curator puts in front of the name of a protected node.
const PROTECTED: &str = "_c_";

const MUTEX: &str = "lock-";
const MUTEX_READ: &str = "read-lock-";
const WRITE: &str = "__WRIT__";
const READ: &str = "__READ__";

/// The node in the root whose number is added to every token. It is no lock's folder, where a `%`
/// begins the code of a character.
pub(super) const FLOOR: &str = "%token-floor";

/// The beginning of the name of a node that tells a waiter to leave.
pub(super) const OUT: &str = "~out-";

/// The first of the numbers with which dlock takes no lock.
const END: i64 = i32::MAX as i64 - (1 << 24);

/// Between the owner and the number of permits, in front of a reader's mark.
const PERMIT: &str = "-permit-";

/// The beginning of the name of a mark: the lock's body has been done. Curator sorts by a number,
/// and by the whole name if there is none (`standardFixForSorting`). This name comes behind every
/// number, and nobody waits behind the last.
pub(super) const MARK: &str = "~done-";

/// Whose nodes dlock's nodes look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Recipe {
    /// Those of an `InterProcessMutex`.
    #[default]
    Mutex,
    /// Those of an `InterProcessReadWriteLock`.
    ReadWrite,
}

impl Recipe {
    fn mark(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Self::Mutex, Mode::Write) => MUTEX,
            (Self::Mutex, Mode::Read | Mode::Permits(_)) => MUTEX_READ,
            (Self::ReadWrite, Mode::Write) => WRITE,
            (Self::ReadWrite, Mode::Read | Mode::Permits(_)) => READ,
        }
    }
}

/// The folder of a lock.
pub(super) fn folder(root: &str, key: &str) -> String {
    join(root, &escaped(key))
}

/// A node in a folder.
pub(super) fn join(folder: &str, name: &str) -> String {
    let separator = if folder.ends_with('/') { "" } else { "/" };
    format!("{folder}{separator}{name}")
}

/// The key of a lock whose folder has this name; `None` if that is no lock's.
pub(super) fn key(name: &str) -> Option<String> {
    let key = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    // Each key has only one name.
    (escaped(&key) == name).then_some(key)
}

/// A key as one part of a path. Most keys stay as they are, so that other programs find them.
fn escaped(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    // These parts of a path have a meaning to ZooKeeper.
    let reserved = matches!(key, "." | ".." | "zookeeper");
    for (index, character) in key.char_indices() {
        if matches!(character, '%' | '/') || is_refused(character) || (reserved && index == 0) {
            let mut bytes = [0; 4];
            let bytes = character.encode_utf8(&mut bytes).bytes();
            name.extend(bytes.map(percent_encode_byte));
        } else {
            name.push(character);
        }
    }
    name
}

/// What ZooKeeper refuses in a path. It looks at UTF-16, in which characters beyond the first plane
/// are pairs of surrogates.
/// <https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#ch_zkDataModel>
fn is_refused(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{E000}'..='\u{F8FF}' | '\u{FFF0}'..='\u{FFFF}' | '\u{10000}'..)
}

/// The beginning of the names of a request's nodes: its owner in the form of a GUID.
pub(super) fn own(owner: Owner) -> String {
    let hex = format!("{:016x}{:016x}", owner.random(), owner.sequence());
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    format!("{PROTECTED}{}-", parts.join("-"))
}

/// The name of the node that tells a waiter to leave the queue. It sorts like a mark.
pub(super) fn out(owner: Owner) -> String {
    format!("{OUT}{}", own(owner))
}

/// Whether the node `name` tells the waiter with the node `waiter` to leave.
pub(super) fn is_out(name: &str, waiter: &str) -> bool {
    let owner = name.strip_prefix(OUT);
    owner.is_some_and(|owner| waiter.starts_with(owner))
}

/// The name of an owner's mark.
pub(super) fn mark(owner: Owner) -> String {
    format!("{MARK}{}", own(owner).trim_end_matches('-'))
}

/// The name of a request's node, up to the sequence, which the server appends.
pub(super) fn request(owner: Owner, recipe: Recipe, mode: Mode) -> String {
    let permit = match mode {
        Mode::Permits(most) => format!("{}{most}-", PERMIT.trim_start_matches('-')),
        Mode::Read | Mode::Write => String::new(),
    };
    own(owner) + &permit + recipe.mark(mode)
}

/// A node of a request, as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The whole name: two nodes of one folder may have the same number.
    pub(super) name: String,
    /// The number that the server has appended.
    pub(super) sequence: i64,
    pub(super) mode: Mode,
}

/// Whether a request with this number is refused.
///
/// The server counts in 32 bits, and what it does at their end is of no use to a lock: it appends
/// the last number again and again, and numbers below zero while an earlier creation is under way.
/// (It names a node by a count that includes what is under way,
/// `PrepRequestProcessor.pRequest2TxnCreate` of ZooKeeper 3.8, and keeps only a greater count,
/// `DataTree.createNode`.) Curator compares the numbers as text
/// (`LockInternals.getSortedChildren`). So of two of its requests with the same number, either may
/// be the first, and one below zero goes before all others, even before a holder.
///
/// So no request of dlock holds or waits with such a number. It also keeps a distance from the end:
/// services in Java do not stop there, and may use up numbers while dlock holds a lock.
pub(super) fn is_at_the_end(sequence: i64) -> bool {
    !(0..END).contains(&sequence)
}

/// How much of its numbers a folder has used if its next node has this one, in percent. `None` if
/// it is not much.
pub(super) fn used_up(next: i64) -> Option<i64> {
    let percent = next.saturating_mul(100) / END;
    (percent >= 90).then_some(percent.min(100))
}

impl Member {
    /// `None` if it is not the node of a request for a lock.
    pub(super) fn read(name: &str) -> Option<Self> {
        let marks = [
            (WRITE, Mode::Write),
            (READ, Mode::Read),
            // Before `MUTEX`, which is a part of it.
            (MUTEX_READ, Mode::Read),
            (MUTEX, Mode::Write),
        ];
        marks.into_iter().find_map(|(mark, mode)| {
            let (start, sequence) = name.rsplit_once(mark)?;
            Some(Self {
                name: name.to_owned(),
                sequence: sequence.parse().ok()?,
                mode: permit(start).filter(|_| mode.is_shared()).unwrap_or(mode),
            })
        })
    }

    /// The order of the queue. As in Curator, numbers below zero come first.
    pub(super) fn order(&self) -> (i64, &str) {
        (self.sequence, &self.name)
    }
}

/// The permits that a request asks for, if its name begins like this, before a reader's mark.
fn permit(start: &str) -> Option<Mode> {
    let (_, most) = start.strip_suffix('-')?.rsplit_once(PERMIT)?;
    most.parse().ok().map(Mode::Permits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_again() {
        for (key, name) in [
            ("stock:42", "stock:42"),
            ("ünïcode 漢字", "ünïcode 漢字"),
            ("a/b", "a%2Fb"),
            ("100%", "100%25"),
            (".", "%2E"),
            ("..", "%2E."),
            ("...", "..."),
            ("zookeeper", "%7Aookeeper"),
            ("🦀", "%F0%9F%A6%80"),
            ("\u{FFFD}", "%EF%BF%BD"),
        ] {
            assert_eq!(folder("/dlock", key), format!("/dlock/{name}"));
            assert_eq!(self::key(name).as_deref(), Some(key));
        }
        assert_eq!(folder("/", "a"), "/a");
        for other in ["100%", "%61", "%ff", "zookeeper", FLOOR] {
            assert_eq!(key(other), None, "{other}");
        }
    }

    #[test]
    fn requests_look_like_curators() {
        let owner = Owner::unique();
        let name = |recipe, mode| request(owner, recipe, mode) + "0000000012";
        let member = Member::read(&name(Recipe::Mutex, Mode::Write)).expect("a request");
        assert_eq!(
            member.name.len(),
            "_c_".len() + 36 + "-lock-0000000012".len()
        );
        assert_eq!((member.sequence, member.mode), (12, Mode::Write));
        for (recipe, mode) in [
            (Recipe::Mutex, Mode::Read),
            (Recipe::ReadWrite, Mode::Read),
            (Recipe::ReadWrite, Mode::Write),
            (Recipe::Mutex, Mode::Permits(1)),
            (Recipe::ReadWrite, Mode::Permits(u32::MAX)),
        ] {
            let name = name(recipe, mode);
            assert!(name.starts_with(&own(owner)), "{name}");
            let member = Member::read(&name).expect("a request");
            assert_eq!((member.sequence, member.mode), (12, mode));
        }
        // Curator takes it for a reader.
        let permit = name(Recipe::ReadWrite, Mode::Permits(7));
        assert!(permit.ends_with("-permit-7-__READ__0000000012"), "{permit}");
        for (other, mode) in [
            ("x-permit-7-lock-1", Mode::Write),
            ("x-permit-7-__WRIT__1", Mode::Write),
            ("x-permit-x-__READ__1", Mode::Read),
            ("permit-7-__READ__1", Mode::Read),
        ] {
            let member = Member::read(other).expect("a request");
            assert_eq!(member.mode, mode, "{other}");
        }
        let waiter = name(Recipe::Mutex, Mode::Write);
        let (mark, out) = (mark(owner), out(owner));
        assert!(is_out(&out, &waiter) && !is_out(&mark, &waiter));
        let other = request(Owner::unique(), Recipe::Mutex, Mode::Write);
        assert!(!is_out(&out, &other) && !is_out(&waiter, &waiter));
        for other in [
            "",
            "lock-",
            "lock-x",
            "config",
            "_c_1-lease-0000000001",
            &mark,
            &out,
        ] {
            assert_eq!(Member::read(other), None, "{other}");
        }
        assert!(
            *mark > *"2147483647" && *out > *"2147483647",
            "{mark} {out}"
        );
    }

    #[test]
    fn the_end_comes_before_numbers_repeat() {
        let is_at_the_end = |name: &str| {
            let member = Member::read(name).expect("a request");
            super::is_at_the_end(member.sequence)
        };
        for name in ["lock-0000000000", "__WRIT__0000000001", "lock-2130706430"] {
            assert!(!is_at_the_end(name), "{name}");
        }
        for name in [
            "lock-2130706431",
            "read-lock-2147483647",
            "lock--2147483648",
            "__READ__-000000001",
            // From a server that counts further.
            "lock-0000002147483648",
        ] {
            assert!(is_at_the_end(name), "{name}");
        }
    }
}
