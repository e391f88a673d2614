//! Owners as they are written in Redisson's hashes: `<uuid>:<number>`, which stands for a service
//! and one of its threads, with `:write` for a writer of a read/write lock.
//!
//! Each request of dlock has a UUID of its own, with the name of this crate at its end (version 8
//! of RFC 9562), so that a person who looks at a hash sees which program wrote it.

use std::fmt;

use redis::{RedisWrite, ToRedisArgs};

use crate::backend::Owner;

/// `dlock`, in ASCII.
const MARK: &str = "00646c6f636b";
pub(super) const WRITE: &str = ":write";

/// An owner of dlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(in super::super) owner: Owner,
    /// Whether it is the writer of a read/write lock.
    pub(super) writes: bool,
}

impl Field {
    pub(in super::super) fn of_owner(owner: Owner) -> Self {
        Self {
            owner,
            writes: false,
        }
    }

    /// Reads a field. `None`: it is not one of dlock's.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let writer = text.strip_suffix(WRITE);
        let (uuid, sequence) = writer.unwrap_or(text).split_once(':')?;
        let parts: Vec<_> = uuid.split('-').collect();
        let [first, second, third, fourth, MARK] = parts[..] else {
            return None;
        };
        let (third, fourth) = (third.strip_prefix('8')?, fourth.strip_prefix('8')?);
        let random = format!("{first}{second}{third}{}", fourth.strip_suffix("00")?);
        let owner = Owner::read(&format!("{random}.{:x}", sequence.parse::<u64>().ok()?))?;
        let field = Self {
            owner,
            writes: writer.is_some(),
        };
        (field.to_string() == text).then_some(field)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let random = self.owner.random();
        write!(
            f,
            "{:08x}-{:04x}-8{:03x}-8{:x}00-{MARK}:{}",
            random >> 32,
            random >> 16 & 0xffff,
            random >> 4 & 0xfff,
            random & 0xf,
            self.owner.sequence()
        )?;
        f.write_str(if self.writes { WRITE } else { "" })
    }
}

impl ToRedisArgs for Field {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

/// Whether a hash may have such a field, of dlock or of Redisson.
pub(super) fn is_field(text: &str) -> bool {
    let text = text.strip_suffix(WRITE).unwrap_or(text);
    text.rsplit_once(':').is_some_and(|(service, thread)| {
        !service.is_empty()
            && !thread.is_empty()
            && thread.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_back() {
        for writes in [false, true] {
            for owner in [
                Owner::unique(),
                Owner::read("0123456789abcdef.10").expect("an owner"),
                Owner::read(&format!("{:016x}.ffffffffffffffff", 0)).expect("an owner"),
            ] {
                let field = Field { owner, writes };
                let text = field.to_string();
                assert_eq!(Field::read(&text), Some(field), "{text}");
                assert!(is_field(&text), "{text}");
                assert_eq!(text.split(':').next().map(str::len), Some(36), "{text}");
            }
        }
        let known = Owner::read("0123456789abcdef.10").expect("an owner");
        let known = Field {
            owner: known,
            writes: true,
        };
        let text = "01234567-89ab-8cde-8f00-00646c6f636b:16:write";
        assert_eq!(known.to_string(), text);
    }

    #[test]
    fn those_of_others_are_not_ours() {
        let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:31";
        assert!(is_field(java) && is_field(&format!("{java}:write")));
        for text in [
            java,
            "",
            ":",
            "a:1",
            "01234567-89ab-8cde-8f00-00646c6f636b:x",
        ] {
            assert_eq!(Field::read(text), None, "{text}");
        }
        for text in ["", ":", "a", ":1", "a:", "a:x", "mode", "1"] {
            assert!(!is_field(text), "{text}");
        }
    }
}
