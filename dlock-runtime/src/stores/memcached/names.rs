//! What is in the server, and under which names.
//!
//! | item | value |
//! |---|---|
//! | `dlock:<key>` | the owner of the lock; it expires with the lease. Or `d:` and an owner: its body was to run once, and this one has done it |
//! | `dlock-server` | a number that no other start of a server has |
//!
//! A key of memcached is any bytes but blanks and control characters, 250 at
//! most. Keys of dlock have no control characters. A blank stands there as the
//! byte `FF`, which is in no text of UTF-8: so no key gets longer, and no two
//! share a name.

use crate::backend::Owner;

/// The item that tells one start of the server from another.
pub(super) const SERVER: &str = "dlock-server";

const PREFIX: &[u8] = b"dlock:";
const BLANK: u8 = 0xff;
const MARK: &str = "d:";

/// What memcached takes, less the prefix.
pub(super) const MAX_KEY_BYTES: usize = 250 - PREFIX.len();

/// The name of a lock's item.
pub(super) fn lock(key: &str) -> Vec<u8> {
    let blanks = key.bytes().map(|byte| match byte {
        b' ' => BLANK,
        other => other,
    });
    PREFIX.iter().copied().chain(blanks).collect()
}

/// The key of a lock's item, if it is one.
pub(super) fn key(name: &[u8]) -> Option<String> {
    let blanks = name.strip_prefix(PREFIX)?.iter().map(|byte| match byte {
        &BLANK => b' ',
        other => *other,
    });
    String::from_utf8(blanks.collect()).ok()
}

/// What stands there when the body of this owner has been done.
pub(super) fn mark(owner: &str) -> String {
    format!("{MARK}{owner}")
}

/// Who has done it, of a value that says so.
pub(super) fn done_by(value: &[u8]) -> Option<&[u8]> {
    let owner = value.strip_prefix(MARK.as_bytes())?;
    is_owner(owner).then_some(owner)
}

/// Whether a value may be an owner, and not another program's.
pub(super) fn is_owner(value: &[u8]) -> bool {
    let value = std::str::from_utf8(value).unwrap_or_default();
    Owner::is_one(value)
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
    }

    #[test]
    fn owners_are_told_from_other_values() {
        let owner = Owner::unique().to_string();
        assert!(is_owner(owner.as_bytes()));
        let mark = mark(&owner);
        assert_eq!(done_by(mark.as_bytes()), Some(owner.as_bytes()));
        assert!(!is_owner(mark.as_bytes()) && done_by(owner.as_bytes()).is_none());
        for value in ["", ".", "1", "1.", ".1", "hello", "1.2.3", "1.x"] {
            assert!(!is_owner(value.as_bytes()), "{value}");
        }
    }
}
