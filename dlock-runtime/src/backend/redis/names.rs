//! The name of everything that dlock keeps in Redis.
//!
//! | name | what |
//! |---|---|
//! | `dlock:{<key>}` | the lock |
//! | `dlock:{<key>}:queue` | who waits for it |
//! | `dlock:{<key>}:readers` | who shares it |
//! | `dlock:token` | the counter that every fencing token is drawn from |
//! | `dlock:alive:<process>` | the waiters of this process are alive |
//! | `dlock:wake:<process>` | channel on which they are told of a grant |
//! | `dlock:wake:dlock:{<key>}` | channel on which a node of several tells that it is free of a lock |
//!
//! The three keys of a lock have one hash tag, so that a cluster keeps them on
//! one node. No key makes the name of another one's queue: a lock's name ends
//! in `}`, and nothing else does.

use std::fmt;
use std::io::Write as _;

use redis::{RedisWrite, ToRedisArgs};

use crate::backend::{Mode, Owner};

/// The counter of all locks. One counter for each would have to be kept for
/// ever, or its tokens would start again when it is dropped.
pub(super) const TOKEN: &str = "dlock:token";

// The scripts need these as literals.
macro_rules! alive_prefix {
    () => {
        "dlock:alive:"
    };
}
macro_rules! wake_prefix {
    () => {
        "dlock:wake:"
    };
}
macro_rules! queue_suffix {
    () => {
        ":queue"
    };
}
macro_rules! readers_suffix {
    () => {
        ":readers"
    };
}
pub(super) use {alive_prefix, queue_suffix, readers_suffix, wake_prefix};

const LOCK_START: &str = "dlock:{";
const LOCK_END: &str = "}";

/// One of the three keys of a lock.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    key: &'a str,
    part: &'static str,
}

impl<'a> Name<'a> {
    pub(super) fn lock(key: &'a str) -> Self {
        Self { key, part: "" }
    }

    pub(super) fn queue(key: &'a str) -> Self {
        Self {
            key,
            part: queue_suffix!(),
        }
    }

    pub(super) fn readers(key: &'a str) -> Self {
        Self {
            key,
            part: readers_suffix!(),
        }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LOCK_START}{}{LOCK_END}{}", self.key, self.part)
    }
}

impl ToRedisArgs for Name<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut name = out.writer_for_next_arg();
        for part in [LOCK_START, self.key, LOCK_END, self.part] {
            // It writes to memory.
            let _ = name.write_all(part.as_bytes());
        }
    }
}

/// The key whose lock has this name.
pub(super) fn key_of(lock: &str) -> Option<&str> {
    lock.strip_prefix(LOCK_START)?.strip_suffix(LOCK_END)
}

/// A glob pattern for the locks whose key begins with `prefix`.
pub(super) fn locks_with(prefix: &str) -> String {
    let mut pattern = String::from(LOCK_START);
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern.push_str(LOCK_END);
    pattern
}

/// This backend among all the others that share the server: names the channel
/// on which its waiters are told, and the key that says they are alive. Two
/// managers of one process have one each.
#[derive(Clone, Copy)]
pub(super) struct Process(Owner);

impl Process {
    pub(super) fn unique() -> Self {
        Self(Owner::unique())
    }

    pub(super) fn alive_key(self) -> String {
        format!(concat!(alive_prefix!(), "{}"), self)
    }

    pub(super) fn wake_channel(self) -> String {
        format!(concat!(wake_prefix!(), "{}"), self)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a node of several says that it has been given its vote for a lock back.
pub(super) fn freed_channel(key: &str) -> String {
    format!(concat!(wake_prefix!(), "{}"), Name::lock(key))
}

/// The key whose lock this channel is for.
pub(super) fn freed_key(channel: &str) -> Option<&str> {
    key_of(channel.strip_prefix(wake_prefix!())?)
}

fn letter(mode: Mode) -> &'static str {
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
        let (owner, waited) = match owner.strip_suffix('+') {
            Some(owner) => (owner, true),
            None => (owner, false),
        };
        Some(Self {
            mode: parse_mode(mode)?,
            owner: parse_owner(owner)?,
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
        let Owner { process, sequence } = self.owner;
        let digits = 16 - (sequence | 1).leading_zeros() as usize / 4;
        let waited = if self.waited { "+" } else { "" };
        let mut value = [0; 36];
        let mut free = value.as_mut_slice();
        // There is room for the longest.
        for part in [
            letter(self.mode).as_bytes(),
            b":",
            &hex(process),
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

/// A message on a wake channel: the queue entry that was granted a lock, and
/// the name of that lock.
pub(super) fn parse_wake(message: &str) -> Option<(Owner, &str)> {
    let (entry, lock) = message.split_once(' ')?;
    let owner = entry.split(':').nth(1)?;
    Some((parse_owner(owner)?, key_of(lock)?))
}

/// Writes a [`fmt::Display`] as an argument, without a string in between.
pub(super) struct Shown<T>(pub(super) T);

impl<T: fmt::Display> ToRedisArgs for Shown<T> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(&self.0);
    }
}

pub(super) fn mode_arg(mode: Mode) -> &'static str {
    letter(mode)
}

fn parse_mode(mode: &str) -> Option<Mode> {
    match mode {
        "r" => Some(Mode::Read),
        "w" => Some(Mode::Write),
        _ => None,
    }
}

fn parse_owner(owner: &str) -> Option<Owner> {
    let (process, sequence) = owner.split_once('.')?;
    Some(Owner {
        process: u64::from_str_radix(process, 16).ok()?,
        sequence: u64::from_str_radix(sequence, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for key in ["a", "shop:stock:1", "a}", "{a", "}:queue", "dlock:{a}", "ü"] {
            let lock = Name::lock(key).to_string();
            assert_eq!(key_of(&lock), Some(key));
            assert_eq!(Name::lock(key).to_redis_args(), [lock.as_bytes()]);
            assert_eq!(key_of(&Name::queue(key).to_string()), None);
            assert_eq!(key_of(&Name::readers(key).to_string()), None);
        }
    }

    #[test]
    fn values_and_messages_are_read_back() {
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
            let value = LockValue::writer(Owner {
                process: 0xab,
                sequence,
            });
            assert_eq!(value.to_redis_args(), [value.to_string().as_bytes()]);
        }
        assert_eq!(LockValue::parse(b"w:somebody"), None);

        let entry = QueueEntry {
            mode: Mode::Write,
            owner,
            ttl_ms: 30_000,
            process: Process::unique(),
        };
        let message = format!("{entry} {}", Name::lock("with a space"));
        assert_eq!(parse_wake(&message), Some((owner, "with a space")));
        assert_eq!(parse_wake(""), None);
    }

    #[test]
    fn a_channel_names_its_key() {
        for key in ["a", "a}", "dlock:wake:", "ü b"] {
            assert_eq!(freed_key(&freed_channel(key)), Some(key));
        }
        assert_eq!(freed_key(&Process::unique().wake_channel()), None);
    }

    #[test]
    fn a_prefix_is_taken_literally() {
        assert_eq!(locks_with("a*[b]?"), r"dlock:{a\*\[b\]\?*}");
    }
}
