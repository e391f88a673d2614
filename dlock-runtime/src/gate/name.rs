//! What the queues are told apart by.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// A key, with the length of its leases: those of one length may be handed over
/// to each other. It is looked up several times in each critical section, and
/// hashed once.
#[derive(Clone, Debug)]
pub(super) struct Name {
    key: Arc<str>,
    ttl: Duration,
    hash: u64,
}

impl Name {
    pub(super) fn new(key: Arc<str>, ttl: Duration, hasher: &impl BuildHasher) -> Self {
        let hash = hasher.hash_one((&*key, ttl));
        Self { key, ttl, hash }
    }

    pub(super) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.ttl == other.ttl && self.key == other.key
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// For a map of names, which bring their hash along.
pub(super) type Hashed = std::hash::BuildHasherDefault<PrehashedHasher>;

#[derive(Debug, Default)]
pub(super) struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a name is hashed already")
    }
}
