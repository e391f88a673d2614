//! What the layers above ask of a store.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::mode::Mode;
use super::numbers::PermitNumbers;
use super::origin::Signed;
use super::{Finding, Owner, Progress, Servers};
use crate::clock::Clock;
use crate::error::BackendError;
use crate::key::{MAX_KEY_BYTES, Shown};
use crate::limits::{LONGEST, MIN_TTL};
use crate::token::FencingToken;

/// No more waiters of one lock than this are shown.
pub(crate) const SHOWN_WAITERS: usize = 1000;

/// A store that keeps locks.
///
/// # Contract
///
/// - Every operation ends within a bounded time (the store's request timeout), except
///   [`acquire`](Self::acquire), which waits until the lock is granted, and
///   [`next_losses`](Self::next_losses).
/// - Every operation may be dropped at any await. A dropped `try_acquire` or `acquire` leaves
///   neither a lock nor a place in a queue behind: the backend itself gives back what was in
///   flight.
/// - An owner is never used for two requests, so a late or repeated command of one request cannot
///   touch the lease of another.
/// - For each [`Owner`], the layers above send one request at a time. Requests of different
///   owners in one process may run at the same time.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can promise. Read before [`start`](Self::start) for its name and whether
    /// it is local, and after it for everything. Only [`tokens`](Capabilities::tokens) may change
    /// later: if a caller needs strict tokens, it is read again before and after each grant.
    fn capabilities(&self) -> Capabilities;

    /// Where the servers are, as far as is known now. With it, [`start`](Self::start) fails as
    /// soon as all of them refuse connections, and errors say so. The default is for a store
    /// without servers.
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// How long an answer is awaited, if the caller's runtime has to receive it. When no answer
    /// was received for longer than this, the runtime itself stood still, and the store is asked
    /// once more. The default is for a store that receives its answers elsewhere.
    fn request_timeout(&self) -> Option<Duration> {
        None
    }

    /// Passes the name of the service ([`Config::label`](crate::Config::label)) before
    /// [`start`](Self::start), for a store that names its connections.
    fn call_yourself(&self, label: &str) {
        let _ = label;
    }

    /// Connects and checks the store. Runs once, before any other operation, on the runtime of
    /// the manager's own thread (on the caller's runtime for a [`local`](Capabilities::local)
    /// store). Background work of the backend (heartbeats, wake-ups, late releases) is spawned
    /// from here.
    async fn start(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends what [`start`](Self::start) began. No operation follows.
    async fn stop(&self) {}

    /// Waits until everything that dropped requests left behind has been given back, or its ttl
    /// has passed. The default is for a store that gives back at once.
    async fn settle(&self) {}

    /// Takes the lock if it is free. `None` means that somebody holds it.
    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError>;

    /// Takes the lock, waiting for it in the store's own queue if the store has one. Waits
    /// without a limit while the store answers, and fails when the store has not answered for the
    /// request timeout.
    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError>;

    /// Extends each lease to its request's ttl from now, if the owner still holds it (compare and
    /// extend). Returns one answer for each request, in order. Never brings back a lease that has
    /// ended.
    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>>;

    /// Gives a lease back if the owner still holds it, and lets the next waiter in. If the
    /// request is [`done`](Request::done_for), leaves a mark in place of the lease in the same
    /// step: requests that ask or wait for the lock then fail with
    /// [`BackendErrorKind::Done`](crate::backend::BackendErrorKind::Done).
    async fn release(&self, request: &Request) -> Result<Released, BackendError>;

    /// Removes the mark that says that the body has been done. Returns whether there was one. The
    /// default is for a store that leaves no marks.
    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        let _ = key;
        let name = self.capabilities().name;
        Err(BackendError::cannot_forget(name))
    }

    /// Raises the fencing tokens: every grant of the store after this has returned, to any
    /// process, has a token above `floor`, and the tokens of one key still rise. The store keeps
    /// the floor with the data from which it makes tokens, and never lowers it. Called after
    /// [`start`](Self::start) and before every other operation. The default is for a store that
    /// cannot keep a floor.
    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        let _ = floor;
        let Capabilities { name, tokens, .. } = self.capabilities();
        Err(match tokens {
            TokenTier::None => BackendError::cannot_raise_tokens(name, "it has none"),
            _ => BackendError::cannot_raise_tokens(name, "nothing there keeps a floor"),
        })
    }

    /// Ends the lease of a holder, of any process, as [`inspect`](Self::inspect) has shown it,
    /// and lets the next waiter in like a release. The step that ends the lease compares the
    /// holder's [`owner`](HolderInfo::owner), so that a later holder is not broken by mistake.
    /// Returns whether the holder held the lock until then: if the command was sent twice because
    /// of an outage and the first one ended the lease, the answer must not be
    /// [`NotHeld`](Released::NotHeld). The default is for a store that cannot break locks.
    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        let _ = (key, holder);
        Err(BackendError::cannot_break(self.capabilities().name))
    }

    /// Takes a waiter out of the store's queue, as [`inspect`](Self::inspect) has shown it. Its
    /// request fails with [`BackendErrorKind::TakenOut`], and the others keep their order. A
    /// waiter that has got the lock since is left alone. Otherwise like
    /// [`break_lock`](Self::break_lock).
    ///
    /// [`BackendErrorKind::TakenOut`]: crate::backend::BackendErrorKind::TakenOut
    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        let _ = (key, waiter);
        Err(BackendError::cannot_remove_waiters(
            self.capabilities().name,
        ))
    }

    /// What the store knows about a lock. `None` if nobody holds it and it is not remembered as
    /// done.
    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError>;

    /// The locks whose keys begin with `prefix` and that are held or remembered as done, in any
    /// order.
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError>;

    /// The first `most` of these locks by key, and the number of the others, for a caller that
    /// repeats this often. The default lists all of them, which suits a store that gets them by
    /// one query. A store that needs a query for each lock asks for only `most` of them.
    async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, BackendError> {
        Ok(Listed::first_of(self.list(prefix).await?, most))
    }

    /// What the servers report about themselves that an operator of locks should know: versions,
    /// settings. The default is for a store that reports nothing.
    async fn examine(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Whether a holder that [`inspect`](Self::inspect) has shown is this owner. The default is
    /// for a store that shows owners as they are displayed, with or without more text around
    /// them.
    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        holder.shows(owner)
    }

    /// The next owners whose leases the store has ended by itself, for stores that report this (a
    /// session that expires takes all its leases with it). Cancel-safe. The default never
    /// resolves; a loss is then noticed at the next renewal.
    async fn next_losses(&self) -> Vec<Owner> {
        std::future::pending().await
    }

    /// Whether this backend knows, without asking the store, that the lease it granted to this
    /// owner has ended. Called once for each grant: if [`next_losses`](Self::next_losses)
    /// returned the loss before the grant was registered, the loss found no lease. Therefore a
    /// store must return `true` here before it reports a loss. The default is `false`.
    fn has_ended(&self, owner: Owner) -> bool {
        let _ = owner;
        false
    }
}

/// What a store can promise. The layers above and the conformance suite rely on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A short name for messages: `redis`, `memory`.
    pub name: &'static str,
    /// Waiters of different processes are served in the order in which they came.
    pub fair: bool,
    /// What its fencing tokens are worth.
    pub tokens: TokenTier,
    /// What to set in the store to make its tokens strict, for messages. Empty if no setting
    /// does.
    pub strict_with: &'static str,
    /// The store supports [`Mode::Read`].
    pub read_write: bool,
    /// What to set in the store to get [`Mode::Read`], for messages. Empty if no setting helps.
    pub read_write_with: &'static str,
    /// The store supports [`Mode::Permits`]. Such a store calls [`Request::note_mode`].
    pub permits: bool,
    /// What to do to get [`Mode::Permits`], and why the store has none, for messages: `leave …
    /// out of its URL (…)`. Empty if nothing helps.
    pub permits_with: &'static str,
    /// The store can remember that a body has been done (`once`), for up to
    /// [`max_ttl`](Self::max_ttl).
    pub once: bool,
    /// What to do to get `once`, and why the store has none, as in
    /// [`permits_with`](Self::permits_with).
    pub once_with: &'static str,
    /// The shortest lease the store can keep. A value below [`MIN_TTL`] counts as [`MIN_TTL`].
    pub min_ttl: Duration,
    /// The longest lease the store can keep. A value above ten years counts as ten years.
    pub max_ttl: Duration,
    /// The store rounds a lease up to a multiple of this, so it keeps the lock of a dead holder a
    /// little longer. Zero if it does not round.
    pub ttl_step: Duration,
    /// The longest key the store takes, in bytes, including the namespace.
    pub max_key_bytes: usize,
    /// Requests of one runtime reach the store in the order in which they were first polled. A
    /// request for the same lock may then be sent behind a release that is not answered yet. The
    /// safety of locks does not depend on it.
    pub in_order: bool,
    /// The store is in this process's memory. It needs no thread, and uses tokio's clock, so that
    /// paused time drives it.
    pub local: bool,
}

impl Capabilities {
    /// The least that a store can promise: no order, no tokens, no readers, no permits, no
    /// `once`. Set the fields where the store does better.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            fair: false,
            tokens: TokenTier::None,
            strict_with: "",
            read_write: false,
            read_write_with: "",
            permits: false,
            permits_with: "",
            once: false,
            once_with: "",
            min_ttl: MIN_TTL,
            max_ttl: LONGEST,
            ttl_step: Duration::ZERO,
            max_key_bytes: MAX_KEY_BYTES,
            in_order: false,
            local: false,
        }
    }
}

/// What a store's fencing tokens are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TokenTier {
    /// The store gives none. Every token is [`FencingToken::NONE`].
    None,
    /// Tokens rise unless the store loses what it confirmed (in a failover, or a restart without
    /// its last writes).
    BestEffort,
    /// Tokens rise, whatever happens to the store.
    Strict,
}

/// One request for one lease.
#[derive(Clone)]
#[non_exhaustive]
pub struct Request {
    /// The key, with its namespace.
    pub key: Arc<str>,
    /// Shared or exclusive.
    pub mode: Mode,
    /// How long the lease lasts unless it is renewed.
    pub ttl: Duration,
    /// The identity of the request.
    pub owner: Owner,
    progress: Progress,
    followed: bool,
    done_for: Option<Duration>,
    token: FencingToken,
}

impl Request {
    /// Creates a request with an owner of its own.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>, mode: Mode, ttl: Duration) -> Self {
        Self::of(Owner::unique(), Clock::Tokio, key, mode, ttl)
    }

    /// Whether a task of this runtime will ask for the same key as soon as it is woken. The
    /// release may then be sent together with that request.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.followed
    }

    /// How long a release leaves a mark, if the body was to run once and has been done.
    #[must_use]
    pub fn done_for(&self) -> Option<Duration> {
        self.done_for
    }

    /// The [token](Grant::token) of the grant, in a renewal of its lease, so that a store that does
    /// not know it can keep it for [`HolderInfo::token`]. [`FencingToken::NONE`] while the lock is
    /// asked for, and from a store without tokens.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// This request, once it was granted with this token.
    #[doc(hidden)]
    #[must_use]
    pub fn with_token(self, token: FencingToken) -> Self {
        Self { token, ..self }
    }

    /// Notes that somebody holds the lock. A backend must call this whenever the store has
    /// answered so. A caller that began before that answer and gives up then gets a timeout;
    /// otherwise it is told that the store does not answer.
    pub fn note_held(&self) {
        self.progress.held();
    }

    /// Like [`note_held`](Self::note_held), for an answer to a question that was sent at `asked`.
    pub(crate) fn note_held_at(&self, asked: std::time::Instant) {
        self.progress.held_when(asked.into());
    }

    /// A backend with permits must call this whenever it sees how another request shares the lock
    /// or waits for it. If callers name different numbers of permits for one key, a warning is
    /// logged once for the key.
    pub fn note_mode(&self, other: Mode) {
        if let (Mode::Permits(most), Mode::Permits(other)) = (self.mode, other)
            && most != other
            && let Some(numbers) = self.progress.numbers()
        {
            numbers.saw(&self.key, most, other);
        }
    }

    /// Sets where differing numbers of permits are reported ([`note_mode`](Self::note_mode)).
    pub(crate) fn tells(&self, numbers: &Arc<PermitNumbers>) {
        if let Mode::Permits(_) = self.mode {
            self.progress.tells(numbers);
        }
    }

    /// The request of an owner, by the clock of its manager.
    pub(crate) fn of(
        owner: Owner,
        clock: Clock,
        key: impl Into<Arc<str>>,
        mode: Mode,
        ttl: Duration,
    ) -> Self {
        Self {
            key: key.into(),
            mode,
            ttl,
            owner,
            progress: Progress::begin(clock),
            followed: false,
            done_for: None,
            token: FencingToken::NONE,
        }
    }

    /// The same request with a new owner.
    pub(crate) fn again(&self) -> Result<Self, BackendError> {
        let owner = self.owner.draw_again()?;
        self.progress.asks_as(owner);
        Ok(Self {
            owner,
            followed: false,
            done_for: None,
            token: FencingToken::NONE,
            ..self.clone()
        })
    }

    /// This request, with the owner to which it was granted.
    pub(crate) fn granted_to(&self, owner: Owner) -> Self {
        Self {
            owner,
            ..self.clone()
        }
    }

    /// When a quorum granted the lock, in milliseconds since 1970 by this host's clock. Each voter
    /// writes it down when the lease is renewed there.
    #[doc(hidden)]
    #[must_use]
    pub fn held_since(&self) -> Option<u64> {
        self.progress.held_since()
    }

    /// Sets what [`held_since`](Self::held_since) returns.
    pub(crate) fn holds_since(&self, ms: u64) {
        self.progress.holds_since(ms);
    }

    /// The owner under which the store was last asked for this request or one made from it.
    pub(crate) fn current_owner(&self) -> Owner {
        self.progress.current_owner().unwrap_or(self.owner)
    }

    /// This request, with the note that another request follows its release.
    pub(crate) fn followed(mut self) -> Self {
        self.followed = true;
        self
    }

    /// This request, to be released with a mark if `done_for` says that its body has been done.
    pub(crate) fn done(mut self, done_for: Option<Duration>) -> Self {
        self.done_for = done_for;
        self
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("key", &format_args!("{}", Shown(&self.key)))
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// A lease as the store granted it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The first of the [`TOKENS_PER_GRANT`](crate::token::TOKENS_PER_GRANT) numbers that this
    /// grant reserved. Every later grant of the key has a token above all of them.
    /// [`FencingToken::NONE`] from a store without tokens.
    pub token: FencingToken,
    /// When the last request that the store confirmed was *sent*. The lease lasts at least its
    /// ttl from this moment, by the local monotonic clock.
    pub sent_at: Instant,
    /// The ttl that the store gave, if it is shorter than the one asked for. It also holds for
    /// the renewals of this lease.
    pub ttl: Option<Duration>,
}

impl Grant {
    /// A grant with this token, for a request that was sent at `sent_at`.
    #[must_use]
    pub fn new(token: FencingToken, sent_at: Instant) -> Self {
        Self {
            token,
            sent_at,
            ttl: None,
        }
    }

    /// Limits the lease to `ttl`, whatever was asked for.
    #[must_use]
    pub fn at_most(self, ttl: Duration) -> Self {
        Self {
            ttl: Some(ttl),
            ..self
        }
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Renewed {
    /// The lease lasts its ttl from `sent_at`.
    Extended {
        /// When the confirmed request was sent.
        sent_at: Instant,
    },
    /// The owner does not hold the lock, and never will again.
    Gone,
}

impl Renewed {
    /// The lease lasts its ttl from `sent_at`, when the confirmed request was sent.
    #[must_use]
    pub fn extended(sent_at: impl Into<Instant>) -> Self {
        Self::Extended {
            sent_at: sent_at.into(),
        }
    }
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The owner held the lock and has given it back.
    Released,
    /// The owner did not hold the lock; nothing has changed.
    NotHeld,
}

/// What a store knows about a lock that is held or remembered as done.
///
/// With the feature `serde`, this and its parts can be sent elsewhere and read back. Times and
/// durations have the format that `serde` gives those of the standard library, in seconds and
/// nanoseconds.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The key. It includes the namespace in an answer of a backend, but not in one of
    /// `LockManager::inspect`.
    pub key: String,
    /// How the lock is held. If readers and permits share it, this is `Permits` with the largest
    /// number that one of them names. A lock that is done was held for writing.
    pub mode: Mode,
    /// The holders: one writer, or all readers and permits.
    pub holders: Vec<HolderInfo>,
    /// How many requests wait for the lock, if the store knows: a store without a queue may not.
    /// The tasks that wait inside one process count as one request.
    pub waiters: Option<usize>,
    /// The waiters in the store's queue, in its order, at most the first thousand. Set by
    /// `inspect`, if the store has a queue.
    #[cfg_attr(feature = "serde", serde(default))]
    pub queue: Vec<WaiterInfo>,
    /// Set if the body was to run once and has been done: by which process, and how long that is
    /// still remembered. Nobody holds the lock meanwhile.
    pub done: Option<HolderInfo>,
    /// Where the store keeps the lock, for looking it up with the store's own tools: keys of
    /// Redis, rows, nodes, an item. Not all of them exist at all times. Set by `inspect`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stored_as: Vec<String>,
}

impl LockInfo {
    /// What is known about a held lock. `waiters` is a number, or `None` if the store does not
    /// know it.
    #[must_use]
    pub fn new(
        key: String,
        mode: Mode,
        holders: Vec<HolderInfo>,
        waiters: impl Into<Option<usize>>,
    ) -> Self {
        Self {
            key,
            mode,
            holders,
            waiters: waiters.into(),
            queue: Vec::new(),
            done: None,
            stored_as: Vec::new(),
        }
    }

    /// Adds the waiters, in their order.
    #[must_use]
    pub fn with_queue(self, queue: Vec<WaiterInfo>) -> Self {
        Self { queue, ..self }
    }

    /// What is known about a lock whose body has been done.
    #[must_use]
    pub fn of_done(key: String, done: HolderInfo) -> Self {
        Self {
            done: Some(done),
            ..Self::new(key, Mode::Write, Vec::new(), 0)
        }
    }
}

/// The first of some locks, by key.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listed {
    /// The locks that were looked at.
    pub locks: Vec<LockInfo>,
    /// How many more locks there are. In a store that looks at each lock by itself, some of these
    /// may have ended meanwhile.
    pub others: usize,
}

impl Listed {
    /// The first `most` of these locks.
    #[must_use]
    pub fn first_of(locks: Vec<LockInfo>, most: usize) -> Self {
        let mut listed = Self::with_others(locks, 0);
        listed.others = listed.locks.len().saturating_sub(most);
        listed.locks.truncate(most);
        listed
    }

    /// All locks that were looked at, with the number of the others.
    #[must_use]
    pub fn with_others(mut locks: Vec<LockInfo>, others: usize) -> Self {
        locks.sort_by(|a, b| a.key.cmp(&b.key));
        Self { locks, others }
    }
}

/// One holder of a lock.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct HolderInfo {
    /// The owner as the store has it, for looking it up there.
    pub owner: String,
    /// The process that asked, if the store knows it. `None` for a lock that another program
    /// holds.
    pub process: Option<ProcessInfo>,
    /// Since when it holds the lock, if the store knows. Otherwise all that is known is that it
    /// has not held it for longer than since [`asked_at`](ProcessInfo::asked_at).
    pub since: Option<SystemTime>,
    /// `since` was written down by the holder, by the clock of its host, and not by the store's
    /// clock.
    #[cfg_attr(feature = "serde", serde(default))]
    pub since_by_holder: bool,
    /// How long the lease lasts unless it is renewed, if the store knows.
    pub expires_in: Option<Duration>,
    /// The fencing token of its grant, if the store keeps it; Redis keeps it once the lease was
    /// renewed. The token of a call that took the lock over from another call of the same process
    /// is up to 63 higher.
    pub token: Option<FencingToken>,
}

impl HolderInfo {
    /// What is known about one holder. Its process is read from the owner, if that contains the
    /// displayed form of an owner.
    #[must_use]
    pub fn new(owner: String, expires_in: Option<Duration>) -> Self {
        Self {
            process: ProcessInfo::of(&owner),
            since: None,
            since_by_holder: false,
            owner,
            expires_in,
            token: None,
        }
    }

    /// Sets since when the holder has the lock, by the store's clock.
    #[must_use]
    pub fn since(self, since: Option<SystemTime>) -> Self {
        Self { since, ..self }
    }

    /// Sets since when the holder has the lock, by its own clock.
    #[must_use]
    pub fn since_by_holder(self, since: Option<SystemTime>) -> Self {
        Self {
            since,
            since_by_holder: since.is_some(),
            ..self
        }
    }

    /// Sets the token of its grant.
    #[must_use]
    pub fn token(self, token: Option<FencingToken>) -> Self {
        Self { token, ..self }
    }

    /// Sets the process, if it cannot be read from the owner.
    #[must_use]
    pub fn process(self, process: Option<ProcessInfo>) -> Self {
        Self { process, ..self }
    }

    /// Reads the process from this text, if the owner does not contain it.
    pub(crate) fn of_process(self, text: &str) -> Self {
        self.process(ProcessInfo::of(text))
    }

    /// Whether the owner as the store has it contains the displayed form of this owner.
    pub(crate) fn shows(&self, owner: Owner) -> bool {
        let owner = owner.to_string();
        let mut found = self.owner.match_indices(&owner);
        found.any(|(at, _)| {
            let rest = self.owner.get(at + owner.len()..).unwrap_or_default();
            !rest.starts_with(|next: char| next.is_ascii_alphanumeric())
        })
    }
}

/// One waiter of a lock.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The owner as the store has it, for looking it up there.
    pub owner: String,
    /// What it asks for.
    pub mode: Mode,
    /// The process that asks, if the store knows it.
    pub process: Option<ProcessInfo>,
}

impl WaiterInfo {
    /// Sets the process, if it cannot be read from the owner.
    #[must_use]
    pub fn process(self, process: Option<ProcessInfo>) -> Self {
        Self { process, ..self }
    }

    /// Reads the process from this text, if the owner does not contain it.
    pub(crate) fn of_process(self, text: &str) -> Self {
        self.process(ProcessInfo::of(text))
    }

    /// What is known about one waiter. Its process is read from the owner, if that contains the
    /// displayed form of an owner.
    #[must_use]
    pub fn new(owner: String, mode: Mode) -> Self {
        Self {
            process: ProcessInfo::of(&owner),
            owner,
            mode,
        }
    }
}

/// The process that has asked for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct ProcessInfo {
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Its label ([`Config::label`](crate::Config::label)); by default, the name of its program.
    pub label: String,
    /// When the request that has or awaits the lock began, by the clock of that host. Another
    /// task of the process may have waited for longer: one request stands for all of them.
    pub asked_at: SystemTime,
}

impl ProcessInfo {
    /// A process by its host, process id and label, whose request began at `asked_at` by the
    /// clock of that host. A store that keeps owners as they are displayed does not need this:
    /// the process is read from the owner.
    #[must_use]
    pub fn new(
        host: impl Into<String>,
        pid: u32,
        label: impl Into<String>,
        asked_at: SystemTime,
    ) -> Self {
        Self {
            host: host.into(),
            pid,
            label: label.into(),
            asked_at,
        }
    }

    fn of(owner: &str) -> Option<Self> {
        let signed = Signed::of(owner)?;
        let Signed {
            host,
            pid,
            label,
            asked_at,
        } = signed;
        Some(Self::new(host, pid, label, asked_at))
    }
}
