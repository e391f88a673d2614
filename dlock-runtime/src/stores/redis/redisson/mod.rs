//! `layout=redisson`: the locks of Java services that use Redisson.
//!
//! The keys and their changes follow Redisson: its names, scripts and messages are here. How a
//! command is sent, who waits in this process, and what becomes of a command that was not
//! answered, is the same as for dlock's own keys. `docs/design/redisson.md` gives the reasons.

pub(super) mod commands;
pub(super) mod field;
pub(super) mod inspect;
pub(super) mod look;
mod names;
pub(super) mod scripts;

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::backend::{BackendError, BackendErrorKind, Capabilities, Mode, Request, TokenTier};
use crate::duration::parse_duration;
use crate::stores::url::StoreUrl;

/// The options of a URL for this layout.
pub(super) const OPTIONS: &[&str] = &["layout", "recipe", FAIR_WAIT];

const FAIR_WAIT: &str = "fair_wait";

/// What a user of the server must be allowed to do.
pub(super) const PERMISSIONS: &str = "let this user do what dlock does: the keys of the locks, \
    alone and in braces (`~stock:*`, `~{stock:*`), `~redisson_lock_token:*`, channels \
    `&redisson_*`, and the commands +hello +subscribe +unsubscribe +publish +pubsub +eval +evalsha \
    +exists +hset +hget +hdel +hexists +hlen +hgetall +set +del +incrby +pexpire +pttl +scan +type \
    (with `recipe=fair`, `~redisson_lock_queue:*`, `~redisson_lock_timeout:*`, +lindex, +lpop, +lpos, \
    +lrange, +lrem, +rpush, +zadd, +zcount, +zmscore, +zrem, +zscore and +time too; \
    with a database in the URL, +select too; with sentinels, +role and +wait too; in a cluster, +ssubscribe, +sunsubscribe, +spublish, \
    +asking and +cluster|slots)";

/// The class of Redisson by which a lock is kept. Locks of different classes do not see each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    /// `RLock`.
    Lock,
    /// `RReadWriteLock`.
    ReadWrite,
    /// `RFencedLock`.
    Fenced,
    /// `RFairLock`, with the time for which a waiter may be first in its queue.
    Fair(Duration),
}

/// Redisson's `lockWatchdogTimeout`, unless a service sets another.
const WATCH_DOG: Duration = Duration::from_secs(30);

/// Redisson's `fairLockWaitTimeout`, unless a service sets another, and the values that are
/// allowed here. Not shorter: waiters are looked after once a second, and must not lose their
/// places by that.
const FAIR_LOCK_WAIT: Duration = Duration::from_secs(300);
const FAIR_LOCK_WAITS: RangeInclusive<Duration> =
    Duration::from_secs(3)..=Duration::from_secs(24 * 3600);

/// The class of the locks, and where their keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) recipe: Recipe,
    /// Whether each lock has its slot, in a cluster.
    pub(super) in_slots: bool,
}

const RECIPES: &[(&str, Recipe)] = &[
    ("lock", Recipe::Lock),
    ("read-write", Recipe::ReadWrite),
    ("fenced", Recipe::Fenced),
    ("fair", Recipe::Fair(FAIR_LOCK_WAIT)),
];

/// Reads the class from a URL. `None`: the keys are dlock's own.
pub(super) fn read(url: &StoreUrl<'_>) -> Result<Option<Recipe>, BackendError> {
    let layout = url.choice("layout", &[("redisson", ())])?;
    let mut recipe = url.choice("recipe", RECIPES)?;
    if let Some(said) = url.option(FAIR_WAIT) {
        let Some(Recipe::Fair(lasts)) = &mut recipe else {
            return Err(url.invalid(
                "`fair_wait` is for a queue, which only `layout=redisson&recipe=fair` has",
            ));
        };
        let wait = parse_duration(said).ok();
        let wait = wait.filter(|wait| FAIR_LOCK_WAITS.contains(wait));
        *lasts = wait.ok_or_else(|| {
            url.invalid(
                "`fair_wait` is a time from 3s to 24h, that of `fairLockWaitTimeout` in Java",
            )
        })?;
    }
    match (layout, recipe) {
        (Some(()), recipe) => Ok(Some(recipe.unwrap_or(Recipe::Lock))),
        (None, Some(_)) => Err(url.invalid(
            "`recipe` says which class of Redisson has the locks; write `layout=redisson` too",
        )),
        (None, None) => Ok(None),
    }
}

impl Layout {
    /// Refuses modes that the class does not have.
    pub(super) fn check(self, request: &Request) -> Result<(), BackendError> {
        match request.mode {
            Mode::Write => {}
            Mode::Read if self.recipe == Recipe::ReadWrite => {}
            Mode::Read | Mode::Permits(_) => {
                return Err(BackendError::new(
                    BackendErrorKind::Unsupported,
                    "Redisson shares locks among the readers of `recipe=read-write` alone",
                ));
            }
        }
        Ok(())
    }

    /// The longest that a lease lasts. A reader that uses Redisson resets the end of all readers'
    /// leases whenever it renews its own, to its `lockWatchdogTimeout`, and that may be sooner.
    pub(super) fn longest_for(self, request: &Request) -> Option<Duration> {
        (request.mode == Mode::Read).then_some(WATCH_DOG)
    }
}

impl Recipe {
    /// What its locks can do. `own` is what the store can do with keys of dlock's own.
    pub(super) fn capabilities(self, own: Capabilities) -> Capabilities {
        Capabilities {
            name: "redisson",
            fair: matches!(self, Self::Fair(_)),
            tokens: match self {
                // Anybody may delete its counter, and a request that takes the lock as another
                // class does not raise it.
                Self::Fenced => TokenTier::BestEffort,
                Self::Lock | Self::ReadWrite | Self::Fair(_) => TokenTier::None,
            },
            strict_with: "",
            read_write: self == Self::ReadWrite,
            read_write_with: match self {
                Self::ReadWrite => "",
                Self::Lock | Self::Fenced | Self::Fair(_) => {
                    "`recipe=read-write` in its URL, if the lock is an RReadWriteLock in Java"
                }
            },
            permits: false,
            permits_with: "leave `layout=redisson` and `recipe` out of its URL, for a lock of \
                dlock's own (Redisson's let in one)",
            once: false,
            once_with: "leave `layout=redisson` and `recipe` out of its URL, for a lock of dlock's \
                own (of one of Redisson's that is free, nothing is kept)",
            ..own
        }
    }

    /// Whether waiters have places.
    pub(super) fn queues(self) -> bool {
        matches!(self, Self::Fair(_))
    }

    /// How often a waiter must be seen to still have its place, so that it keeps it.
    pub(super) fn keeps_places_every(self) -> Option<Duration> {
        match self {
            Self::Fair(lasts) => Some(WATCH_DOG.min(lasts / 3)),
            Self::Lock | Self::ReadWrite | Self::Fenced => None,
        }
    }

    /// Whether its locks have tokens.
    pub(super) fn has_tokens(self) -> bool {
        self == Self::Fenced
    }
}
