//! What dlock's keys hold in Redis, as text.

use std::fmt;
use std::io::Write as _;

use redis::{RedisWrite, ToRedisArgs};

use crate::backend::{Mode, Owner};

// What stands behind the owner of a grant that its waiter has not answered yet; the
// scripts need it as a literal.
macro_rules! unclaimed {
    () => {
        "?"
    };
}
pub(super) use unclaimed;

/// This backend among all the others that share the server: names the channel
/// on which its waiters are told, and the key that says they are alive. Two
/// managers of one process have one each.
#[derive(Clone, Copy)]
pub(super) struct Process(Owner);

impl Process {
    pub(super) fn unique() -> Self {
        Self(Owner::unique())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(super) fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "r",
        Mode::Write => "w",
    }
}

/// What a lock key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockValue {
    pub(super) mode: Mode,
    /// The writer; or the reader who was let in last.
    pub(super) owner: Owner,
    /// The holder is a writer, and somebody may wait.
    pub(super) waited: bool,
}

impl LockValue {
    /// The lock of a writer for which nobody waits.
    pub(super) fn writer(owner: Owner) -> Self {
        Self {
            mode: Mode::Write,
            owner,
            waited: false,
        }
    }

    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let (mode, owner) = std::str::from_utf8(value).ok()?.split_once(':')?;
        let marked = owner
            .strip_suffix('+')
            .or_else(|| owner.strip_suffix(unclaimed!()));
        let (owner, waited) = match marked {
            Some(owner) => (owner, true),
            None => (owner, false),
        };
        Some(Self {
            mode: parse_mode(mode)?,
            owner: Owner::read(owner)?,
            waited,
        })
    }
}

impl fmt::Display for LockValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = if self.waited { "+" } else { "" };
        write!(f, "{}:{}{waited}", letter(self.mode), self.owner)
    }
}

/// The same as shown, but not by way of a formatter: each lock that is taken
/// and given back is written twice, and for a lone caller it tells.
impl ToRedisArgs for LockValue {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let (random, sequence) = (self.owner.random(), self.owner.sequence());
        let digits = 16 - (sequence | 1).leading_zeros() as usize / 4;
        let waited = if self.waited { "+" } else { "" };
        let mut value = [0; 36];
        let mut free = value.as_mut_slice();
        // There is room for the longest.
        for part in [
            letter(self.mode).as_bytes(),
            b":",
            &hex(random),
            b".",
            &hex(sequence)[16 - digits..],
            waited.as_bytes(),
        ] {
            let _ = free.write_all(part);
        }
        let left = free.len();
        out.write_arg(&value[..value.len() - left]);
    }
}

fn hex(number: u64) -> [u8; 16] {
    std::array::from_fn(|place| {
        let digit = (number >> (60 - 4 * place)) & 0xf;
        b"0123456789abcdef"[digit as usize]
    })
}

/// A place in a queue. All of it is needed to leave the queue again.
#[derive(Clone, Copy)]
pub(super) struct QueueEntry {
    pub(super) mode: Mode,
    pub(super) owner: Owner,
    pub(super) ttl_ms: u64,
    pub(super) process: Process,
}

impl fmt::Display for QueueEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            owner,
            ttl_ms,
            process,
        } = self;
        write!(f, "{}:{owner}:{ttl_ms}:{process}", letter(*mode))
    }
}

/// Writes a [`fmt::Display`] as an argument, without a string in between.
pub(super) struct Shown<T>(pub(super) T);

impl<T: fmt::Display> ToRedisArgs for Shown<T> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(&self.0);
    }
}

/// Whose place an entry is.
pub(super) fn owner_of(entry: &str) -> Option<Owner> {
    Owner::read(entry.split(':').nth(1)?)
}

fn parse_mode(mode: &str) -> Option<Mode> {
    match mode {
        "r" => Some(Mode::Read),
        "w" => Some(Mode::Write),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back() {
        let owner = Owner::unique();
        for value in [
            LockValue::writer(owner),
            LockValue {
                waited: true,
                ..LockValue::writer(owner)
            },
            LockValue {
                mode: Mode::Read,
                ..LockValue::writer(owner)
            },
        ] {
            assert_eq!(LockValue::parse(value.to_string().as_bytes()), Some(value));
        }
        for sequence in [0, 1, 15, 16, 255, 256, u64::MAX] {
            let owner = Owner::read(&format!("{:016x}.{sequence:x}", 0xab)).expect("an owner");
            let value = LockValue::writer(owner);
            assert_eq!(value.to_redis_args(), [value.to_string().as_bytes()]);
        }
        let unclaimed = format!("w:{owner}?");
        let waited = LockValue {
            waited: true,
            ..LockValue::writer(owner)
        };
        assert_eq!(LockValue::parse(unclaimed.as_bytes()), Some(waited));
        assert_eq!(LockValue::parse(b"w:somebody"), None);
    }
}
