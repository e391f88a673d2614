//! Where locks are in etcd: a part of what dlock documents, as operators, roles
//! and `etcdctl lock` need it.
//!
//! ```text
//! dlock/<key>/<place>             a writer's place in the queue for <key>
//! dlock/<key>/read-<place>        a reader's
//! dlock/<key>/permit-<n>-<place>  that of one who asks for one of n permits
//! dlock//<key>                    a mark: its body was to run once, and has been done
//! dlock//<key>/out-<owner>        this owner was taken out of the queue, and may not know it yet
//! dlock///token-floor             what every token has added to it
//! ```
//!
//! The value is the request whose place it is at the moment: a place is used again
//! (`places.rs`). Behind a holder that had to wait, `;<unix ms>` says since when it holds the
//! lock, by its own clock, once its lease was renewed. That of a mark is the request that has done it (`marks.rs`).
//! No lock has an empty key: so no place stands where the marks are.
//!
//! That is how `etcdctl lock dlock/<key>` names what it writes, with the id of
//! its lease for the place: whoever has the lowest create-revision under
//! `dlock/<key>/` holds the lock, whatever made it.

use crate::backend::Mode;

const DEFAULT_PREFIX: &str = "dlock";
const READER: &str = "read-";
const PERMIT: &str = "permit-";
/// Behind the prefix, in the place of a mark whose lock has no key.
const FLOOR: &str = "//token-floor";

/// The keys of all locks.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Ends in a slash.
    pub(super) prefix: String,
}

/// The keys of one lock, all of which begin with this.
#[derive(Clone, Debug)]
pub(super) struct LockName {
    pub(super) queue: String,
    /// So many bytes of it are before the key.
    prefix: usize,
}

/// A range of keys, from the first to before the second.
pub(super) type Range = (Vec<u8>, Vec<u8>);

impl Names {
    pub(super) fn under(path: &str) -> Self {
        let prefix = match path.trim_end_matches('/') {
            "" => DEFAULT_PREFIX,
            prefix => prefix,
        };
        Self {
            prefix: format!("{prefix}/"),
        }
    }

    pub(super) fn floor(&self) -> String {
        format!("{}{FLOOR}", self.prefix)
    }

    pub(super) fn lock(&self, key: &str) -> LockName {
        LockName {
            queue: format!("{}{}/", self.prefix, escaped(key)),
            prefix: self.prefix.len(),
        }
    }

    /// What the keys of all locks begin with whose own key begins with `prefix`.
    pub(super) fn beginning_with(&self, prefix: &str) -> String {
        format!("{}{}", self.prefix, escaped(prefix))
    }

    /// What their marks begin with.
    pub(super) fn marks_beginning_with(&self, prefix: &str) -> String {
        format!("{}/{}", self.prefix, escaped(prefix))
    }

    /// The lock's key and the place in its queue, of a key that is one.
    pub(super) fn read<'k>(&self, key: &'k str) -> Option<(String, &'k str)> {
        let (lock, place) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        if lock.is_empty() {
            return None;
        }
        Some((unescaped(lock)?, place))
    }

    /// The lock's key, of a key that is its mark.
    pub(super) fn read_mark(&self, key: &str) -> Option<String> {
        let lock = key.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        if lock.contains('/') {
            None
        } else {
            unescaped(lock)
        }
    }
}

impl LockName {
    /// The lock as the Lock call and `etcdctl lock` name it.
    pub(super) fn for_lock_service(&self) -> &str {
        self.queue.trim_end_matches('/')
    }

    /// Where it is remembered that what the lock is for has been done.
    pub(super) fn mark(&self) -> String {
        let (prefix, key) = self.for_lock_service().split_at(self.prefix);
        format!("{prefix}/{key}")
    }

    /// Where the floor of all tokens is.
    pub(super) fn floor(&self) -> String {
        format!("{}{FLOOR}", &self.queue[..self.prefix])
    }

    /// Where it stands that this owner was taken out of the queue.
    pub(super) fn out(&self, owner: &str) -> String {
        format!("{}/out-{owner}", self.mark())
    }

    /// The place that the Lock call takes with this lease.
    pub(super) fn of_lock_service(&self, lease: i64) -> String {
        format!("{}{lease:x}", self.queue)
    }

    /// What stands before each place of those who want this.
    pub(super) fn places(&self, mode: Mode) -> String {
        match mode {
            Mode::Write => self.queue.clone(),
            Mode::Read => format!("{}{READER}", self.queue),
            Mode::Permits(most) => format!("{}{PERMIT}{most}-", self.queue),
        }
    }

    /// What a place with this key is for.
    pub(super) fn mode_of(&self, key: &str) -> Mode {
        mode_of(key.strip_prefix(&self.queue).unwrap_or(key))
    }

    /// The places of all.
    pub(super) fn queue(&self) -> Range {
        range_of(&self.queue)
    }

    /// The places of those that a request may have to wait for if they came before
    /// it: all but those of readers, for a reader.
    pub(super) fn ahead_of(&self, mode: Mode) -> Vec<Range> {
        let all = self.queue();
        match mode {
            Mode::Write | Mode::Permits(_) => vec![all],
            Mode::Read => {
                let readers = range_of(&format!("{}{READER}", self.queue));
                vec![(all.0, readers.0), (readers.1, all.1)]
            }
        }
    }
}

/// Whatever dlock has not named so is a writer's, as `etcdctl lock` means it.
pub(super) fn mode_of(place: &str) -> Mode {
    if place.starts_with(READER) {
        return Mode::Read;
    }
    let permit = place.strip_prefix(PERMIT);
    let most = permit.and_then(|permit| permit.split_once('-')?.0.parse().ok());
    most.map_or(Mode::Write, Mode::Permits)
}

/// All keys that begin with `prefix`, which ends in ASCII.
fn range_of(prefix: &str) -> Range {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (prefix.as_bytes().to_vec(), end)
}

/// A slash ends the lock's key: else the places of `a/b` would stand in the
/// queue of `a`.
fn escaped(key: &str) -> String {
    key.replace('%', "%25").replace('/', "%2F")
}

fn unescaped(key: &str) -> Option<String> {
    let key = percent_encoding::percent_decode_str(key);
    key.decode_utf8().ok().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_is_found_again() {
        let names = Names::under("");
        for key in ["stock:42", "a/b", "a%2Fb", "%", "/", "ключ", "read-x"] {
            let lock = names.lock(key);
            for mode in [
                Mode::Read,
                Mode::Write,
                Mode::Permits(1),
                Mode::Permits(u32::MAX),
            ] {
                assert_eq!(names.read_mark(&lock.mark()).as_deref(), Some(key));
                let place = format!("{}694d8c2e5f.0", lock.places(mode));
                assert_eq!(lock.mode_of(&place), mode);
                let (found, place) = names.read(&place).expect("a place in a queue");
                assert_eq!(found, key);
                assert_eq!(names.read_mark(&format!("{}x", lock.queue)), None);
                assert!(names.read(&lock.mark()).is_none());
                assert_eq!(mode_of(place), mode);
            }
        }
        let floor = names.floor();
        assert_eq!(floor, names.lock("a/b").floor());
        assert!(names.read(&floor).is_none() && names.read_mark(&floor).is_none());
        assert_eq!(names.read("dlock/x").map(drop), None);
        assert_eq!(names.read("other/x/y").map(drop), None);
        assert_eq!(names.lock("stock:42").for_lock_service(), "dlock/stock:42");
    }

    #[test]
    fn what_is_no_permit_of_ours_is_a_writers() {
        for place in ["permit-", "permit-7", "permit-x-1", "permit-4294967296-1"] {
            assert_eq!(mode_of(place), Mode::Write, "{place}");
        }
    }

    #[test]
    fn a_reader_does_not_wait_for_readers() {
        let lock = Names::under("").lock("key");
        let stands = |mode: Mode, place: &str| {
            let place = format!("dlock/{place}").into_bytes();
            let ranges = lock.ahead_of(mode);
            ranges
                .iter()
                .any(|(first, end)| (first..end).contains(&&place))
        };
        for place in [
            "694d8c2e5f",
            "a",
            "permit-2-a",
            "reac",
            "reae",
            "zz",
            "read",
        ] {
            for mode in [Mode::Read, Mode::Write, Mode::Permits(2)] {
                assert!(stands(mode, &format!("key/{place}")), "{place}");
            }
        }
        assert!(stands(Mode::Write, "key/read-a") && stands(Mode::Permits(2), "key/read-a"));
        assert!(!stands(Mode::Read, "key/read-a"));
        assert!(!stands(Mode::Write, "key2/a"), "another lock's");
    }
}
