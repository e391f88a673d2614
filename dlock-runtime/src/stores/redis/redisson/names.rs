//! The names of Redisson's keys and channels.
//!
//! | name | what |
//! |---|---|
//! | `<key>` | the lock |
//! | `redisson_lock_token:{<key>}` | the last token of a fenced lock |
//! | `{<key>}:<owner>:rwlock_timeout:<n>` | when the lease of a reader ends |
//! | `redisson_lock__channel:{<key>}` | channel on which it is told that a lock is free |
//! | `redisson_rwlock:{<key>}` | the same of a read/write lock |
//!
//! A key that has a brace goes unchanged into the others, without more around it.

use super::super::names::{Name, slot_of};
use super::{Layout, Recipe};

const TOKEN: &str = "redisson_lock_token";
const LOCK_CHANNEL: &str = "redisson_lock__channel";
const READ_WRITE_CHANNEL: &str = "redisson_rwlock";

impl Layout {
    pub(in super::super) fn lock(self, key: &str) -> Name<'_> {
        Name(["", "", "", key, "", ""])
    }

    pub(in super::super) fn token(self, key: &str) -> Name<'_> {
        prefixed(TOKEN, key)
    }

    /// Where it is told that a lock is free.
    pub(in super::super) fn channel(self, key: &str) -> Name<'_> {
        prefixed(self.channels(), key)
    }

    fn channels(self) -> &'static str {
        match self.recipe {
            Recipe::Lock | Recipe::Fenced => LOCK_CHANNEL,
            Recipe::ReadWrite => READ_WRITE_CHANNEL,
        }
    }

    /// What the names of the timeouts of a lock's readers begin with.
    pub(super) fn timeouts(self, key: &str) -> Name<'_> {
        match key.contains('{') {
            true => Name([key, "", "", "", "", ""]),
            false => Name(["{", key, "}", "", "", ""]),
        }
    }

    /// The keys whose lock this channel is for: `a` and `{a}` have the same.
    pub(in super::super) fn freed_keys(self, channel: &str) -> [Option<&str>; 2] {
        let rest = channel.strip_prefix(self.channels());
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix(':')) else {
            return [None, None];
        };
        let inner = rest
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let inner = inner.filter(|inner| !inner.contains('{'));
        [Some(rest).filter(|rest| rest.contains('{')), inner]
    }

    /// Whether a cluster keeps the lock apart from what goes with it: Redisson's scripts
    /// fail there for such a name.
    pub(in super::super) fn is_apart(self, key: &str) -> bool {
        self.in_slots
            && key.contains(['{', '}'])
            && self.slot(&self.channel(key).to_string()) != self.slot(key)
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

fn prefixed<'a>(prefix: &'static str, key: &'a str) -> Name<'a> {
    match key.contains('{') {
        true => Name([prefix, ":", key, "", "", ""]),
        false => Name([prefix, ":{", key, "}", "", ""]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        recipe: Recipe::Lock,
        in_slots: true,
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
        assert_eq!(both, [Some("{a}"), Some("a")]);
        for other in ["", "redisson_rwlock:{a}", "redisson_lock__channel"] {
            assert_eq!(LAYOUT.freed_keys(other), [None, None], "{other}");
        }
        assert_eq!(LAYOUT.token("a").to_string(), "redisson_lock_token:{a}");
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
        for (key, is_apart) in [("a", false), ("{a}:b", false), ("a}", true), ("{}a", true)] {
            assert_eq!(LAYOUT.is_apart(key), is_apart, "{key}");
            let server = Layout {
                in_slots: false,
                ..LAYOUT
            };
            assert!(!server.is_apart(key), "{key}");
        }
    }
}
