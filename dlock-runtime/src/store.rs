//! What a store gives to the engine: its primitives, and nothing else.
//!
//! A primitive is one attempt, over whatever connection the store has for the
//! runtime that it is called on. It never repeats itself, sets no timer but that
//! of the deadline it is given, and says of a failure the two things that only
//! the store can know: whether another attempt may help, and what may have come
//! of this one. Waiting, repeating, giving back and telling who should ask again
//! are the [engine](crate::Engine)'s.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::backend::{
    BackendError, BackendErrorKind, Capabilities, Finding, HolderInfo, Listed, LockInfo, Owner,
    Released, Renewed, Request, Servers, TokenTier, WaiterInfo,
};
pub use crate::deadline::{Deadline, Elapsed};
pub use crate::engine::events::{Events, Scope};
pub use crate::engine::time::{Backoff, Time};
pub use crate::engine::waiters::Waiter;
#[doc(hidden)]
pub use crate::simulated::Simulated;

/// A store that keeps locks.
///
/// [`Engine`](crate::Engine) makes a backend of it. A complete small one, locks in a
/// directory of files, is the example `own_store`; `docs/design/a-new-store.md` leads
/// through it. Both are young: what a store has to give may change with any minor
/// version.
pub trait Store: Send + Sync + Sized + 'static {
    /// What its URL says. A copy makes another backend, not yet connected.
    type Config: Clone + fmt::Debug + Send + Sync + 'static;

    /// What proves a grant: `()`, the number of an item, a key with its revision
    /// and lease, a node with its session. With `()`, the engine has no entry for
    /// a lease at all.
    type Record: Clone + Send + Sync + 'static;

    /// What one operation remembers from attempt to attempt; and what is on its
    /// way. So it is alive for as long as the caller is, and goes to
    /// [`abandon`](Self::abandon) when the caller leaves.
    type Attempt: Default + Send + 'static;

    /// Commands on their way when the caller left.
    type Flight: Send + 'static;

    /// What a waiter waits for besides being woken: the end of the one before.
    type Watch: Send + 'static;

    /// What is remembered of a key from look to look, while somebody waits.
    type Seen: Default + Send + 'static;

    /// A lease that nobody extends ends by itself in the store, all of it. Else the engine
    /// ends it when its time has passed, by a [`release`](Self::release) of its
    /// record as one that was [`Left`](Ending::Left).
    const EXPIRES: bool = true;

    /// How the locks that are waited for are looked at.
    const LOOKS: Looks;

    /// How often a process with waiters shows that it is alive: who waits has a place
    /// for as long as others think so. `None`: a place lasts by itself, or there is
    /// none.
    const BEAT: Option<Duration> = Some(Duration::from_secs(1));

    /// After so long without a beat, others take a process for dead, and the places
    /// of its waiters are void. At least 4 s.
    const DEAD_AFTER: Duration = Duration::from_secs(8);

    /// How long a grant waits for its waiter to ask, where one may be told
    /// ([`Events::granted`]) to an owner who does not wait any more.
    const CLAIM: Option<Duration> = None;

    /// The pauses between the attempts of an operation: the first, and the longest.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

    /// Connections belong to the manager's runtime, and so all that is asked of this
    /// is asked there: each operation is a task. Else it is the caller's that asks.
    const AT_HOME: bool = false;

    /// How long a flight may take to come to its end before a release is sent
    /// beside it. The default is for one that flies on the caller's runtime, which
    /// may be blocked.
    const FLIES_FOR: Duration = Duration::from_millis(250);

    /// Checks the settings, and adds what only the servers know, where it cannot be
    /// [opened](Self::open) without that.
    fn complete(
        config: Self::Config,
        request_timeout: Duration,
    ) -> impl Future<Output = Result<Self::Config, BackendError>> + Send {
        let _ = request_timeout;
        async { Ok(config) }
    }

    /// Called on the manager's runtime.
    fn open(config: Self::Config, context: Context) -> Self;

    /// Connects, and sees whether the store is one that can keep locks.
    fn check(&self, deadline: Deadline) -> impl Future<Output = Result<(), Failure>> + Send;

    /// What its servers say of themselves that somebody who looks after locks should know.
    /// What [`check`](Self::check) warns of is in it too.
    fn examine(&self, deadline: Deadline) -> impl Future<Output = Vec<Finding>> + Send {
        let _ = deadline;
        async { Vec::new() }
    }

    /// The engine stops: nothing follows. `holds`: there are leases that are to
    /// last beyond it (`min_hold`).
    fn shut_down(&self, holds: bool, deadline: Deadline) -> impl Future<Output = ()> + Send {
        let _ = (holds, deadline);
        async {}
    }

    /// All was given back, as far as this engine knows, and nobody asks for a lock any
    /// more: waits for others to whom it has left something, and ends what is not to
    /// be there when the process ends. What is asked all the same is answered.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Ends what [`open`](Self::open) began and [`Context::spawn`] does not end.
    fn close(&self) {}

    /// What the locks of this store can do.
    fn capabilities(config: &Self::Config) -> Capabilities;

    /// Where it is, for the question why it does not answer. `None`: it has no
    /// servers that could be connected to.
    fn servers(config: &Self::Config) -> Option<Servers>;

    /// What its tokens are worth, if that was found out only when it ran.
    fn tokens(&self) -> Option<TokenTier> {
        None
    }

    /// Whether it remembers what was done ([`Ending::Done`]), if that was found out only when
    /// it ran.
    fn remembers(&self) -> Option<bool> {
        None
    }

    /// Where it is, if that was found out only when it ran.
    fn located(&self) -> Option<Servers> {
        None
    }

    /// Keeps a floor for the fencing tokens, if there is none as high: each
    /// [`Granted`] that is made from what the store says from now on, to whichever process, is
    /// above it.
    fn raise_tokens(
        &self,
        floor: u64,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = (floor, deadline);
        let refused = BackendError::keeps_its_tokens(None, "nothing there keeps a floor");
        async { Err(Failure::refused(refused)) }
    }

    // One operation.

    /// What a request begins with.
    fn opening(&self, request: &Request) -> Opening;

    /// How long one who is ready to wait leaves the lock to other processes before
    /// it asks.
    fn hold_back(&self, request: &Request) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Asks for the lock.
    fn take(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Take<Self>, Failure>> + Send;

    /// How long a renewal is repeated before the keeper of the leases is told that
    /// some have failed: those beside them wait for that. `shortest` is the
    /// shortest ttl of them.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        let _ = shortest;
        request_timeout
    }

    /// Extends leases, as many of them together as it can; an answer for each.
    fn renew(
        &self,
        due: &mut [Due<Self>],
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Vec<Result<Renewed, Failure>>> + Send;

    /// Gives back a lease, and with [`Ending::Left`] a place in the queue too. On
    /// an open connection it is on its way when it was polled once.
    fn release(
        &self,
        request: &Request,
        record: Option<&Self::Record>,
        ending: Ending,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Freed, Failure>> + Send;

    /// Removes the mark of [`Ending::Done`]. Whether there was one.
    fn forget(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<bool, Failure>> + Send {
        let _ = (key, deadline, attempt);
        async { Err(Failure::refused(BackendError::remembers_nothing(None))) }
    }

    /// Ends what somebody has, whoever that is, as [`inspect`](Self::inspect) has shown it: a
    /// lease like a [`release`](Self::release) of its holder, or a place in the queue, whose
    /// waiter is then refused as [taken out](BackendError::taken_out). Only that: it compares
    /// the owner in the step that ends it. [`Freed::NotHeld`]: it has ended before.
    fn break_off(
        &self,
        broken: &Break,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Freed, Failure>> + Send {
        let _ = (deadline, attempt);
        let refused = broken.refused(None);
        async { Err(refused) }
    }

    /// The error of an operation that nobody has answered for so long.
    fn silent(&self, for_long: Duration) -> BackendError;

    // What is left behind.

    /// The caller has left: what is on its way, if anything is. Called from a
    /// `Drop`, on any thread.
    fn abandon(
        &self,
        request: &Request,
        attempt: Self::Attempt,
        left: &LeftBehind,
    ) -> Abandoned<Self>;

    /// Waits on the manager for what became of a flight. In [`Followed::Settled`]
    /// a release behind it has undone it, or it did nothing.
    fn follow(
        &self,
        flight: Self::Flight,
        request: &Request,
    ) -> impl Future<Output = Followed> + Send {
        let _ = (flight, request);
        async { Followed::Unknown }
    }

    /// How long a command may still be run that was sent then and never answered.
    fn late(&self, request: &Request, record: Option<&Self::Record>, sent_at: Instant) -> Late;

    // Records and sessions.

    /// The record of a lease that the table no longer has. `None`: without one
    /// there is no lease.
    fn forgotten() -> Option<Self::Record> {
        None
    }

    /// How long a lease lasts at most, whatever was asked for.
    fn longest_lease(record: &Self::Record) -> Option<Duration> {
        let _ = record;
        None
    }

    /// How long a lease lasts at most of one who asks so, whatever the ttl: others who use
    /// the lock may shorten it.
    fn longest_for(&self, request: &Request) -> Option<Duration> {
        let _ = request;
        None
    }

    /// The lease or session that the grant ends with.
    fn scope(record: &Self::Record) -> Option<Scope> {
        let _ = record;
        None
    }

    /// Whether it has ended. A store says `true` here before it tells
    /// [`Events::ended`].
    fn has_ended(&self, scope: Scope) -> bool {
        let _ = scope;
        false
    }

    // Waiting.

    /// Waits until the one before may have gone. The engine also ends it, at a
    /// wake-up. An error counts like that of an attempt.
    fn wait(
        &self,
        request: &Request,
        watch: Self::Watch,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = (request, watch, attempt);
        std::future::pending()
    }

    /// How soon a lock that is waited for is looked at, for the first time and
    /// after each look.
    fn pace(&self, seen: &mut Self::Seen) -> Duration {
        let _ = seen;
        Duration::from_secs(1)
    }

    /// Looks at locks that are waited for, and says in `waited` who should ask.
    /// With `beat`, the process shows that it is alive, in the same trip.
    fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Undoes a grant to an owner who does not wait for it any more, by its place in
    /// the queue; and what other places this process has there of owners whom
    /// `knows` does not know: they have gone for good.
    fn disown(
        &self,
        key: &str,
        granted: &str,
        knows: &(dyn Fn(Owner) -> bool + Sync),
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = (key, granted, knows, deadline, attempt);
        async { Ok(()) }
    }

    /// The last waiter has gone: the process need not be thought alive any more.
    fn farewell(&self, deadline: Deadline) -> impl Future<Output = ()> + Send {
        let _ = deadline;
        async {}
    }

    // Looking.

    /// Whether a holder that was shown is this owner, whose lease has this record if
    /// it is one of this process. The default is for a store that shows owners as they
    /// are displayed, with more around them or not.
    fn is_owner(holder: &HolderInfo, owner: Owner, record: Option<&Self::Record>) -> bool {
        let _ = record;
        holder.shows(owner)
    }

    /// Where it keeps this lock, as its own tools would ask for it
    /// ([`LockInfo::stored_as`]).
    fn stored_as(&self, key: &str) -> Vec<String> {
        let _ = key;
        Vec::new()
    }

    /// What is known of a lock; `None` if nobody holds it.
    fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Option<LockInfo>, Failure>> + Send;

    /// The locks that are held whose keys begin with `prefix`. `None`: there is more to ask, for which there is as much time again.
    fn list(
        &self,
        prefix: &str,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Option<Vec<LockInfo>>, Failure>> + Send;

    /// The first of these by key, `most` of them, and how many others there are. The default
    /// asks for all, and is for a store that has them with one question: a store that looks at
    /// each lock by itself looks at no more than `most`.
    fn list_some(
        &self,
        prefix: &str,
        most: usize,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Option<Listed>, Failure>> + Send {
        async move {
            let all = self.list(prefix, deadline, attempt).await?;
            Ok(all.map(|all| Listed::first_of(all, most)))
        }
    }
}

/// What a store is given when it is opened. It asks for time and tasks nowhere
/// else.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The clock, and the tasks of the manager's runtime.
    pub time: Time,
    /// Where the store says what happens of its own accord.
    pub events: Events,
    /// How long the store may be silent before an operation fails.
    pub request_timeout: Duration,
    /// What the service calls itself, for the names of connections.
    pub label: Option<Arc<str>>,
    /// The engine has stopped.
    pub(crate) stopped: CancellationToken,
}

impl Context {
    /// A task on the manager's runtime, until it has ended or the engine has stopped.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.time.spawn_until(self.stopped.clone(), Box::pin(work));
    }

    /// How long one answer may take. When none has come, there is time left to ask
    /// another server, or over a new connection.
    pub fn patience(&self) -> Duration {
        self.request_timeout.mul_f64(0.4)
    }
}

/// How the locks that are waited for are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Looks {
    /// All in one go, whenever one of them is due: waiters are told by the store,
    /// and have places in its queues.
    Together,
    /// Each when it is due, with those that are due soon: nobody is told.
    Each,
}

/// What a request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opening {
    /// [`Want::First`]. Then one who waits asks for a place.
    First,
    /// [`Want::First`], by a command that knows its owner: as often as it takes.
    Cheap,
    /// [`Want::Try`]: a place in the queue costs more than a lock that is free, or
    /// there is none.
    Try,
    /// One who waits asks for a place at once: it is the lock too.
    Place,
}

/// How much is asked for.
///
/// A store has to answer each of these, so there will be no more of them within a version that
/// counts as compatible: match all. The same holds for [`Ending`] and [`Whose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The lock, in the cheapest way. After [`Opening::First`] by a command that
    /// cannot tell a success of its own from somebody else's: never sent twice.
    First,
    /// The lock, if it is free.
    Try,
    /// The lock, or a place in its queue if it has one. Who cannot be told may be
    /// passed over, and so listens first. With `beat`, others must be told that this
    /// process is alive.
    Queue {
        /// Nobody has been told for a while.
        beat: bool,
    },
}

/// The answer to a question for the lock.
#[non_exhaustive]
pub enum Take<S: Store> {
    /// It has the lock.
    Granted(Granted<S>),
    /// Somebody holds it, and nothing is left of the request.
    Busy,
    /// Its body has been done, which is remembered ([`Ending::Done`]). Nothing is left of
    /// this attempt; the place of an earlier one is given back.
    Done,
    /// It has a place in the queue, and is told.
    Queued,
    /// It has a place in the queue, and watches the one before.
    Behind(Behind<S>),
    /// Nobody has it: several ask at a time.
    Contended,
    /// It had a place, and has none any more: the next attempt is for another.
    /// With a record, something of the lost one may be there or come yet, and is
    /// given back by that.
    PlaceLost(Option<S::Record>),
}

/// The place before one's own.
#[non_exhaustive]
pub struct Behind<S: Store> {
    /// What is looked at for it, in place of the lock's key: who waits for the
    /// same stands under one name.
    pub name: Arc<str>,
    /// What [`Store::wait`] waits for.
    pub watch: S::Watch,
}

impl<S: Store> Behind<S> {
    /// Who waits for the same stands under one name.
    pub fn new(name: impl Into<Arc<str>>, watch: S::Watch) -> Self {
        Self {
            name: name.into(),
            watch,
        }
    }
}

/// A lock that was had.
#[non_exhaustive]
pub struct Granted<S: Store> {
    /// The first of the numbers that were drawn; 0 from a store without any.
    pub token: u64,
    /// When the request was sent that the lease counts from.
    pub sent_at: Instant,
    /// What proves it.
    pub record: S::Record,
}

impl<S: Store> Granted<S> {
    /// By a request that was sent then.
    pub fn new(token: u64, sent_at: Instant, record: S::Record) -> Self {
        Self {
            token,
            sent_at,
            record,
        }
    }
}

/// One lease of those that are to be extended.
#[non_exhaustive]
pub struct Due<S: Store> {
    /// As it was granted.
    pub request: Request,
    /// What proves it, to be replaced by what proves it from now on.
    pub record: S::Record,
}

impl<S: Store> Due<S> {
    /// As the engine asks for it; for tests of a store.
    pub fn new(request: Request, record: S::Record) -> Self {
        Self { request, record }
    }
}

/// Why a lock is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The body has ended.
    Released,
    /// The caller left on the way: there may be a lease, a place, both or none.
    #[default]
    Left,
    /// The body was to run once, and has been done: a mark stays in the lock's place for
    /// so long, set in the same step, and everybody who waits is told of it
    /// ([`Take::Done`]). Where its own mark is there already, a release before this one
    /// has done it, and that is [`Freed::Released`]. It knows its owner.
    Done(Duration),
    /// It was a vote for one who could not have a majority: nobody waits for its end,
    /// and to tell of it would only be the cause of the next election.
    Outvoted,
}

/// What is to be ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Break {
    /// The lock.
    pub key: Arc<str>,
    /// Whose lease or place.
    pub whose: Whose,
}

/// Whose lease or place is to be ended, as it was shown.
#[derive(Clone, Debug)]
pub enum Whose {
    /// The lease of one who has the lock.
    Holder(HolderInfo),
    /// The place of one who waits.
    Waiter(WaiterInfo),
}

impl Break {
    /// Who is to lose the lock, for a store that lets nobody out of its queue.
    ///
    /// # Errors
    ///
    /// A waiter is to be taken out.
    pub fn only_holder(&self, store: &str) -> Result<&HolderInfo, Failure> {
        match &self.whose {
            Whose::Holder(holder) => Ok(holder),
            Whose::Waiter(_) => Err(self.refused(store)),
        }
    }

    /// A store that cannot, by its name: `"etcd"`. `None`: "this store".
    pub fn refused<'a>(&self, store: impl Into<Option<&'a str>>) -> Failure {
        Failure::refused(match self.whose {
            Whose::Holder(_) => BackendError::cannot_break(store),
            Whose::Waiter(_) => BackendError::keeps_its_waiters(store),
        })
    }
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freed {
    /// It was held, and is not any more.
    Released,
    /// There was nothing. If a release before this one was not answered, that one
    /// has done it.
    NotHeld,
    /// There was nothing, and it may have gone without a release.
    Lost,
}

impl Freed {
    /// What the caller is told, if a release before it may have been run.
    pub(crate) fn released(self, repeated: bool) -> Released {
        match self {
            Self::Released => Released::Released,
            Self::NotHeld if repeated => Released::Released,
            Self::NotHeld | Self::Lost => Released::NotHeld,
        }
    }
}

/// An attempt that came to nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// Whether another attempt may help.
    pub next: Next,
    /// What may have come of it.
    pub applied: Applied,
}

/// Why an attempt came to nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The store, or the way there, said so.
    Error(BackendError),
    /// It could not be asked in the time that was left. What came of an attempt
    /// before says more.
    NotReached(BackendError),
    /// No answer came. For how long tells the operation, not the attempt.
    Silence,
}

/// Whether another attempt may help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// At once, a few times in a row: it was sent to the wrong place, and the right
    /// one is known.
    Now,
    /// After a pause.
    Pause,
    /// Not: it would be refused again.
    #[default]
    Stop,
}

/// What may have come of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// Nothing, for certain.
    No,
    /// It was answered, and may have been run in part: the request may have the lock
    /// or a place.
    Answered,
    /// The answer may come yet; the attempt has it.
    OnItsWay,
    /// The answer will not come, and the command may be run yet.
    Unknown {
        /// When the command was sent.
        sent_at: Instant,
    },
}

impl Failure {
    /// Why, whether another attempt may help, and what may have come of this one.
    pub fn new(cause: Cause, next: Next, applied: Applied) -> Self {
        Self {
            cause,
            next,
            applied,
        }
    }

    /// No answer came, and it may be asked again.
    pub fn silent(applied: Applied) -> Self {
        Self::new(Cause::Silence, Next::Pause, applied)
    }

    /// The store will not do it, or not now, and has not.
    pub fn refused(error: BackendError) -> Self {
        let next = if error.kind() == BackendErrorKind::Unavailable {
            Next::Pause
        } else {
            Next::Stop
        };
        Self::new(Cause::Error(error), next, Applied::No)
    }

    /// There was no time to ask.
    pub fn not_sent() -> Self {
        Self::silent(Applied::No)
    }
}

/// What a caller that has left may have at the store, as the engine knows it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LeftBehind {
    /// An attempt was under way, or may be yet.
    pub in_flight: bool,
    /// When the last was sent whose outcome is unknown.
    pub unknown: Option<Instant>,
    /// It has the lock or a place.
    pub there: bool,
    /// As what it is given back.
    pub ending: Ending,
}

impl LeftBehind {
    /// Whether there is nothing to see to.
    pub fn is_nothing(&self) -> bool {
        !self.in_flight && self.unknown.is_none() && !self.there
    }

    /// Nothing but what may come of a command that was sent then.
    pub(crate) fn unknown(since: Option<Instant>) -> Self {
        Self {
            unknown: since,
            ..Self::default()
        }
    }

    /// An attempt has failed.
    pub(crate) fn note(&mut self, failure: &Failure) {
        self.in_flight = failure.applied == Applied::OnItsWay;
        match failure.applied {
            Applied::Unknown { sent_at } => self.unknown = Some(sent_at),
            Applied::Answered => self.there = true,
            Applied::No | Applied::OnItsWay => {}
        }
    }
}

/// What the engine has to see to, besides what it knows itself of
/// ([`LeftBehind`]).
#[non_exhaustive]
pub struct Abandoned<S: Store> {
    /// What is on its way, to be [followed](Store::follow).
    pub flight: Option<S::Flight>,
    /// By which it is given back.
    pub record: Option<S::Record>,
}

impl<S: Store> Abandoned<S> {
    /// What is on its way, and by which the rest is given back.
    pub fn new(flight: Option<S::Flight>, record: Option<S::Record>) -> Self {
        Self { flight, record }
    }

    /// Nothing is on its way: one release tells.
    pub fn at_rest(record: Option<S::Record>) -> Self {
        Self::new(None, record)
    }

    /// What is on its way, if anything is.
    pub fn in_flight(flight: Option<S::Flight>) -> Self {
        Self::new(flight, None)
    }
}

/// What has become of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Followed {
    /// Nothing is left of it.
    Settled,
    /// It was run: a release undoes it.
    Run,
    /// Nobody knows.
    Unknown,
}

/// How long a command may still be run that was never answered.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Late {
    /// A release that was answered shows that it will not be.
    Never,
    /// What it did has ended by then, if it was run in time. The store may have
    /// stood still meanwhile; so the last word is its answer.
    Until(Deadline),
    /// It does nothing once this has ended, and what it did ends with it. A store
    /// that says so sees to it that this does end, once nobody needs it.
    In(Scope),
}

/// A key that somebody waits for, or the name of a [`Behind`].
#[non_exhaustive]
pub struct Waited<S: Store> {
    /// The key, or the name.
    pub key: Arc<str>,
    /// Who waits for it in this process.
    pub waiters: Vec<Waiter>,
    /// What was remembered at the last look.
    pub seen: S::Seen,
    /// Set by [`Store::recheck`]: nobody will get it, and why.
    pub refused: Option<BackendError>,
}

impl<S: Store> Waited<S> {
    /// All who wait for it have cause to ask.
    pub fn wake_all(&mut self) {
        for waiter in &mut self.waiters {
            waiter.wake = true;
        }
    }

    /// The waiter of this owner has, if there is one.
    pub fn wake(&mut self, is: impl Fn(Owner) -> bool) {
        for waiter in self.waiters.iter_mut().filter(|waiter| is(waiter.owner)) {
            waiter.wake = true;
        }
    }
}
