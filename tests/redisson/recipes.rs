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

/// What a store of the suite can do where Redisson's keys are, by the recipe `R`, wherever the
/// servers are; and themes that it leaves out there.
macro_rules! abilities {
    ($($theme:literal)*) => {
        fn leaves_out() -> &'static [&'static str] {
            &["permits", "once" $(, $theme)*]
        }

        fn shows_processes(&self) -> bool {
            false
        }

        fn has_tokens(&self) -> bool {
            R::TOKENS
        }

        fn shows_since(&self) -> dlock_conformance::Since {
            dlock_conformance::Since::OfNobody
        }

        fn lifts_tokens(&self) -> bool {
            false
        }

        fn shows_tokens(&self) -> dlock_conformance::ShownTokens {
            dlock_conformance::ShownTokens::OfNone
        }

        fn lets_waiters_out(&self) -> bool {
            false
        }
    };
}
pub(crate) use abilities;
