//! The keys of locks in etcd. They are part of what dlock documents, since operators, roles and
//! `etcdctl lock` need them.
//!
//! ```text
//! dlock/<key>/<place>             a writer's place in the queue for <key>
//! dlock/<key>/read-<place>        a reader's place
//! dlock/<key>/permit-<n>-<place>  the place of a request for one of n permits
//! dlock//<key>                    a mark: its body was to run once, and has been done
//! dlock//<key>/out-<owner>        this owner was taken out of the queue, and may not know it yet
//! dlock///token-floor             the number that is added to every token
//! ```
//!
//! The value of a place is the request that has it at the moment: places are used again
//! (`places.rs`). If a holder had to wait, `;<unix ms>` behind that says since when it holds the
//! lock, by its own clock, once its lease was renewed. The value of a mark is the request that has
//! done it (`marks.rs`). No lock has an empty key, so no place stands where the marks are.
//!
//! `etcdctl lock dlock/<key>` names what it writes in the same way, with the id of its lease as the
//! place. Whatever made it, the key with the lowest create-revision under `dlock/<key>/` holds the
//! lock.

use crate::backend::Mode;

const DEFAULT_PREFIX: &str = "dlock";
const READER: &str = "read-";
const PERMIT: &str = "permit-";
/// Follows the prefix, where the mark of a lock without a key would be.
const FLOOR: &str = "//token-floor";

/// The names of the keys of all locks.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Ends in a slash.
    pub(super) prefix: String,
}

/// The names of the keys of one lock.
#[derive(Clone, Debug)]
pub(super) struct LockName {
    pub(super) queue: String,
    /// The length of the prefix in `queue`, in bytes.
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

    /// The beginning of the places of all locks whose own keys begin with `prefix`.
    pub(super) fn beginning_with(&self, prefix: &str) -> String {
        format!("{}{}", self.prefix, escaped(prefix))
    }

    /// The beginning of the marks of all locks whose own keys begin with `prefix`.
    pub(super) fn marks_beginning_with(&self, prefix: &str) -> String {
        format!("{}/{}", self.prefix, escaped(prefix))
    }

    /// The lock's key and the place, if this key is a place in a queue.
    pub(super) fn read<'k>(&self, key: &'k str) -> Option<(String, &'k str)> {
        let (lock, place) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        if lock.is_empty() {
            return None;
        }
        Some((unescaped(lock)?, place))
    }

    /// The lock's key, if this key is a mark.
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
    /// The name of the lock for the Lock call and `etcdctl lock`.
    pub(super) fn for_lock_service(&self) -> &str {
        self.queue.trim_end_matches('/')
    }

    /// The key that says that the lock's body has been done.
    pub(super) fn mark(&self) -> String {
        let (prefix, key) = self.for_lock_service().split_at(self.prefix);
        format!("{prefix}/{key}")
    }

    /// The key of the floor of all tokens.
    pub(super) fn floor(&self) -> String {
        format!("{}{FLOOR}", &self.queue[..self.prefix])
    }

    /// The key that says that this owner was taken out of the queue.
    pub(super) fn out(&self, owner: &str) -> String {
        format!("{}/out-{owner}", self.mark())
    }

    /// The place that the Lock call takes with this lease.
    pub(super) fn of_lock_service(&self, lease: i64) -> String {
        format!("{}{lease:x}", self.queue)
    }

    /// The beginning of the places of requests with this mode.
    pub(super) fn places(&self, mode: Mode) -> String {
        match mode {
            Mode::Write => self.queue.clone(),
            Mode::Read => format!("{}{READER}", self.queue),
            Mode::Permits(most) => format!("{}{PERMIT}{most}-", self.queue),
        }
    }

    /// The mode of the request whose place has this key.
    pub(super) fn mode_of(&self, key: &str) -> Mode {
        mode_of(key.strip_prefix(&self.queue).unwrap_or(key))
    }

    /// All places in the queue.
    pub(super) fn queue(&self) -> Range {
        range_of(&self.queue)
    }

    /// The places for which a request may have to wait if they were there before it: all of them;
    /// for a reader, all except those of readers.
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

/// The mode of a place. Whatever dlock has not named is a writer's place, as `etcdctl lock` means
/// it.
pub(super) fn mode_of(place: &str) -> Mode {
    if place.starts_with(READER) {
        return Mode::Read;
    }
    let permit = place.strip_prefix(PERMIT);
    let most = permit.and_then(|permit| permit.split_once('-')?.0.parse().ok());
    most.map_or(Mode::Write, Mode::Permits)
}

/// All keys that begin with `prefix`, which is text: none of its bytes is the last that there is.
pub(super) fn range_of(prefix: &str) -> Range {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (prefix.as_bytes().to_vec(), end)
}

/// A slash ends the lock's key: otherwise the places of `a/b` would stand in the queue of `a`.
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
