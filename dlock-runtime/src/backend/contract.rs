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

/// So many of those who wait for a lock are shown at most.
pub(crate) const SHOWN_WAITERS: usize = 1000;

/// A store that keeps locks.
///
/// # Contract
///
/// - Every operation ends within a bounded time (the store's request timeout),
///   except [`acquire`](Self::acquire), which waits until it is granted, and
///   [`next_losses`](Self::next_losses).
/// - Every operation may be dropped at any await. A dropped `try_acquire` or
///   `acquire` leaves neither a lock nor a place in a queue behind: what was
///   in flight is given back by the backend itself.
/// - An owner is never used for two requests, so that a late or repeated
///   command of one request cannot touch the lease of another.
/// - The layers above send one request for a key's lease at a time per
///   [`Owner`], but requests of different owners of one process come together.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can promise. Asked before [`start`](Self::start), for
    /// its name and whether it is local, and after it for all of it. Only
    /// [`tokens`](Capabilities::tokens) may change later: it is read again before
    /// and after each grant to a caller for whom they must be strict.
    fn capabilities(&self) -> Capabilities;

    /// Where the servers are, as far as it is known now. With it,
    /// [`start`](Self::start) is not waited for once all of them have refused a
    /// connection, and errors say so. The default is for a store without any.
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// For how long an answer is waited for, where it is the caller's runtime that
    /// has to hear it. That nothing was heard for longer means that the runtime
    /// stood still, and the store is asked once more. The default is for a store
    /// that hears its answers elsewhere.
    fn request_timeout(&self) -> Option<Duration> {
        None
    }

    /// What the service calls itself ([`Config::label`](crate::Config::label)): told before
    /// [`start`](Self::start), for a store that gives its connections names.
    fn call_yourself(&self, label: &str) {
        let _ = label;
    }

    /// Connects and checks. Runs once, before any other operation, on the
    /// runtime of the manager's own thread (on the caller's runtime for a
    /// [`local`](Capabilities::local) store): what the backend must do by
    /// itself (heartbeats, wake-ups, late releases) is spawned from here.
    async fn start(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends what [`start`](Self::start) began. No operation follows.
    async fn stop(&self) {}

    /// Waits until what dropped requests left behind has been given back, or its
    /// ttl has passed. The default is for a store that gives back at once.
    async fn settle(&self) {}

    /// Takes the lock if it is free: `None` means that somebody holds it.
    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError>;

    /// Takes the lock, waiting for it in the store's own queue if the store
    /// has one. Waits without a limit while the store answers, and fails when
    /// it has not answered for the request timeout.
    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError>;

    /// Extends leases to their request's ttl from now, where the owner still
    /// holds them: compare and extend, one answer for each request in order.
    /// It never brings back a lease that has ended.
    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>>;

    /// Gives a lease back if the owner still holds it, and lets the next
    /// waiter in; or, if the request is [`done`](Request::done_for), leaves a mark in its
    /// place, in the same step: whoever asks or waits for the lock is then told
    /// [`BackendErrorKind::Done`](crate::backend::BackendErrorKind::Done).
    async fn release(&self, request: &Request) -> Result<Released, BackendError>;

    /// Removes the mark that says that the body has been done. Whether there was one. The
    /// default is for a store that leaves none.
    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        let _ = key;
        let name = self.capabilities().name;
        Err(BackendError::remembers_nothing(name))
    }

    /// Lifts the fencing tokens: every grant that the store gives once this has returned, to
    /// whichever process, has one above `floor`, and those of one key rise as ever. The store
    /// keeps the floor where it keeps what tokens are made of, and never lowers it. Called
    /// between [`start`](Self::start) and all else. The default is for a store that cannot.
    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        let _ = floor;
        let Capabilities { name, tokens, .. } = self.capabilities();
        Err(match tokens {
            TokenTier::None => BackendError::keeps_its_tokens(name, "it has none"),
            _ => BackendError::keeps_its_tokens(name, "nothing there keeps a floor"),
        })
    }

    /// Ends the lease of a holder, whoever that is, as [`inspect`](Self::inspect) has shown
    /// it, and lets the next waiter in like a release. The holder is compared by its
    /// [`owner`](HolderInfo::owner) in the step that ends its lease, so that nobody who came
    /// since is broken in its place. Whether it held the lock until then: after an outage, a
    /// [`NotHeld`](Released::NotHeld) must not be the answer to the second of two commands of
    /// which the first has done it. The default is for a store that cannot.
    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        let _ = (key, holder);
        Err(BackendError::cannot_break(self.capabilities().name))
    }

    /// Takes a waiter out of the store's queue, as [`inspect`](Self::inspect) has shown it:
    /// its request fails with [`BackendErrorKind::TakenOut`], and the others keep their
    /// order. One that has been let in since is left alone. Else like
    /// [`break_lock`](Self::break_lock).
    ///
    /// [`BackendErrorKind::TakenOut`]: crate::backend::BackendErrorKind::TakenOut
    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        let _ = (key, waiter);
        Err(BackendError::keeps_its_waiters(self.capabilities().name))
    }

    /// What the store knows of a lock; `None` if nobody holds it, and it is not
    /// remembered as done.
    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError>;

    /// The locks whose key begins with `prefix` that are held or remembered as done, in no
    /// special order.
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError>;

    /// Of these, the first by key, `most` of them, and how many others there are: for somebody
    /// who looks again and again. The default asks for all of them, and is for a store that
    /// has them with one question; where each lock is a question of its own, only `most` are
    /// asked.
    async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, BackendError> {
        Ok(Listed::first_of(self.list(prefix).await?, most))
    }

    /// What the servers say of themselves that somebody who looks after locks should know:
    /// versions, settings. The default is for a store that says nothing.
    async fn examine(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Whether a holder that [`inspect`](Self::inspect) has told of is this owner.
    /// The default is for a store that shows owners as they are displayed, with
    /// more around them or not.
    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        holder.shows(owner)
    }

    /// The next owners whose leases the store has ended by itself, for stores
    /// that say so (a session that expired takes all of its leases with it).
    /// Cancel-safe. The default never resolves: then a loss shows at the next
    /// renewal.
    async fn next_losses(&self) -> Vec<Owner> {
        std::future::pending().await
    }

    /// Whether this backend knows, without asking the store, that the lease
    /// which it granted to this owner has ended. Asked once for each grant: a
    /// loss that [`next_losses`](Self::next_losses) told before the grant was
    /// taken found nobody. So a store that tells of losses says `true` here before
    /// it does. The default is `false`.
    fn has_ended(&self, owner: Owner) -> bool {
        let _ = owner;
        false
    }
}

/// What a store can promise; the layers above and the conformance suite go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A short name for messages: `redis`, `memory`.
    pub name: &'static str,
    /// Waiters of different processes are served in the order they came.
    pub fair: bool,
    /// What its fencing tokens are worth.
    pub tokens: TokenTier,
    /// What to set in the store to make its tokens strict, for messages;
    /// empty if nothing does.
    pub strict_with: &'static str,
    /// Knows [`Mode::Read`].
    pub read_write: bool,
    /// What to set in the store to have [`Mode::Read`], for messages; empty if nothing does.
    pub read_write_with: &'static str,
    /// Knows [`Mode::Permits`]. Such a store says whom it [has seen](Request::has_seen).
    pub permits: bool,
    /// What to do in the store to have [`Mode::Permits`], and why it has none, for messages:
    /// `leave … out of its URL (…)`; empty if nothing helps.
    pub permits_with: &'static str,
    /// Remembers a body that has been done (`once`), for up to
    /// [`max_ttl`](Self::max_ttl).
    pub once: bool,
    /// The same as [`permits_with`](Self::permits_with), of `once`.
    pub once_with: &'static str,
    /// The shortest lease it can keep; [`MIN_TTL`] if that is longer.
    pub min_ttl: Duration,
    /// The longest lease it can keep; ten years if that is shorter.
    pub max_ttl: Duration,
    /// A lease is rounded up to a multiple of this in the store, which so keeps
    /// the lock of a dead holder a little longer. Zero if it is not.
    pub ttl_step: Duration,
    /// The longest key it takes, in bytes, with the namespace.
    pub max_key_bytes: usize,
    /// Requests of one runtime reach the store in the order in which they were
    /// first polled, so that one for the same lock may be sent behind a
    /// release that is not answered yet. It is no promise that locks rest on.
    pub in_order: bool,
    /// The store is this process's memory: it needs no thread, and keeps
    /// tokio's clock, so that paused time drives it.
    pub local: bool,
}

impl Capabilities {
    /// A store that can do the least: no order, no tokens, no readers, no permits, no
    /// `once`. Set the fields that it does better.
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
    /// The store gives none; every token is [`FencingToken::NONE`].
    None,
    /// They rise unless the store loses what it confirmed (a failover, a
    /// restart without its last writes).
    BestEffort,
    /// They rise, whatever happens to the store.
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
    /// Who asks.
    pub owner: Owner,
    progress: Progress,
    followed: bool,
    done_for: Option<Duration>,
}

impl Request {
    /// A request with an owner of its own.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>, mode: Mode, ttl: Duration) -> Self {
        Self::of(Owner::unique(), Clock::Tokio, key, mode, ttl)
    }

    /// Whether a task of this runtime is about to ask for the same key, once it
    /// is woken: a release may then be sent together with that.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.followed
    }

    /// Its body was to run once, and has been done: a release leaves a mark for so long.
    #[must_use]
    pub fn done_for(&self) -> Option<Duration> {
        self.done_for
    }

    /// Notes that somebody holds the lock: to be called by a backend whenever the store has
    /// answered so. A caller who began before that and gives up is told of a
    /// timeout, and else of a store that does not answer.
    pub fn note_held(&self) {
        self.progress.held();
    }

    /// The same, by an answer to what was asked then.
    pub(crate) fn was_held_when(&self, asked: std::time::Instant) {
        self.progress.held_when(asked.into());
    }

    /// To be called by a backend that has permits, whenever it happens to see how somebody
    /// else shares the lock or waits for it: that callers name different numbers of permits
    /// for one key is then told, in a warning, once for the key.
    pub fn has_seen(&self, other: Mode) {
        if let (Mode::Permits(most), Mode::Permits(other)) = (self.mode, other)
            && most != other
            && let Some(numbers) = self.progress.numbers()
        {
            numbers.saw(&self.key, most, other);
        }
    }

    /// Who is told of what it [has seen](Self::has_seen).
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
        }
    }

    /// This request once more, of an owner of its own.
    pub(crate) fn again(&self) -> Result<Self, BackendError> {
        let owner = self.owner.draw_again()?;
        self.progress.asks_as(owner);
        Ok(Self {
            owner,
            followed: false,
            done_for: None,
            ..self.clone()
        })
    }

    /// This request, of the owner that it was granted to.
    #[cfg(any(test, feature = "redis", feature = "simulation"))]
    pub(crate) fn granted_to(&self, owner: Owner) -> Self {
        Self {
            owner,
            ..self.clone()
        }
    }

    /// As whom the store was asked last for this request, or for one that was made
    /// of it.
    pub(crate) fn asker(&self) -> Owner {
        self.progress.asker().unwrap_or(self.owner)
    }

    /// This request, with another one behind its release.
    pub(crate) fn followed(mut self) -> Self {
        self.followed = true;
        self
    }

    /// This request, to be released as one whose body has been done, if it has.
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

/// A lease as the store gave it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The first of the [`TOKENS_PER_GRANT`](crate::token::TOKENS_PER_GRANT)
    /// numbers that this grant reserved: every later grant of the key has a
    /// token above all of them. [`FencingToken::NONE`] without tokens.
    pub token: FencingToken,
    /// When the last request that the store confirmed was *sent*: the lease
    /// lasts at least its ttl from here, by the local monotonic clock.
    pub sent_at: Instant,
    /// The ttl that the store gave, if that is shorter than the one asked for.
    /// It holds for the renewals of this lease too.
    pub ttl: Option<Duration>,
}

impl Grant {
    /// A grant with this token, whose request was sent at `sent_at`.
    #[must_use]
    pub fn new(token: FencingToken, sent_at: Instant) -> Self {
        Self {
            token,
            sent_at,
            ttl: None,
        }
    }

    /// A grant of a lease that lasts no longer than `ttl`, whatever was asked for.
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
    /// The lease lasts its ttl from `sent_at`, when the request was sent.
    Extended {
        /// When the confirmed request was sent.
        sent_at: Instant,
    },
    /// The owner does not hold the lock, and never will again.
    Gone,
}

impl Renewed {
    /// The lease lasts its ttl from here on: from when the confirmed request was sent.
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

/// What a store knows of a lock that is held, or remembered as done.
///
/// With the feature `serde`, this and its parts can be sent elsewhere and read back: times and
/// durations as `serde` has those of the standard library, in seconds and nanoseconds. What an
/// older version has not written is read as unknown, or as none.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The key: with its namespace from a backend, without it from
    /// `LockManager::inspect`.
    pub key: String,
    /// How it is held. By readers and permits: by permits, and by the most that one of
    /// them allows for. One that is done was held for writing.
    pub mode: Mode,
    /// Who holds it: one writer, or every reader and permit.
    pub holders: Vec<HolderInfo>,
    /// How many requests wait for it, if the store knows: one without a queue may not. The
    /// tasks that wait inside one process count as one request.
    pub waiters: Option<usize>,
    /// Who waits in the store's queue, in its order; the first thousand of them. From
    /// `inspect`, on a store with a queue.
    #[cfg_attr(feature = "serde", serde(default))]
    pub queue: Vec<WaiterInfo>,
    /// Its body was to run once, and has been done: by whom, and for how long that is
    /// remembered. Nobody holds it meanwhile.
    pub done: Option<HolderInfo>,
    /// Where the store keeps it, for who looks there with the store's own tools: keys of
    /// Redis, rows, nodes, an item. Not each of them is there at all times. From `inspect`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stored_as: Vec<String>,
}

impl LockInfo {
    /// What is known of a held lock. `waiters` is a number, or `None` on a store that does not
    /// know who waits.
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

    /// With those who wait, in their order.
    #[must_use]
    pub fn with_queue(self, queue: Vec<WaiterInfo>) -> Self {
        Self { queue, ..self }
    }

    /// What is known of a lock whose body has been done.
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
    /// Those that were looked at.
    pub locks: Vec<LockInfo>,
    /// How many there are besides, of which nothing is known but that. In a store where each
    /// lock is looked at by itself, one that ended meanwhile may be among them.
    pub others: usize,
}

impl Listed {
    /// So many of these.
    #[must_use]
    pub fn first_of(locks: Vec<LockInfo>, most: usize) -> Self {
        let mut listed = Self::with_others(locks, 0);
        listed.others = listed.locks.len().saturating_sub(most);
        listed.locks.truncate(most);
        listed
    }

    /// All that were looked at, of more.
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
    /// The process that has asked, if the store says so: locks that other programs hold
    /// have none.
    pub process: Option<ProcessInfo>,
    /// Since when it holds the lock, if the store knows. Else it is not longer than since
    /// [`asked_at`](ProcessInfo::asked_at).
    pub since: Option<SystemTime>,
    /// `since` is by the clock of the holder's host, which has written it down, and not by
    /// the store's.
    #[cfg_attr(feature = "serde", serde(default))]
    pub since_by_holder: bool,
    /// How long the lease lasts unless it is renewed, if the store says so.
    pub expires_in: Option<Duration>,
    /// The fencing token of its grant, if the store keeps it. That of a call which took the
    /// lock over from another one of the same process is up to 63 above.
    pub token: Option<FencingToken>,
}

impl HolderInfo {
    /// What is known of one holder: by an owner as it is displayed, with more around it
    /// or not, also its process.
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

    /// One that has held the lock since then, by the store's clock.
    #[must_use]
    pub fn since(self, since: Option<SystemTime>) -> Self {
        Self { since, ..self }
    }

    /// One that has held the lock since then, by its own clock.
    #[must_use]
    pub fn since_by_holder(self, since: Option<SystemTime>) -> Self {
        Self {
            since,
            since_by_holder: since.is_some(),
            ..self
        }
    }

    /// One whose grant has this token.
    #[must_use]
    pub fn token(self, token: Option<FencingToken>) -> Self {
        Self { token, ..self }
    }

    /// One of this process, which the owner does not tell.
    #[must_use]
    pub fn process(self, process: Option<ProcessInfo>) -> Self {
        Self { process, ..self }
    }

    /// One whose process stands elsewhere than in its owner: in this text.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn of_process(self, text: &str) -> Self {
        self.process(ProcessInfo::of(text))
    }

    /// Whether the owner stands in what the store has, as it is displayed.
    pub(crate) fn shows(&self, owner: Owner) -> bool {
        let owner = owner.to_string();
        let mut found = self.owner.match_indices(&owner);
        found.any(|(at, _)| {
            let rest = self.owner.get(at + owner.len()..).unwrap_or_default();
            !rest.starts_with(|next: char| next.is_ascii_alphanumeric())
        })
    }
}

/// One who waits for a lock.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The owner as the store has it, for looking it up there.
    pub owner: String,
    /// What it asks for.
    pub mode: Mode,
    /// The process that asks, if the store says so.
    pub process: Option<ProcessInfo>,
}

impl WaiterInfo {
    /// One of this process, which the owner does not tell.
    #[must_use]
    pub fn process(self, process: Option<ProcessInfo>) -> Self {
        Self { process, ..self }
    }

    /// One whose process stands elsewhere than in its owner: in this text.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn of_process(self, text: &str) -> Self {
        self.process(ProcessInfo::of(text))
    }

    /// What is known of one who waits: by an owner as it is displayed, with more around it
    /// or not, also its process.
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
    /// The name of its machine.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// What it calls itself ([`Config::label`](crate::Config::label)): by default, its
    /// program's name.
    pub label: String,
    /// When the request was begun that has or awaits the lock, by the clock of that host.
    /// Another task of the process may have waited for longer: it asks for all of them.
    pub asked_at: SystemTime,
}

impl ProcessInfo {
    /// The process of this number on a machine, by what it calls itself, whose request was
    /// begun then by the clock there. A store that keeps owners as they are displayed needs no
    /// such: it is read from those.
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
