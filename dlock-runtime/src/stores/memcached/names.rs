//! The items in the server, and their names.
//!
//! | item | value |
//! |---|---|
//! | `dlock:<key>` | the owner of the lock, then a `;` and since when the owner has the lock; the item expires with the lease. Or `d:` and an owner: the body was to run once, and this owner has done it |
//! | `dlock-server` | a number that no other start of a server has |
//!
//! A key of memcached consists of any bytes except blanks and control characters, at most 250.
//! Keys of dlock have no control characters. A blank is replaced by the byte `FF`, which never
//! occurs in UTF-8: so no key gets longer, and no two keys share a name.

use crate::backend::Owner;
use crate::stores::since;

/// The item that distinguishes one start of the server from another.
pub(super) const SERVER: &str = "dlock-server";

const PREFIX: &[u8] = b"dlock:";
const BLANK: u8 = 0xff;
const MARK: &str = "d:";

/// What memcached accepts, minus the prefix.
pub(super) const MAX_KEY_BYTES: usize = 250 - PREFIX.len();

/// The name of a lock's item.
pub(super) fn lock(key: &str) -> Vec<u8> {
    let blanks = key.bytes().map(|byte| match byte {
        b' ' => BLANK,
        other => other,
    });
    PREFIX.iter().copied().chain(blanks).collect()
}

/// The item name as text for people: a blank as the escape that a shell's `printf` reads, since
/// its byte is no text.
pub(super) fn shown(key: &str) -> String {
    format!("dlock:{}", key.replace(' ', "\\xff"))
}

/// The key of the lock with this item name. `None` for another item.
pub(super) fn key(name: &[u8]) -> Option<String> {
    let blanks = name.strip_prefix(PREFIX)?.iter().map(|byte| match byte {
        &BLANK => b' ',
        other => *other,
    });
    String::from_utf8(blanks.collect()).ok()
}

/// If a value shows that this owner has the lock: since when, if the value says so.
pub(super) fn held_by(value: &[u8], owner: &str) -> Option<Option<u64>> {
    let (found, since) = since::held_by(std::str::from_utf8(value).ok()?)?;
    (found == owner).then_some(since)
}

/// The value of a mark: the body of this owner has been done.
pub(super) fn mark(owner: &str) -> String {
    format!("{MARK}{owner}")
}

/// The owner that has done it, if the value is a mark.
pub(super) fn done_by(value: &[u8]) -> Option<&str> {
    let owner = std::str::from_utf8(value).ok()?.strip_prefix(MARK)?;
    Owner::is_one(owner).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own() {
        for text in ["stock:42", "a key", " ", "ключ/鍵", "%20", "\u{a0}"] {
            let name = lock(text);
            assert!(name.iter().all(|byte| *byte > b' '), "{name:?}");
            assert_eq!(name.len(), text.len() + 6);
            assert_eq!(key(&name).as_deref(), Some(text));
        }
        assert_eq!(key(SERVER.as_bytes()), None);
        assert_eq!(shown("a key/鍵"), "dlock:a\\xffkey/鍵");
    }

    #[test]
    fn since_when_it_is_held_stands_behind_the_owner() {
        for owner in ["0a.1@web-3,4711,shop,1000", "0a.1"] {
            let value = since::held(owner, Some(2500));
            assert_eq!(since::holder(value.as_bytes()), Some((owner, Some(2500))));
            assert_eq!(held_by(value.as_bytes(), owner), Some(Some(2500)));
            assert_eq!(since::holder(owner.as_bytes()), Some((owner, None)));
            assert_eq!(held_by(owner.as_bytes(), owner), Some(None));
        }
        let signed = "0a.1@web-3,4711,shop,1000";
        for other in [
            "",
            "0a.1@web-3,4711,shop,100",
            "0a.1@web-3,4711,shop,10000",
            "0a.1@web-3,4711,shop,1000;",
            "0a.1@web-3,4711,shop,1000;x",
            "0a.2@web-3,4711,shop,1000;2500",
            "d:0a.1@web-3,4711,shop,1000",
        ] {
            assert_eq!(held_by(other.as_bytes(), signed), None, "{other}");
        }
    }

    #[test]
    fn owners_are_told_from_other_values() {
        let owner = Owner::unique().to_string();
        assert_eq!(since::holder(owner.as_bytes()), Some((&*owner, None)));
        let mark = mark(&owner);
        assert_eq!(done_by(mark.as_bytes()), Some(&*owner));
        assert!(since::holder(mark.as_bytes()).is_none() && done_by(owner.as_bytes()).is_none());
        for value in [
            "", ".", "1", "1.", ".1", "hello", "1.2.3", "1.x", ";1", "1;2",
        ] {
            assert_eq!(since::holder(value.as_bytes()), None, "{value}");
        }
    }
}
