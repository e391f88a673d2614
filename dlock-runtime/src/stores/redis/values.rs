//! The values of dlock's keys in Redis, as text.

use std::fmt;
use std::io::Write;

use redis::{RedisWrite, ToRedisArgs};

use crate::backend::origin::Signature;
use crate::backend::{Mode, Owner};
use crate::stores::stored_owner::StoredOwner;

/// Follows the owner of a grant that its waiter has not claimed yet.
pub(super) const UNCLAIMED: char = '?';

/// Identifies this backend among all that share the server: it names the channel on which its
/// waiters are notified, and the key that shows that they are alive. Two managers of one process
/// have different ones.
pub(super) type Process = Owner;

/// Permits are stored among the readers.
pub(super) fn letter(mode: Mode) -> &'static str {
    match mode.is_shared() {
        true => "r",
        false => "w",
    }
}

/// The value of a lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockValue {
    pub(super) mode: Mode,
    /// The writer; or the reader that the queue let in last.
    pub(super) owner: Owner,
    /// Since when a writer that the queue has let in holds the lock, in unix ms.
    pub(super) since: Option<u64>,
    /// The `+` or `?` behind a writer: somebody may wait, or the grant has a token key. The release
    /// has to look.
    pub(super) waited: bool,
}

impl LockValue {
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let (mode, owner) = std::str::from_utf8(value).ok()?.split_once(':')?;
        let marked = owner.strip_suffix(['+', UNCLAIMED]);
        let owner = marked.unwrap_or(owner);
        let (owner, since) = match owner.split_once(';') {
            Some((owner, since)) => (owner, Some(since.parse().ok()?)),
            None => (owner, None),
        };
        let StoredOwner { owner, mode } = match mode {
            "r" => StoredOwner::read(owner)?,
            "w" => StoredOwner {
                owner: Owner::read(owner)?,
                mode: Mode::Write,
            },
            _ => return None,
        };
        Some(Self {
            mode,
            owner,
            since,
            waited: marked.is_some(),
        })
    }
}

/// The value of a writer's lock that nobody waits for.
///
/// It is not written by a formatter: each lock that is taken and released writes it twice, and
/// for a single caller that is noticeable.
pub(super) struct WriterValue(pub(super) Owner);

impl ToRedisArgs for WriterValue {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        const DIGITS: usize = 16;
        /// The digits of the largest `u64`.
        const MOST_DIGITS: usize = 20;
        let hex = |number: u64| -> [u8; DIGITS] {
            std::array::from_fn(|place| {
                let digit = (number >> (4 * (DIGITS - 1 - place))) & 0xf;
                b"0123456789abcdef"[digit as usize]
            })
        };
        let (random, sequence) = (self.0.random(), self.0.sequence());
        let mut value = out.writer_for_next_arg();
        // Cannot fail: it is written to memory.
        let mut push = |part: &[u8]| drop(value.write_all(part));
        push(b"w:");
        push(&hex(random));
        push(b".");
        // Without the zeros in front.
        push(&hex(sequence)[(sequence | 1).leading_zeros() as usize / 4..]);
        if let Some(Signature { origin, asked_ms }) = self.0.signature() {
            let (mut digits, mut first, mut rest) = ([0; MOST_DIGITS], MOST_DIGITS, asked_ms);
            loop {
                first -= 1;
                digits[first] = b'0' + (rest % 10) as u8;
                rest /= 10;
                if rest == 0 {
                    break;
                }
            }
            push(b"@");
            push(origin.text().as_bytes());
            push(b",");
            push(&digits[first..]);
        }
    }
}

/// The owner whose body has been done, if the value is a mark.
pub(super) fn done_by(value: &[u8]) -> Option<&str> {
    let owner = std::str::from_utf8(value).ok()?.strip_prefix("d:")?;
    Owner::read(owner).map(|_| owner)
}

/// Writes a [`fmt::Display`] as an argument, without a string in between.
pub(super) struct Shown<T>(pub(super) T);

impl<T: fmt::Display> ToRedisArgs for Shown<T> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(&self.0);
    }
}

/// A place in a queue. The whole text is needed to leave the queue again.
pub(super) fn queue_entry(stored: StoredOwner, ttl_ms: u64, process: Process) -> String {
    format!("{}:{stored}:{ttl_ms}:{process}", letter(stored.mode))
}

/// The owner of a queue entry.
pub(super) fn owner_of(entry: &str) -> Option<Owner> {
    StoredOwner::read(entry.split(':').nth(1)?).map(|stored| stored.owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::origin::{LONGEST_NAME, Origin};

    #[test]
    fn values_are_read_back() {
        let owner = Owner::unique();
        for (text, mode, waited) in [
            (format!("w:{owner}"), Mode::Write, false),
            (format!("w:{owner}+"), Mode::Write, true),
            (format!("w:{owner}?"), Mode::Write, true),
            (format!("r:{owner}"), Mode::Read, false),
            (format!("r:{owner}/7"), Mode::Permits(7), false),
        ] {
            let value = LockValue {
                mode,
                owner,
                since: None,
                waited,
            };
            assert_eq!(LockValue::parse(text.as_bytes()), Some(value));
        }
        let since = LockValue::parse(b"w:1.1;1767225600000+")
            .expect("a value")
            .since;
        assert_eq!(since, Some(1_767_225_600_000));
        for nonsense in [
            "",
            "w:",
            "w:1.1;",
            "w:1.1;x+",
            "w:somebody",
            "x:1.1",
            "1.1",
            "w:1.1/7",
            "r:1.1/",
            "r:1.1/x",
        ] {
            assert_eq!(LockValue::parse(nonsense.as_bytes()), None);
        }
    }

    #[test]
    fn a_writer_is_written_as_it_is_shown() {
        for sequence in [0, 1, 15, 16, 255, 256, u64::MAX] {
            let owner = Owner::read(&format!("{:016x}.{sequence:x}", 0xab)).expect("an owner");
            let shown = format!("w:{owner}");
            assert_eq!(WriterValue(owner).to_redis_args(), [shown.as_bytes()]);
        }
        let longest = "a".repeat(LONGEST_NAME);
        for label in ["shop", &longest] {
            let owner = Owner::draw(Origin::here(label)).expect("an owner");
            let shown = format!("w:{owner}");
            assert_eq!(WriterValue(owner).to_redis_args(), [shown.as_bytes()]);
        }
    }
}
