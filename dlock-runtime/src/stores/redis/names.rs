//! The names of all keys and channels that dlock uses in Redis.
//!
//! | on one server | in a cluster | with `quorum=masters` | what it is |
//! |---|---|---|---|
//! | `dlock:{<key>}` | the same | `dlock:vote:{<tag>}:{<key>}` | the lock |
//! | `…:queue` | `…:queue` | | the waiters of the lock |
//! | `…:readers` | `…:readers` | `…:readers` | the holders that share the lock |
//! | | `…:never` | | never exists: see [`Keyspace::never`] |
//! | `dlock:token` | `dlock:token:{<tag>}` | `dlock:token:{<tag>}` | the counter that fencing tokens are drawn from |
//! | `dlock:alive:<process>` | `dlock:alive:{<key>}:<process>` | | exists while the waiters of this process are alive |
//! | `dlock:out:{<key>}:<owner>` | the same | | this owner was taken out of the queue, and may not know it yet |
//! | `dlock:since:{<key>}:<numbers>` | the same | `dlock:since:vote:{<tag>}:{<key>}:<numbers>` | since when the owner with these two numbers shares the lock, if it had to wait; at a voter, once it was renewed |
//! | `dlock:fencing:{<key>}:<numbers>` | the same | `dlock:fencing:vote:{<tag>}:{<key>}:<numbers>` | the first token of the grant of this owner, once it was renewed |
//! | `dlock:wake:<process>` | `dlock:wake:{<key>}:<process>` | | channel on which these waiters are told of a grant |
//! | | | `dlock:voters` | the tags of the slots that vote |
//! | `dlock:wake:<lock>` | | the same | channel on which a voter reports that its vote for a lock is free again |
//!
//! A cluster finds the slot by the text in the first braces alone, so all keys of a lock are in
//! one slot. A tag is a number that leads to a chosen slot. No key can produce the name of
//! another key's queue: the name of a lock ends in `}`, and the names of its other keys do not.

use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, LazyLock};

use crc16::{State, XMODEM};
use redis::{RedisWrite, ToRedisArgs};

use super::redisson::Layout;
use super::values::{Process, owner_of};
use crate::backend::Owner;

/// Prefixes of the names that end in a process or a lock.
pub(super) const ALIVE: &str = "dlock:alive:";
pub(super) const WAKE: &str = "dlock:wake:";
/// Prefix of the note that an owner was taken out of a lock's queue.
pub(super) const OUT: &str = "dlock:out:";
/// Prefix of the note since when an owner shares a lock.
pub(super) const SINCE: &str = "dlock:since:";
/// Prefix of the note which fencing token the grant of a holder has.
pub(super) const FENCING: &str = "dlock:fencing:";

/// Suffixes of the lock's name in the names of its other keys.
pub(super) const QUEUE: &str = ":queue";
pub(super) const READERS: &str = ":readers";

const LOCK_START: &str = "dlock:{";
const VOTE_START: &str = "dlock:vote:{";
const VOTE_MIDDLE: &str = "}:{";
const LOCK_END: &str = "}";
const COUNTER: &str = "dlock:token";

/// The tags of the slots that vote, in a cluster with `quorum=masters`.
pub(super) const VOTERS: &str = "dlock:voters";

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16384;

/// How keys are named, depending on how they are distributed over servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keyspace {
    /// One server has all keys.
    Server,
    /// A cluster: each lock has its slot.
    Slots,
    /// A voter in a cluster: all its locks are in the slot of this tag.
    Vote(Arc<str>),
    /// Redisson's names, on one server or in a cluster.
    Redisson(Layout),
}

/// What is listened to: a lock, for all its waiters in this process or for one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Topic {
    pub(super) key: Arc<str>,
    pub(super) owner: Option<Owner>,
}

/// A key with text in it, which may have the right type and still not be dlock's.
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

    /// Redisson's layout, if the keys have that.
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

    /// A key that never exists. While the slot is being moved, a cluster, at either node, refuses
    /// a script with this key before it begins, since one of its keys is missing.
    pub(super) fn never<'a>(&'a self, key: &'a str) -> Name<'a> {
        self.name(key, ":never")
    }

    /// All keys of a lock, with their types.
    pub(super) fn parts<'a>(&'a self, key: &'a str) -> Vec<(Name<'a>, &'static str)> {
        match self {
            Self::Redisson(layout) => {
                let mut parts = vec![(layout.lock(key), "hash")];
                if layout.recipe.has_tokens() {
                    parts.push((layout.token(key), "string"));
                }
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

    /// The names of the keys that an operator finds for one lock.
    pub(super) fn stored_as(&self, key: &str) -> Vec<String> {
        let mut parts = self.parts(key);
        if self.redisson().is_none() {
            // The counter serves many locks.
            parts.pop();
        }
        parts.iter().map(|(name, _)| name.to_string()).collect()
    }

    /// The keys of a lock that are passed to a script, the lock first. In a cluster every key is
    /// passed: only then does the cluster refuse the script, before it begins, while some of them
    /// are being moved to another node. The keys that say whether the waiters' processes are
    /// alive are known only from the queue; therefore one more key is passed that certainly does
    /// not exist.
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

    /// A glob pattern for the locks whose keys begin with `prefix`. It may match some others too.
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

    /// The counter from which the tokens of a lock are drawn. There is one for all locks, or for
    /// all locks of a slot: a counter for each lock would have to be kept forever, or its tokens
    /// would start again after it is deleted.
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
            // The tag ends where the first brace is closed.
            Self::Slots if would_end_its_tag(key) => {
                let braces = key.bytes().take_while(|byte| *byte == b'{').count();
                slot_of("{".repeat(1 + braces).as_bytes())
            }
            Self::Server | Self::Slots => {
                slot_of(key.split('}').next().unwrap_or_default().as_bytes())
            }
        }
    }

    /// The channel on which a process is told of grants; in a cluster, of grants of this lock. In
    /// Redisson's layout, the channel of all waiters of a lock, or of one of them.
    pub(super) fn wake_channel(&self, process: Process, key: &str, by: Option<Owner>) -> String {
        match self {
            // The message only names the lock, and the waiters ask.
            Self::Redisson(layout) => layout.wake_channel(key, by),
            _ => self.of_process(WAKE, process, key),
        }
    }

    /// What an owner listens to while it waits for a lock.
    pub(super) fn topic(&self, key: &Arc<str>, owner: Owner) -> Topic {
        let by_owner = self.redisson().is_some_and(|layout| layout.recipe.queues());
        Topic {
            key: Arc::clone(key),
            owner: by_owner.then_some(owner),
        }
    }

    /// The lock's channel for this channel, and the waiter, if the channel is for one waiter.
    pub(super) fn split_channel<'n>(&self, channel: &'n str) -> (&'n str, Option<Owner>) {
        match self {
            Self::Redisson(layout) => layout.split_channel(channel),
            _ => (channel, None),
        }
    }

    /// The key that shows that the waiters of a process are alive; in a cluster, its waiters for
    /// this lock.
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

    /// The channel on which a voter reports that its vote for a lock was given back.
    pub(super) fn freed_channel(&self, key: &str) -> String {
        format!("{WAKE}{}", self.lock(key))
    }

    /// The keys of the locks to which a channel belongs.
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

    /// Parses a message on a wake channel: the queue entry that was granted the lock, its owner,
    /// and the key of the lock.
    pub(super) fn parse_wake<'n>(&self, message: &'n str) -> Option<(&'n str, Owner, &'n str)> {
        let (entry, lock) = message.split_once(' ')?;
        Some((entry, owner_of(entry)?, self.key_of(lock)?))
    }
}

/// Whether the name of this lock would have empty braces. A cluster ignores empty braces, and the
/// keys of such a lock would be in different slots. Its name gets one more brace, and so do the
/// names that look as if they had got one.
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
            // Cannot fail: it writes to memory.
            let _ = name.write_all(part.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::redisson::Recipe;
    use super::super::values::queue_entry;
    use super::*;
    use crate::backend::Mode;
    use crate::stores::stored_owner::StoredOwner;

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

    #[test]
    fn what_is_shown_of_a_lock_is_its_own() {
        let of_redisson = |recipe| {
            let layout = Layout {
                recipe,
                in_slots: false,
            };
            Keyspace::Redisson(layout).stored_as("a")
        };
        let token = "redisson_lock_token:{a}";
        assert_eq!(of_redisson(Recipe::Lock), ["a"]);
        assert_eq!(of_redisson(Recipe::ReadWrite), ["a"]);
        assert_eq!(of_redisson(Recipe::Fenced), ["a", token]);
        let (queue, places) = ("redisson_lock_queue:{a}", "redisson_lock_timeout:{a}");
        let fair = Recipe::Fair(Duration::from_secs(300));
        assert_eq!(of_redisson(fair), ["a", queue, places]);
        let own = ["dlock:{a}", "dlock:{a}:queue", "dlock:{a}:readers"];
        assert_eq!(Keyspace::Server.stored_as("a"), own);
    }

    /// The slot of a name, by the specification of Redis Cluster.
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
        // All processes must compute the same tags.
        assert_eq!(tag_of(slot_of(b"0")), "0");
        assert_eq!(tag_of(16383), "39296");
    }

    #[test]
    fn messages_are_read_back() {
        let owner = Owner::unique();
        let stored = StoredOwner {
            owner,
            mode: Mode::Write,
        };
        let entry = queue_entry(stored, 30_000, Process::unique());
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
