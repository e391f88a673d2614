//! The name of everything that dlock keeps in Redis.
//!
//! | on one server | in a cluster | with `quorum=masters` | what |
//! |---|---|---|---|
//! | `dlock:{<key>}` | the same | `dlock:vote:{<tag>}:{<key>}` | the lock |
//! | `…:queue` | `…:queue` | | who waits for it |
//! | `…:readers` | `…:readers` | `…:readers` | who shares it |
//! | | `…:never` | | nothing: see [`Keyspace::never`] |
//! | `dlock:token` | `dlock:token:{<tag>}` | `dlock:token:{<tag>}` | the counter that fencing tokens are drawn from |
//! | `dlock:alive:<process>` | `dlock:alive:{<key>}:<process>` | | the waiters of this process are alive |
//! | `dlock:out:{<key>}:<owner>` | the same | | this owner was taken out of the queue, and may not know it yet |
//! | `dlock:wake:<process>` | `dlock:wake:{<key>}:<process>` | | channel on which they are told of a grant |
//! | | | `dlock:voters` | the tags of the slots that vote |
//! | `dlock:wake:<lock>` | | the same | channel on which a node of several tells that it is free of a lock |
//!
//! What stands in the first braces is all that a cluster looks at to find the
//! slot, so everything that belongs to a lock is in one slot. A tag is a number
//! that leads to a chosen slot. No key makes the name of another one's queue: a
//! lock's name ends in `}`, and none of its other keys' does.

use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, LazyLock};

use crc16::{State, XMODEM};
use redis::{RedisWrite, ToRedisArgs};

use super::redisson::Layout;
use super::values::{Process, owner_of};
use crate::backend::Owner;

/// What stands before the name of a process, or of a lock.
pub(super) const ALIVE: &str = "dlock:alive:";
pub(super) const WAKE: &str = "dlock:wake:";
/// What stands before a lock and one who was taken out of its queue.
pub(super) const OUT: &str = "dlock:out:";

/// What follows the name of a lock in those of its other keys.
pub(super) const QUEUE: &str = ":queue";
pub(super) const READERS: &str = ":readers";

const LOCK_START: &str = "dlock:{";
const VOTE_START: &str = "dlock:vote:{";
const VOTE_MIDDLE: &str = "}:{";
const LOCK_END: &str = "}";
const COUNTER: &str = "dlock:token";

/// The tags of the slots that vote, in a cluster with `quorum=masters`.
pub(super) const VOTERS: &str = "dlock:voters";

/// So many slots a cluster has.
pub(super) const SLOTS: u16 = 16384;

/// Where the names of keys must differ, as not all of them are on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keyspace {
    /// One server has them all.
    Server,
    /// A cluster: each lock has its slot.
    Slots,
    /// One of several votes in a cluster: all locks are in the slot of this tag.
    Vote(Arc<str>),
    /// Redisson's names, on one server or in a cluster.
    Redisson(Layout),
}

/// What is listened to: a lock, by all who wait for it in this process, or by one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Heard {
    pub(super) key: Arc<str>,
    pub(super) owner: Option<Owner>,
}

/// What holds text, which may be of the right type and yet not dlock's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Lock,
    Readers,
}

impl Keyspace {
    /// Whether a cluster has the keys, so that each name leads to a slot.
    pub(super) fn is_in_slots(&self) -> bool {
        match self {
            Self::Server => false,
            Self::Slots | Self::Vote(_) => true,
            Self::Redisson(layout) => layout.in_slots,
        }
    }

    /// Redisson's layout, if it is that.
    pub(super) fn redisson(&self) -> Option<Layout> {
        match self {
            Self::Redisson(layout) => Some(*layout),
            _ => None,
        }
    }

    pub(super) fn lock<'a>(&'a self, key: &'a str) -> Name<'a> {
        self.name(key, "")
    }

    pub(super) fn queue<'a>(&'a self, key: &'a str) -> Name<'a> {
        self.name(key, QUEUE)
    }

    pub(super) fn readers<'a>(&'a self, key: &'a str) -> Name<'a> {
        self.name(key, READERS)
    }

    /// A key that is never there. A cluster refuses a script that is told of it
    /// for as long as the slot is on its way, at either node, and before it has
    /// begun: some of its keys are missing.
    pub(super) fn never<'a>(&'a self, key: &'a str) -> Name<'a> {
        self.name(key, ":never")
    }

    /// All that is kept of a lock, and of which type it is.
    pub(super) fn parts<'a>(&'a self, key: &'a str) -> Vec<(Name<'a>, &'static str)> {
        match self {
            Self::Redisson(layout) => {
                let mut parts = vec![(layout.lock(key), "hash"), (layout.token(key), "string")];
                if layout.recipe.queues() {
                    let places = (layout.ends_of_places(key), "zset");
                    parts.extend([(layout.queue(key), "list"), places]);
                }
                parts
            }
            _ => vec![
                (self.lock(key), "string"),
                (self.queue(key), "list"),
                (self.readers(key), "zset"),
                (self.counter(key), "string"),
            ],
        }
    }

    fn name<'a>(&'a self, key: &'a str, part: &'static str) -> Name<'a> {
        match self {
            Self::Slots if would_end_its_tag(key) => {
                Name([LOCK_START, "{", "", key, LOCK_END, part])
            }
            Self::Server | Self::Slots => Name([LOCK_START, "", "", key, LOCK_END, part]),
            Self::Vote(tag) => Name([VOTE_START, tag, VOTE_MIDDLE, key, LOCK_END, part]),
            Self::Redisson(layout) => layout.lock(key),
        }
    }

    /// What an operator finds of one lock, by its names.
    pub(super) fn stored_as(&self, key: &str) -> Vec<String> {
        let mut parts = self.parts(key);
        if self.redisson().is_none() {
            // The counter is that of many locks.
            parts.pop();
        }
        parts.iter().map(|(name, _)| name.to_string()).collect()
    }

    /// The keys of a lock that a script is told of, the lock first. A cluster is told of
    /// every key: only so does it refuse the script before it has begun while some of
    /// them are on their way to another node. By which keys the waiters' processes
    /// are alive is known to the queue alone; so there is one more that is missing
    /// for certain.
    pub(super) fn script_keys<'a>(
        &'a self,
        key: &'a str,
    ) -> impl Iterator<Item = Name<'a>> + Clone {
        let all = [
            self.lock(key),
            self.queue(key),
            self.readers(key),
            self.never(key),
        ];
        all.into_iter().take(match self {
            Self::Server | Self::Redisson(_) => 1,
            Self::Vote(_) => 3,
            Self::Slots => 4,
        })
    }

    /// The key whose lock has this name.
    pub(super) fn key_of<'n>(&self, lock: &'n str) -> Option<&'n str> {
        let rest = match self {
            Self::Server | Self::Slots => lock.strip_prefix(LOCK_START)?,
            Self::Vote(tag) => lock
                .strip_prefix(VOTE_START)?
                .strip_prefix(&**tag)?
                .strip_prefix(VOTE_MIDDLE)?,
            Self::Redisson(_) => return Some(lock),
        };
        let key = rest.strip_suffix(LOCK_END)?;
        match self {
            Self::Slots if would_end_its_tag(key) => key.strip_prefix('{'),
            _ => Some(key),
        }
    }

    /// A glob pattern for the locks whose key begins with `prefix`, and perhaps
    /// some others.
    pub(super) fn locks_with(&self, prefix: &str) -> String {
        let Name([start, tag, middle, ..]) = self.lock(prefix);
        let mut pattern = format!("{start}{tag}{middle}");
        for character in prefix.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern.push('*');
        if self.redisson().is_none() {
            pattern.push_str(LOCK_END);
        }
        pattern
    }

    /// The counter that the tokens of a lock are drawn from. A counter for each
    /// lock would have to be kept for ever, or its tokens would start again when
    /// it is dropped; so there is one for all locks, or one for all of a slot.
    pub(super) fn counter<'a>(&'a self, key: &'a str) -> Name<'a> {
        match self {
            Self::Server => Name([COUNTER, "", "", "", "", ""]),
            Self::Slots => Name([COUNTER, ":{", tag_of(self.slot(key)), "}", "", ""]),
            Self::Vote(tag) => Name([COUNTER, ":{", tag, "}", "", ""]),
            Self::Redisson(layout) => layout.token(key),
        }
    }

    /// The slot of a lock, if it is in a cluster.
    pub(super) fn slot(&self, key: &str) -> u16 {
        match self {
            Self::Vote(tag) => slot_of(tag.as_bytes()),
            Self::Redisson(layout) => layout.slot(key),
            // Up to where the first brace is closed.
            Self::Slots if would_end_its_tag(key) => {
                let braces = key.bytes().take_while(|byte| *byte == b'{').count();
                slot_of("{".repeat(1 + braces).as_bytes())
            }
            Self::Server | Self::Slots => {
                slot_of(key.split('}').next().unwrap_or_default().as_bytes())
            }
        }
    }

    /// The channel on which a process is told of grants: of this lock, where each has
    /// its slot. In Redisson's layout, all who wait for a lock; or one of them.
    pub(super) fn wake_channel(&self, process: Process, key: &str, by: Option<Owner>) -> String {
        match self {
            // Who waits is told of the lock, and asks.
            Self::Redisson(layout) => layout.wake_channel(key, by),
            _ => self.of_process(WAKE, process, key),
        }
    }

    /// What this owner listens to, who waits for a lock.
    pub(super) fn heard(&self, key: &Arc<str>, owner: Owner) -> Heard {
        let by_owner = self.redisson().is_some_and(|layout| layout.recipe.queues());
        Heard {
            key: Arc::clone(key),
            owner: by_owner.then_some(owner),
        }
    }

    /// Which of those who wait a channel is for, if it is for one, and that of its lock.
    pub(super) fn heard_by<'n>(&self, channel: &'n str) -> (&'n str, Option<Owner>) {
        match self {
            Self::Redisson(layout) => layout.heard_by(channel),
            _ => (channel, None),
        }
    }

    /// The key that says that the waiters of a process are alive: those for this lock,
    /// where each has its slot.
    pub(super) fn alive_key(&self, process: Process, key: &str) -> String {
        self.of_process(ALIVE, process, key)
    }

    fn of_process(&self, prefix: &str, process: Process, key: &str) -> String {
        if *self == Self::Server {
            return format!("{prefix}{process}");
        }
        let lock = self.lock(key).to_string();
        let braces = lock.strip_prefix("dlock:").unwrap_or_default();
        format!("{prefix}{braces}:{process}")
    }

    /// Where a node of several says that it has been given its vote for a lock
    /// back.
    pub(super) fn freed_channel(&self, key: &str) -> String {
        format!("{WAKE}{}", self.lock(key))
    }

    /// The keys whose locks this channel is for.
    pub(super) fn freed_keys<'n>(&self, channel: &'n str) -> impl Iterator<Item = &'n str> {
        let keys = match self {
            Self::Redisson(layout) => layout.freed_keys(channel),
            _ => {
                let lock = channel.strip_prefix(WAKE);
                [lock.and_then(|lock| self.key_of(lock)), None, None]
            }
        };
        keys.into_iter().flatten()
    }

    /// A message on a wake channel: the queue entry that was granted a lock, its
    /// owner, and the key of that lock.
    pub(super) fn parse_wake<'n>(&self, message: &'n str) -> Option<(&'n str, Owner, &'n str)> {
        let (entry, lock) = message.split_once(' ')?;
        Some((entry, owner_of(entry)?, self.key_of(lock)?))
    }
}

/// A cluster takes empty braces for none, and the keys of such a lock would be
/// in different slots. It gets one more brace, and so do those that look as if
/// they had got it.
fn would_end_its_tag(key: &str) -> bool {
    key.trim_start_matches('{').starts_with('}')
}

/// The slot of a tag, or of a name without one.
pub(super) fn slot_of(tag: &[u8]) -> u16 {
    State::<XMODEM>::calculate(tag) % SLOTS
}

/// The smallest number that leads to a slot.
pub(super) fn tag_of(slot: u16) -> &'static str {
    static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut tags = vec![String::new(); SLOTS.into()];
        let mut left = tags.len();
        for number in 0u32.. {
            let tag = number.to_string();
            let place = &mut tags[usize::from(slot_of(tag.as_bytes()))];
            if place.is_empty() {
                *place = tag;
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        tags
    });
    TAGS.get(usize::from(slot)).map_or("", String::as_str)
}

/// The name of a key, in its parts.
#[derive(Clone, Copy)]
pub(super) struct Name<'a>(pub(super) [&'a str; 6]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| f.write_str(part))
    }
}

impl ToRedisArgs for Name<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut name = out.writer_for_next_arg();
        for part in self.0 {
            // It writes to memory.
            let _ = name.write_all(part.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::values::queue_entry;
    use super::*;
    use crate::backend::Mode;
    use crate::stores::asker::Asker;

    const KEYS: [&str; 12] = [
        "a",
        "shop:stock:1",
        "a}",
        "{a",
        "}",
        "}:queue",
        "{}",
        "{{}a",
        "{a}b",
        "dlock:{a}",
        "}:{a",
        "ü",
    ];

    fn spaces() -> [Keyspace; 3] {
        [
            Keyspace::Server,
            Keyspace::Slots,
            Keyspace::Vote(Arc::from("12")),
        ]
    }

    #[test]
    fn names_are_read_back() {
        for space in spaces() {
            for key in KEYS {
                let lock = space.lock(key).to_string();
                assert_eq!(space.key_of(&lock), Some(key));
                assert_eq!(space.lock(key).to_redis_args(), [lock.as_bytes()]);
                assert_eq!(space.key_of(&space.queue(key).to_string()), None);
                assert_eq!(space.key_of(&space.readers(key).to_string()), None);
                let channel = space.freed_channel(key);
                assert_eq!(space.freed_keys(&channel).collect::<Vec<_>>(), [key]);
            }
            let names: std::collections::HashSet<_> =
                KEYS.map(|key| space.lock(key).to_string()).into();
            assert_eq!(names.len(), KEYS.len(), "{names:?}");
        }
    }

    /// What a cluster makes of a name, by its specification.
    fn slot_of_name(name: &str) -> u16 {
        let tag = name.split_once('{').and_then(|(_, rest)| {
            let (tag, _) = rest.split_once('}')?;
            (!tag.is_empty()).then_some(tag)
        });
        slot_of(tag.unwrap_or(name).as_bytes())
    }

    #[test]
    fn all_that_belongs_to_a_lock_is_in_its_slot() {
        let process = Process::unique();
        for space in &spaces()[1..] {
            for key in KEYS {
                let slot = space.slot(key);
                for name in [
                    space.lock(key).to_string(),
                    space.queue(key).to_string(),
                    space.readers(key).to_string(),
                    space.counter(key).to_string(),
                    space.wake_channel(process, key, None),
                    space.alive_key(process, key),
                    space.freed_channel(key),
                ] {
                    assert_eq!(slot_of_name(&name), slot, "{name}");
                }
            }
        }
        // The example of the specification.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(tag_of(slot).as_bytes()), slot);
        }
        // All processes must find the same.
        assert_eq!(tag_of(slot_of(b"0")), "0");
        assert_eq!(tag_of(16383), "39296");
    }

    #[test]
    fn messages_are_read_back() {
        let owner = Owner::unique();
        let asker = Asker {
            owner,
            mode: Mode::Write,
        };
        let entry = queue_entry(asker, 30_000, Process::unique());
        for space in spaces() {
            let message = format!("{entry} {}", space.lock("with a space"));
            let read = space.parse_wake(&message);
            assert_eq!(read, Some((&*entry, owner, "with a space")));
            assert_eq!(space.parse_wake(""), None);
        }
    }

    #[test]
    fn a_prefix_is_taken_literally() {
        for (space, start) in spaces()
            .iter()
            .zip(["dlock:{", "dlock:{", "dlock:vote:{12}:{"])
        {
            let pattern = format!(r"{start}a\*\[b\]\?*}}");
            assert_eq!(space.locks_with("a*[b]?"), pattern);
        }
        assert_eq!(Keyspace::Slots.locks_with("{}"), "dlock:{{{}*}");
    }
}
