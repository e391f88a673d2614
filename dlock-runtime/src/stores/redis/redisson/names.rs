//! The names of Redisson's keys and channels.
//!
//! | name | what |
//! |---|---|
//! | `<key>` | the lock |
//! | `redisson_lock_token:{<key>}` | the last token of a fenced lock |
//! | `{<key>}:<owner>:rwlock_timeout:<n>` | when the lease of a reader ends |
//! | `redisson_lock__channel:{<key>}` | channel for messages that a lock is free |
//! | `redisson_rwlock:{<key>}` | the same for a read/write lock |
//! | `redisson_lock__channel:{<key>}:<owner>` | channel for messages to the first waiter of a fair lock that is free |
//! | `redisson_lock_queue:{<key>}` | the waiters of a fair lock |
//! | `redisson_lock_timeout:{<key>}` | how long their places last |
//! | `{<key>}:never` | never exists: see [`Layout::undivided`] |
//!
//! A key that contains a brace is used in the other names as it is, without braces around it. In
//! a cluster, the braces of some keys lead the other names to another slot than the lock's, and
//! Redisson's scripts fail there: no Java service can use such a lock. To make dlock work with
//! such a key, its `{<key>}` is `{<tag>}:<key>`, with the tag that leads to the lock's slot.

use super::super::names::{Name, slot_of, tag_of};
use super::field::Field;
use super::{Layout, Recipe};
use crate::backend::Owner;

const TOKEN: &str = "redisson_lock_token";
const QUEUE: &str = "redisson_lock_queue";
const TIMEOUTS: &str = "redisson_lock_timeout";
const LOCK_CHANNEL: &str = "redisson_lock__channel";
const READ_WRITE_CHANNEL: &str = "redisson_rwlock";

impl Layout {
    pub(in super::super) fn lock(self, key: &str) -> Name<'_> {
        Name(["", "", "", key, "", ""])
    }

    pub(in super::super) fn token(self, key: &str) -> Name<'_> {
        self.prefixed(TOKEN, key)
    }

    pub(in super::super) fn queue(self, key: &str) -> Name<'_> {
        self.prefixed(QUEUE, key)
    }

    /// The key with the times at which the places in the queue end.
    pub(in super::super) fn ends_of_places(self, key: &str) -> Name<'_> {
        self.prefixed(TIMEOUTS, key)
    }

    /// All keys of a fair lock.
    pub(super) fn of_fair(self, key: &str) -> [Name<'_>; 3] {
        [self.lock(key), self.queue(key), self.ends_of_places(key)]
    }

    /// The channel for messages that a lock is free: for all waiters, or for one of them.
    pub(in super::super) fn wake_channel(self, key: &str, owner: Option<Owner>) -> String {
        let channel = self.channel(key);
        match owner {
            Some(owner) => format!("{channel}:{}", Field::of_owner(owner)),
            None => channel.to_string(),
        }
    }

    /// The waiter that such a channel is for, if it is for one, and the part of its name before
    /// the waiter.
    pub(in super::super) fn split_channel(self, channel: &str) -> (&str, Option<Owner>) {
        let heard = || {
            let (rest, _) = channel.rsplit_once(':')?;
            let (rest, _) = rest.rsplit_once(':')?;
            let field = Field::read(&channel[rest.len() + 1..])?;
            Some((rest, field.owner))
        };
        match self.recipe {
            Recipe::Fair(_) => heard().map_or((channel, None), |(rest, owner)| (rest, Some(owner))),
            Recipe::Lock | Recipe::ReadWrite | Recipe::Fenced => (channel, None),
        }
    }

    /// The common beginning of a lock's channel names.
    pub(in super::super) fn channel(self, key: &str) -> Name<'_> {
        self.prefixed(self.channels(), key)
    }

    fn channels(self) -> &'static str {
        match self.recipe {
            Recipe::Lock | Recipe::Fenced | Recipe::Fair(_) => LOCK_CHANNEL,
            Recipe::ReadWrite => READ_WRITE_CHANNEL,
        }
    }

    /// The common beginning of the names of the readers' timeouts.
    pub(super) fn timeouts(self, key: &str) -> Name<'_> {
        match self.tag(key) {
            Some(tag) => Name(["{", tag, "}:", key, "", ""]),
            None if key.contains('{') => Name(["", "", "", key, "", ""]),
            None => Name(["", "", "{", key, "}", ""]),
        }
    }

    /// The timeout key of a reader of dlock; `behind` is the rest of its name.
    pub(super) fn timeout<'a>(self, key: &'a str, behind: &'a str) -> Name<'a> {
        let Name(mut parts) = self.timeouts(key);
        parts[5] = behind;
        Name(parts)
    }

    /// The keys of a lock for a script that also uses others, or that uses keys it has removed
    /// itself. While the slot is being moved, a node refuses such an access, and the script would
    /// end halfway, without the message that the lock is free. So in a cluster it gets one more
    /// key, which never exists, and is refused before it begins, as dlock's own scripts are.
    /// Redisson's scripts have their channel among the keys, with the same effect.
    pub(super) fn undivided<'a, const N: usize>(
        self,
        key: &'a str,
        keys: [Name<'a>; N],
    ) -> impl Iterator<Item = Name<'a>> + Clone {
        let never = self.in_slots.then(|| self.timeout(key, ":never"));
        keys.into_iter().chain(never)
    }

    fn prefixed<'a>(self, prefix: &'static str, key: &'a str) -> Name<'a> {
        match self.tag(key) {
            Some(tag) => Name([prefix, ":{", tag, "}:", key, ""]),
            None if key.contains('{') => Name([prefix, ":", "", key, "", ""]),
            None => Name([prefix, ":", "{", key, "}", ""]),
        }
    }

    /// The keys of the locks to which a channel belongs: `a` and `{a}` have the same one.
    pub(in super::super) fn freed_keys(self, channel: &str) -> [Option<&str>; 3] {
        let rest = channel.strip_prefix(self.channels());
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix(':')) else {
            return [None; 3];
        };
        let inner = rest
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let inner = inner.filter(|inner| !inner.contains('{'));
        let behind_tag = rest.split_once("}:").map(|(_, key)| key);
        let apart = behind_tag.filter(|key| self.tag(key).is_some());
        [Some(rest).filter(|rest| rest.contains('{')), inner, apart]
    }

    /// The tag that leads to the slot of the lock, if its name in braces does not.
    fn tag(self, key: &str) -> Option<&'static str> {
        if !self.in_slots || !key.contains(['{', '}']) {
            return None;
        }
        let beside = match key.contains('{') {
            true => format!("{TOKEN}:{key}"),
            false => format!("{{{key}}}"),
        };
        let slot = self.slot(key);
        (self.slot(&beside) != slot).then(|| tag_of(slot))
    }

    /// The slot of a lock, by its name alone.
    pub(in super::super) fn slot(self, key: &str) -> u16 {
        let tag = key.split_once('{').and_then(|(_, rest)| {
            let (tag, _) = rest.split_once('}')?;
            (!tag.is_empty()).then_some(tag)
        });
        slot_of(tag.unwrap_or(key).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        recipe: Recipe::Lock,
        in_slots: false,
    };

    #[test]
    fn names_are_those_of_redisson() {
        for (key, channel, timeouts) in [
            ("a", "redisson_lock__channel:{a}", "{a}"),
            ("a:1", "redisson_lock__channel:{a:1}", "{a:1}"),
            ("a}", "redisson_lock__channel:{a}}", "{a}}"),
            ("{a}", "redisson_lock__channel:{a}", "{a}"),
            ("{a}:b", "redisson_lock__channel:{a}:b", "{a}:b"),
            ("a{b", "redisson_lock__channel:a{b", "a{b"),
        ] {
            assert_eq!(LAYOUT.lock(key).to_string(), key);
            assert_eq!(LAYOUT.channel(key).to_string(), channel);
            assert_eq!(LAYOUT.timeouts(key).to_string(), timeouts);
            let keys = LAYOUT.freed_keys(channel);
            assert!(keys.contains(&Some(key)), "{channel}: {keys:?}");
        }
        let both = LAYOUT.freed_keys("redisson_lock__channel:{a}");
        assert_eq!(both, [Some("{a}"), Some("a"), None]);
        for other in ["", "redisson_rwlock:{a}", "redisson_lock__channel"] {
            assert_eq!(LAYOUT.freed_keys(other), [None; 3], "{other}");
        }
        assert_eq!(LAYOUT.token("a").to_string(), "redisson_lock_token:{a}");
    }

    #[test]
    fn who_waits_for_a_fair_lock_is_heard_by_its_own_channel() {
        let owner = Owner::read("0123456789abcdef.10").expect("an owner");
        for in_slots in [false, true] {
            let recipe = Recipe::Fair(std::time::Duration::from_secs(300));
            let fair = Layout { recipe, in_slots };
            for key in ["a", "a:1", "{a}", "{a}:b", "{}a", "a}", "a:8743c9c0:1"] {
                let channel = fair.wake_channel(key, Some(owner));
                let is_there = fair.slot(&channel) == fair.slot(key);
                assert!(is_there || !in_slots, "{channel}");
                let (of_lock, waiter) = fair.split_channel(&channel);
                assert_eq!(waiter, Some(owner), "{channel}");
                let keys = fair.freed_keys(of_lock);
                assert!(keys.contains(&Some(key)), "{channel}: {keys:?}");
                assert_eq!(fair.split_channel(of_lock), (of_lock, None));
            }
        }
        let channel = LAYOUT.wake_channel("a", Some(owner));
        let behind = "redisson_lock__channel:{a}:01234567-89ab-8cde-8f00-00646c6f636b:16";
        assert_eq!(channel, behind);
        // In another class, a lock's own name may end like this.
        assert_eq!(LAYOUT.split_channel(&channel), (&*channel, None));
        assert_eq!(LAYOUT.queue("a").to_string(), "redisson_lock_queue:{a}");
        let timeouts = LAYOUT.ends_of_places("{a}").to_string();
        assert_eq!(timeouts, "redisson_lock_timeout:{a}");
    }

    #[test]
    fn a_lock_is_where_a_cluster_looks_for_its_name() {
        for (key, tag) in [
            ("a", "a"),
            ("{a}:b", "a"),
            ("x{a}{b}", "a"),
            ("{}a", "{}a"),
            ("{a", "{a"),
        ] {
            assert_eq!(LAYOUT.slot(key), slot_of(tag.as_bytes()), "{key}");
        }
    }

    /// Whatever braces the key has; and with Redisson's names wherever Redisson can use the lock.
    #[test]
    fn all_that_belongs_to_a_lock_is_in_its_slot() {
        let cluster = Layout {
            in_slots: true,
            ..LAYOUT
        };
        for (key, is_apart) in [
            ("a", false),
            ("{a}", false),
            ("{a}:b", false),
            ("x{a}", false),
            ("a}", true),
            ("{}a", true),
            ("{a", true),
            ("}:{", true),
        ] {
            let names = [
                cluster.token(key),
                cluster.channel(key),
                cluster.timeouts(key),
                cluster.queue(key),
                cluster.ends_of_places(key),
                cluster.timeout(key, ":never"),
            ];
            let alone = [
                LAYOUT.token(key),
                LAYOUT.channel(key),
                LAYOUT.timeouts(key),
                LAYOUT.queue(key),
                LAYOUT.ends_of_places(key),
                LAYOUT.timeout(key, ":never"),
            ];
            for (name, alone) in names.iter().zip(alone) {
                let name = name.to_string();
                assert_eq!(cluster.slot(&name), cluster.slot(key), "{name}");
                assert_eq!(name != alone.to_string(), is_apart, "{name}");
            }
            let channel = names[1].to_string();
            let keys = cluster.freed_keys(&channel);
            assert!(keys.contains(&Some(key)), "{channel}: {keys:?}");
        }
    }
}
