//! As which class of Redisson's a lock is kept.

/// One of Redisson's classes.
pub(crate) trait Recipe {
    const NAME: &str;
    const TOKENS: bool = false;
}

pub(crate) struct Lock;

impl Recipe for Lock {
    const NAME: &str = "lock";
}

pub(crate) struct ReadWrite;

impl Recipe for ReadWrite {
    const NAME: &str = "read-write";
}

pub(crate) struct Fair;

impl Recipe for Fair {
    const NAME: &str = "fair";
}

pub(crate) struct Fenced;

impl Recipe for Fenced {
    const NAME: &str = "fenced";
    const TOKENS: bool = true;
}

pub(crate) fn url(server: &str, recipe: &str) -> String {
    format!("{server}?layout=redisson&recipe={recipe}")
}

/// How many keys of locks there are. The token of a fenced lock stays, for services in Java.
pub(crate) fn records(keys: &[String]) -> usize {
    let is_token = |key: &&String| key.starts_with("redisson_lock_token:");
    keys.len() - keys.iter().filter(is_token).count()
}
