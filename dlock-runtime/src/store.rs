//! What a store gives to the engine: its primitives, and nothing else.
//!
//! A primitive is one attempt, over the connection that the store has for the runtime on which it
//! is called. It never repeats itself, and sets no timer except for the deadline it is given. For
//! a failure it reports the two things that only the store can know: whether another attempt may
//! help, and what this one may have done. Waiting, repeating, giving back and waking waiters are
//! the work of the [engine](crate::Engine).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::apart::apart;
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
/// [`Engine`](crate::Engine) makes a backend of it. The example `own_store` is a small, complete
/// store that keeps locks in a directory of files; `docs/design/a-new-store.md` explains it step
/// by step. Both are young: what a store must provide may change with any minor version.
///
/// All operations may run at once, on any runtime, also several for one owner: a cleanup may send
/// a [`release`](Self::release) beside a [`take`](Self::take) that is in flight. Only
/// [`recheck`](Self::recheck) is not called again before it has ended. The store ends each attempt
/// by its deadline, for example by [`Time::bound`]; the engine sets no timer around it.
pub trait Store: Send + Sync + Sized + 'static {
    /// The settings from its URL. A copy of them makes another backend, not yet connected.
    type Config: Clone + fmt::Debug + Send + Sync + 'static;

    /// What proves a grant: `()`, the number of an item, a key with its revision and lease, a
    /// node with its session. With `()`, the engine keeps no entry for a lease at all.
    type Record: Clone + Send + Sync + 'static;

    /// What one operation remembers from attempt to attempt, including commands that are in
    /// flight. It lives as long as the caller waits. That of an acquisition ([`take`](Self::take),
    /// [`wait`](Self::wait)) is passed to [`abandon`](Self::abandon) when the caller leaves; that
    /// of any other operation is dropped.
    type Notes: Default + Send + 'static;

    /// Commands that were in flight when the caller left.
    type Flight: Send + 'static;

    /// What a waiter watches in addition to being woken: the end of the place before its own.
    type Watch: Send + 'static;

    /// What is remembered of a key from one look to the next, while somebody waits for it.
    type Seen: Default + Send + 'static;

    /// Whether the store ends every part of a lease by itself if nobody extends it. If not, the
    /// engine ends it when its time has passed, by a [`release`](Self::release) of its record
    /// with [`Ending::Left`].
    const EXPIRES: bool = true;

    /// How the store looks at the locks that are waited for.
    const LOOKS: Looks;

    /// How often a process with waiters shows that it is alive. Its waiters keep their places
    /// only as long as other processes think so. `None`: a place lasts without this, or there are
    /// no places.
    const BEAT: Option<Duration> = Some(Duration::from_secs(1));

    /// A process that has not shown for this long that it is alive counts as dead for the others,
    /// and the places of its waiters become void. At least 4 s.
    const DEAD_AFTER: Duration = Duration::from_secs(8);

    /// How long a grant waits for its waiter to claim it, if the store may report
    /// ([`Events::granted`]) a grant to an owner that no longer waits.
    const CLAIM: Option<Duration> = None;

    /// The pauses between the attempts of an operation: the first and the longest.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

    /// Connections belong to the manager's runtime, so each operation runs there as a task.
    /// Otherwise it runs on the caller's runtime.
    const ON_MANAGER: bool = false;

    /// How long a flight may take to end before the cleanup sends a release without waiting for
    /// it. The default is for a flight on the caller's runtime, which may be blocked. Such a
    /// release may come before the command that is in flight. It is repeated behind that command,
    /// but a shutdown does not wait for that once one release was answered. A store whose
    /// [`follow`](Self::follow) always comes to an end sets a longer time: then a shutdown waits
    /// for that end, or for the ttl.
    const FLIGHT_LIMIT: Duration = Duration::from_millis(250);

    /// Checks the settings, and adds what only the servers know if the store cannot be
    /// [opened](Self::open) without it.
    fn complete(
        config: Self::Config,
        request_timeout: Duration,
    ) -> impl Future<Output = Result<Self::Config, BackendError>> + Send {
        let _ = request_timeout;
        async { Ok(config) }
    }

    /// Creates the store. Called on the manager's runtime.
    fn open(config: Self::Config, context: Context) -> Self;

    /// Connects, and checks that the store is one that can keep locks.
    fn check(&self, deadline: Deadline) -> impl Future<Output = Attempted<()>> + Send;

    /// What its servers report about themselves that an operator of locks should know. Includes
    /// what [`check`](Self::check) warns about.
    fn examine(&self, deadline: Deadline) -> impl Future<Output = Vec<Finding>> + Send {
        let _ = deadline;
        async { Vec::new() }
    }

    /// The engine stops, and no operation follows. `holds`: there are leases that must outlast
    /// the engine (`min_hold`).
    fn shut_down(&self, holds: bool, deadline: Deadline) -> impl Future<Output = ()> + Send {
        let _ = (holds, deadline);
        async {}
    }

    /// Called when everything has been given back, as far as this engine knows, and nobody asks
    /// for a lock any more. Waits for others that have taken over work of this store, and ends
    /// what must not exist when the process ends. Operations that are called nevertheless are
    /// answered.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Waits until servers that this store itself looks after were told what requests have left of
    /// this lock until now. `None`: nothing that could keep the lock from anybody.
    #[doc(hidden)]
    fn remains(&self, _key: &str) -> Option<futures_util::future::BoxFuture<'_, ()>> {
        None
    }

    /// Ends what [`open`](Self::open) began, except for tasks of [`Context::spawn`].
    fn close(&self) {}

    /// What the locks of this store can do.
    fn capabilities(config: &Self::Config) -> Capabilities;

    /// Where the servers are, for finding out why they do not answer. `None`: the store has no
    /// servers that one could connect to.
    fn servers(config: &Self::Config) -> Option<Servers>;

    /// What its tokens are worth, if this is found out only at run time.
    fn tokens(&self) -> Option<TokenTier> {
        None
    }

    /// Whether the store remembers what was done ([`Ending::Done`]), if this is found out only at
    /// run time.
    fn remembers(&self) -> Option<bool> {
        None
    }

    /// Where the servers are, if this is found out only at run time.
    fn located(&self) -> Option<Servers> {
        None
    }

    /// Keeps a floor for the fencing tokens, unless there is a higher one: from now on, each
    /// [`Granted`] that is made from an answer of the store, in any process, is above it.
    fn raise_tokens(
        &self,
        floor: u64,
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<()>> + Send {
        let _ = (floor, deadline);
        let refused = BackendError::cannot_raise_tokens(None, "nothing there keeps a floor");
        async { Err(Failure::refused(refused)) }
    }

    // One operation.

    /// How an acquisition begins.
    fn opening(&self, request: &Request) -> Opening;

    /// How long a request that is ready to wait leaves the lock to other processes before it
    /// asks.
    fn hold_back(&self, request: &Request) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Asks for the lock. A command without an answer is repeated, so an owner that holds the lock
    /// already is granted it again, with no lower token and a lease that starts anew; with
    /// [`Want::Queue`], an owner that has a place keeps it. Only [`Want::First`] after
    /// [`Opening::First`] is never repeated.
    ///
    /// The lease must not be shorter than [`Request::ttl`], counted from
    /// [`Granted::sent_at`]: a store with coarser time rounds up.
    fn take(
        &self,
        request: &Request,
        want: Want,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Take<Self>>> + Send;

    /// How long a renewal is repeated before the lease keeper is told that some leases have
    /// failed; the other leases of the batch wait for that long. `shortest` is the shortest ttl
    /// among them.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        let _ = shortest;
        request_timeout
    }

    /// Extends leases, as many of them together as the store can. Returns an answer for each, in
    /// their order. One that is slow must not use up the time of the others: a store that extends
    /// them one by one asks for all of them at once.
    fn renew(
        &self,
        due: &mut [Due<Self>],
        deadline: Deadline,
    ) -> impl Future<Output = Vec<Attempted<Renewed>>> + Send;

    /// Gives back a lease, and with [`Ending::Left`] a place in the queue too. On an open
    /// connection, the command is sent by the first poll.
    fn release(
        &self,
        request: &Request,
        record: Option<&Self::Record>,
        ending: Ending,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Freed>> + Send;

    /// Removes the mark of [`Ending::Done`]. Returns whether there was one.
    fn forget(
        &self,
        key: &str,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<bool>> + Send {
        let _ = (key, attempt);
        async { Err(Failure::refused(BackendError::cannot_forget(None))) }
    }

    /// Ends a lease or a place in the queue, of any process, as [`inspect`](Self::inspect) has
    /// shown it: a lease as its holder's [`release`](Self::release) would, and a place so that
    /// the waiter is refused as [taken out](BackendError::taken_out). The step that ends it
    /// compares the owner, so that nothing else is ended. [`Freed::NotHeld`]: it had ended
    /// before.
    fn break_off(
        &self,
        broken: &Break,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Freed>> + Send {
        let _ = attempt;
        let refused = broken.refused(None);
        async { Err(refused) }
    }

    /// The error of an operation that got no answer for this long.
    fn silent(&self, for_long: Duration) -> BackendError;

    // What is left behind.

    /// The caller has left. Returns what is in flight, if anything. Called from a `Drop`, on any
    /// thread.
    fn abandon(&self, request: &Request, notes: Self::Notes, left: &LeftBehind) -> Abandoned<Self>;

    /// Waits, on the manager's runtime, until the outcome of a flight is known.
    /// [`Followed::Settled`] means that a release behind it has undone it, or that it did
    /// nothing.
    fn follow(
        &self,
        flight: Self::Flight,
        request: &Request,
    ) -> impl Future<Output = Followed> + Send {
        let _ = (flight, request);
        async { Followed::Unknown }
    }

    /// How long a command that was sent at `sent_at` and never answered may still take effect.
    fn late(&self, request: &Request, record: Option<&Self::Record>, sent_at: Instant) -> Late;

    // Records and sessions.

    /// The record for a lease that the table no longer has. `None`: without a record there is no
    /// lease.
    fn forgotten() -> Option<Self::Record> {
        None
    }

    /// The longest that a lease with this record lasts, whatever was asked for.
    fn longest_lease(record: &Self::Record) -> Option<Duration> {
        let _ = record;
        None
    }

    /// The longest that a lease for this request lasts, whatever its ttl: other programs that use
    /// the lock may shorten it.
    fn longest_for(&self, request: &Request) -> Option<Duration> {
        let _ = request;
        None
    }

    /// The lease or session with which the grant ends.
    fn scope(record: &Self::Record) -> Option<Scope> {
        let _ = record;
        None
    }

    /// Whether it has ended. A store must return `true` here before it calls [`Events::ended`].
    fn has_ended(&self, scope: Scope) -> bool {
        let _ = scope;
        false
    }

    // Waiting.

    /// Waits until the place before this one may have gone. The engine also ends the wait at a
    /// wake-up. An error counts like that of an attempt.
    fn wait(
        &self,
        request: &Request,
        watch: Self::Watch,
        notes: &mut Self::Notes,
    ) -> impl Future<Output = Attempted<()>> + Send {
        let _ = (request, watch, notes);
        std::future::pending()
    }

    /// How long until a lock that is waited for is looked at: after the wait begins, and after
    /// each look.
    fn pace(&self, seen: &mut Self::Seen) -> Duration {
        let _ = seen;
        Duration::from_secs(1)
    }

    /// Waits until the store may have changed in a way that concerns a waiter, where the store
    /// notices that and cannot say which lock it is. The engine then looks at all locks that are
    /// waited for. It calls this again and again while somebody waits, and may drop it at any
    /// await; a change must not be lost then. Each return costs a look, so a store limits how often
    /// it returns. By default it never ends.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Looks at locks that are waited for, and marks in `waited` who should ask again. With
    /// `beat`, it also shows in the same trip that the process is alive. A lock that cannot be
    /// looked at must not keep the others from being looked at: the store wakes its waiters
    /// ([`Waited::wake_all`]), which ask for themselves, and fails only if it has looked at none.
    fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<()>> + Send;

    /// Undoes a grant, given by its place in the queue, to an owner that no longer waits for it.
    /// Also removes the other places of this process in that queue whose owners `knows` does not
    /// know: these have gone for good.
    fn disown(
        &self,
        key: &str,
        granted: &str,
        knows: &(dyn Fn(Owner) -> bool + Sync),
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<()>> + Send {
        let _ = (key, granted, knows, deadline);
        async { Ok(()) }
    }

    /// The last waiter has gone. The process no longer has to count as alive.
    fn farewell(&self, deadline: Deadline) -> impl Future<Output = ()> + Send {
        let _ = deadline;
        async {}
    }

    // Looking.

    /// Whether a holder that was shown is this owner. The default is for a store that shows owners
    /// as they are displayed, with or without more text around them.
    fn is_owner(holder: &HolderInfo, owner: Owner) -> bool {
        holder.shows(owner)
    }

    /// Where the store keeps this lock, as its own tools would name it ([`LockInfo::stored_as`]).
    fn stored_as(&self, key: &str) -> Vec<String> {
        let _ = key;
        Vec::new()
    }

    /// What is known about a lock. `None` if nobody holds it and it is not remembered as done.
    fn inspect(
        &self,
        key: &str,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Option<LockInfo>>> + Send;

    /// The locks whose keys begin with `prefix` and that are held or remembered as done. `None`:
    /// there is more to ask, and the next call gets as much time again.
    ///
    /// A store must provide this or [`list_some`](Self::list_some), since each has the other as its
    /// default. This one suits a store that gets all locks by one query.
    fn list(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Option<Vec<LockInfo>>>> + Send {
        async move {
            let listed = self.list_some(prefix, usize::MAX, attempt);
            Ok(listed.await?.map(|listed| listed.locks))
        }
    }

    /// The first `most` of these by key, and the number of the others. A store that looks at each
    /// lock by itself should provide this, and look at no more than `most`.
    fn list_some(
        &self,
        prefix: &str,
        most: usize,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Option<Listed>>> + Send {
        async move {
            let all = self.list(prefix, attempt).await?;
            Ok(all.map(|all| Listed::first_of(all, most)))
        }
    }
}

/// One attempt of an operation. A primitive of an operation that has nothing to remember is given
/// the deadline alone.
#[non_exhaustive]
pub struct Attempt<'a, S: Store> {
    /// The time by which it must have ended.
    pub deadline: Deadline,
    /// What the operation remembers from attempt to attempt.
    pub notes: &'a mut S::Notes,
}

impl<'a, S: Store> Attempt<'a, S> {
    /// The next attempt of the operation that has these notes.
    pub fn new(deadline: Deadline, notes: &'a mut S::Notes) -> Self {
        Self { deadline, notes }
    }
}

/// The result of one attempt, or of a step of it.
pub type Attempted<T> = Result<T, Failure>;

/// What a store is given when it is opened. It must get time and tasks only from here, so that
/// tests can simulate both, and its tasks run on the manager's runtime, which no caller blocks. A
/// store keeps what it needs of it, at least the [`time`](Self::time).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The clock, and a spawner on the manager's runtime.
    pub time: Time,
    /// Where the store reports what happens by itself.
    pub events: Events,
    /// How long the store may be silent before an operation fails.
    pub request_timeout: Duration,
    /// The name of the service, for the names of connections.
    pub label: Option<Arc<str>>,
    /// Cancelled when the engine has stopped.
    pub(crate) stopped: CancellationToken,
}

impl Context {
    /// Spawns a task on the manager's runtime. It runs until it ends or the engine has stopped.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.time.spawn_until(self.stopped.clone(), apart(work));
    }

    /// How long one answer may take. It leaves time to ask another server, or to ask over a new
    /// connection, if no answer comes.
    pub fn patience(&self) -> Duration {
        patience(self.request_timeout)
    }
}

/// How long one answer may take, if an operation may take this long.
pub(crate) fn patience(request_timeout: Duration) -> Duration {
    request_timeout.mul_f64(0.4)
}

/// How the locks that are waited for are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Looks {
    /// All together, whenever one of them is due. For stores that wake waiters and have places in
    /// queues.
    Together,
    /// Each when it is due, together with those that are due soon. For stores that wake nobody.
    Each,
}

/// How an acquisition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opening {
    /// With [`Want::First`]. After that, a request that waits asks for a place.
    First,
    /// With [`Want::First`], as a command that knows its owner and can be repeated.
    Cheap,
    /// With [`Want::Try`], since a place in the queue costs more than taking a free lock, or
    /// there are no places.
    Try,
    /// A request that waits asks for a place at once, since the place is also the lock.
    Place,
}

/// How much is asked for.
///
/// A store has to answer each of these, so no variant is added within a compatible version: match
/// all of them. The same holds for [`Ending`] and [`Whose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The lock, in the cheapest way. After [`Opening::First`], the command cannot tell a success
    /// of its own from another owner's, so it is never sent twice.
    First,
    /// The lock, if it is free.
    Try,
    /// The lock, or a place in its queue if it has one. A waiter that cannot be notified may be
    /// passed over, so the store subscribes first. With `beat`, other processes must be shown
    /// that this process is alive.
    Queue {
        /// They have not been shown this for a while.
        beat: bool,
        /// The last answer has said that it has a place. It may have lost that since.
        has_place: bool,
    },
}

/// The answer to a request for the lock.
#[non_exhaustive]
pub enum Take<S: Store> {
    /// The request has the lock.
    Granted(Granted<S>),
    /// Another owner holds the lock, and the request has left nothing at the store.
    Busy,
    /// The body has been done, and that is remembered ([`Ending::Done`]). This attempt has left
    /// nothing; the place of an earlier attempt is given back.
    Done,
    /// The request has a place in the queue, and will be notified.
    Queued,
    /// The request has a place in the queue, and watches the place before its own.
    Behind(Behind<S>),
    /// Nobody has the lock, since several requests ask at the same time.
    Contended,
    /// The request had a place and has lost it; the next attempt asks for a new one. With a
    /// record, something of the lost place may still exist or appear later; it is given back by
    /// that record.
    PlaceLost(Option<S::Record>),
}

/// The place before a waiter's own.
#[non_exhaustive]
pub struct Behind<S: Store> {
    /// What is looked at for this waiter instead of the key of the lock. All waiters that wait
    /// for the same place use the same name.
    pub name: Arc<str>,
    /// What [`Store::wait`] watches.
    pub watch: S::Watch,
}

impl<S: Store> Behind<S> {
    /// All waiters that wait for the same place use the same name.
    pub fn new(name: impl Into<Arc<str>>, watch: S::Watch) -> Self {
        Self {
            name: name.into(),
            watch,
        }
    }
}

/// A lock that was granted.
#[non_exhaustive]
pub struct Granted<S: Store> {
    /// The first of the [`TOKENS_PER_GRANT`](crate::TOKENS_PER_GRANT) numbers that each grant draws;
    /// 0 from a store without tokens.
    pub token: u64,
    /// A time no later than when the request was sent from which the lease counts: it is read
    /// before the request is sent.
    pub sent_at: Instant,
    /// What proves the grant.
    pub record: S::Record,
}

impl<S: Store> Granted<S> {
    /// A grant by a request that was sent at `sent_at`.
    pub fn new(token: u64, sent_at: Instant, record: S::Record) -> Self {
        Self {
            token,
            sent_at,
            record,
        }
    }
}

/// One lease that is to be extended.
#[non_exhaustive]
pub struct Due<S: Store> {
    /// The request, as it was granted.
    pub request: Request,
    /// What proves the grant. The store replaces it if the renewal changes it.
    pub record: S::Record,
}

impl<S: Store> Due<S> {
    /// A lease to extend, for tests of a store.
    pub fn new(request: Request, record: S::Record) -> Self {
        Self { request, record }
    }
}

/// Why a lock is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The body has ended.
    Released,
    /// The caller left before it had an answer. It may have a lease, a place, both or neither.
    #[default]
    Left,
    /// The body was to run once, and has been done. A mark replaces the lock for this long, set
    /// in the same step, and every waiter is told of it ([`Take::Done`]). A mark of the same
    /// owner means that an earlier release has set it, and the answer is [`Freed::Released`]. The
    /// mark names its owner.
    Done(Duration),
    /// It was a vote of an election that could not be won. Nobody waits for its end, and
    /// notifying the waiters would only start the next election.
    Outvoted,
}

/// What is to be ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Break {
    /// The key of the lock.
    pub key: Arc<str>,
    /// The holder or waiter.
    pub whose: Whose,
}

/// The holder or waiter whose lease or place is to be ended, as it was shown.
#[derive(Clone, Debug)]
pub enum Whose {
    /// The lease of a holder.
    Holder(HolderInfo),
    /// The place of a waiter.
    Waiter(WaiterInfo),
}

impl Break {
    /// The holder that is to lose the lock, for a store that takes no waiter out of its queue.
    ///
    /// # Errors
    ///
    /// The break is for a waiter.
    pub fn only_holder(&self, store: &str) -> Result<&HolderInfo, Failure> {
        match &self.whose {
            Whose::Holder(holder) => Ok(holder),
            Whose::Waiter(_) => Err(self.refused(store)),
        }
    }

    /// The failure of a store that cannot do this. `store` is its name, `"etcd"`; `None`: "this
    /// store".
    pub fn refused<'a>(&self, store: impl Into<Option<&'a str>>) -> Failure {
        Failure::refused(match self.whose {
            Whose::Holder(_) => BackendError::cannot_break(store),
            Whose::Waiter(_) => BackendError::cannot_remove_waiters(store),
        })
    }
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freed {
    /// It was held, and now it is not.
    Released,
    /// There was nothing to release. If an earlier release was not answered, that one has done
    /// it.
    NotHeld,
    /// There was nothing to release, and it may have ended without a release.
    Lost,
}

impl Freed {
    /// The answer of a store that knows whether there was something to release.
    pub fn of(was_held: bool) -> Self {
        match was_held {
            true => Self::Released,
            false => Self::NotHeld,
        }
    }

    /// What the caller is told. `repeated`: an earlier release may have been run.
    pub(crate) fn released(self, repeated: bool) -> Released {
        match self {
            Self::Released => Released::Released,
            Self::NotHeld if repeated => Released::Released,
            Self::NotHeld | Self::Lost => Released::NotHeld,
        }
    }
}

/// An attempt that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Why it failed.
    pub cause: Cause,
    /// Whether another attempt may help.
    pub next: Next,
    /// What it may have done all the same.
    pub applied: Applied,
}

/// Why an attempt failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// An error of the store, or of the connection to it.
    Error(BackendError),
    /// The store could not be reached in the time that was left. If an earlier attempt failed,
    /// its cause says more.
    NotReached(BackendError),
    /// No answer came. The error is made for the operation, which knows for how long.
    Silence,
}

/// Whether another attempt may help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// At once, a few times in a row: the command was sent to the wrong place, and the right one
    /// is known.
    Now,
    /// After a pause.
    Pause,
    /// No: it would be refused again.
    #[default]
    Stop,
}

/// What an attempt that failed may have done.
///
/// To claim too little leaves a lock behind that nobody gives back. To claim too much costs a
/// release that is repeated for as long as an outage lasts, for each call that failed in it, and
/// a shutdown waits for that. So an error from before anything was sent or changed is
/// [`No`](Self::No).
///
/// For a release and for [`Store::forget`], [`OnItsWay`](Self::OnItsWay) and
/// [`Unknown`](Self::Unknown) mean that this attempt may have done it: if the next one finds
/// nothing, the operation has succeeded. For [`Store::break_off`], all but [`No`](Self::No) mean
/// this. A renewal is repeated in any case, and this is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// Certainly nothing.
    No,
    /// It was answered, and may have been run in part: the request may have the lock or a place.
    Answered,
    /// The answer may still come; the notes hold what is in flight.
    OnItsWay,
    /// The answer will not come, and the command may still be run.
    Unknown {
        /// When the command was sent.
        sent_at: Instant,
    },
}

impl Failure {
    /// A failure with its cause, what to do next, and what the attempt may have done.
    pub fn new(cause: Cause, next: Next, applied: Applied) -> Self {
        Self {
            cause,
            next,
            applied,
        }
    }

    /// No answer came; it may be asked again after a pause.
    pub fn silent(applied: Applied) -> Self {
        Self::new(Cause::Silence, Next::Pause, applied)
    }

    /// The store refused and has done nothing; it may be asked again only if it is unavailable.
    pub fn refused(error: BackendError) -> Self {
        let next = if error.kind() == BackendErrorKind::Unavailable {
            Next::Pause
        } else {
            Next::Stop
        };
        Self::new(Cause::Error(error), next, Applied::No)
    }

    /// The store refused and has done nothing, and would refuse again, even if it says that it is
    /// unavailable.
    pub fn stop(error: BackendError) -> Self {
        Self::refused(error).then(Next::Stop)
    }

    /// There was no time left to send anything.
    pub fn not_sent() -> Self {
        Self::silent(Applied::No)
    }

    /// What was looked at has changed before the step that depends on it, so nothing was done. It
    /// is asked again at once.
    pub fn ask_again() -> Self {
        Self::not_sent().then(Next::Now)
    }

    /// The same failure of an attempt that may have done this.
    #[must_use]
    pub fn with(self, applied: Applied) -> Self {
        Self { applied, ..self }
    }

    /// The same failure with this to do next.
    #[must_use]
    pub fn then(self, next: Next) -> Self {
        Self { next, ..self }
    }
}

/// What a caller that has left may have at the store, as far as the engine knows.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LeftBehind {
    /// An attempt was in flight, or may still be.
    pub in_flight: bool,
    /// When the last command was sent whose outcome is unknown.
    pub unknown: Option<Instant>,
    /// The request has the lock or a place.
    pub there: bool,
    /// How it is given back.
    pub ending: Ending,
}

impl LeftBehind {
    /// Whether there is nothing to clean up.
    pub fn is_nothing(&self) -> bool {
        !self.in_flight && self.unknown.is_none() && !self.there
    }

    /// Only what may come of a command that was sent at `since`.
    pub(crate) fn unknown(since: Option<Instant>) -> Self {
        Self {
            unknown: since,
            ..Self::default()
        }
    }

    /// Notes what a failed attempt may have left.
    pub(crate) fn note(&mut self, failure: &Failure) {
        self.in_flight = failure.applied == Applied::OnItsWay;
        match failure.applied {
            Applied::Unknown { sent_at } => self.unknown = Some(sent_at),
            Applied::Answered => self.there = true,
            Applied::No | Applied::OnItsWay => {}
        }
    }
}

/// What the store knows of an abandoned request, in addition to what the engine knows itself
/// ([`LeftBehind`]).
#[non_exhaustive]
pub struct Abandoned<S: Store> {
    /// What is in flight, to be [followed](Store::follow).
    pub flight: Option<S::Flight>,
    /// The record by which the request is given back.
    pub record: Option<S::Record>,
}

impl<S: Store> Abandoned<S> {
    /// What is in flight, and the record by which the rest is given back.
    pub fn new(flight: Option<S::Flight>, record: Option<S::Record>) -> Self {
        Self { flight, record }
    }

    /// Nothing is in flight: one release is enough.
    pub fn at_rest(record: Option<S::Record>) -> Self {
        Self::new(None, record)
    }

    /// What is in flight, if anything, without a record.
    pub fn in_flight(flight: Option<S::Flight>) -> Self {
        Self::new(flight, None)
    }
}

/// What has become of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Followed {
    /// Nothing is left of the flight.
    Settled,
    /// The command was run; a release undoes it.
    Run,
    /// Its outcome is unknown.
    Unknown,
}

/// How long a command that was never answered may still take effect.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Late {
    /// Once a release has been answered, it cannot take effect any more.
    Never,
    /// If it was run in time, its effect has ended by this deadline. Since the store may have
    /// stood still meanwhile, an answer after the deadline decides.
    Until(Deadline),
    /// It has no effect once this scope has ended, and what it did ends with the scope. A store
    /// that returns this must make sure that the scope ends once nobody needs it.
    In(Scope),
}

/// A key that somebody waits for, or the name of a [`Behind`].
#[non_exhaustive]
pub struct Waited<S: Store> {
    /// The key, or the name.
    pub key: Arc<str>,
    /// The waiters for it in this process.
    pub waiters: Vec<Waiter>,
    /// What was remembered at the last look.
    pub seen: S::Seen,
    /// Set by [`Store::recheck`] if no waiter can get the lock: the reason.
    pub refused: Option<BackendError>,
}

impl<S: Store> Waited<S> {
    /// Marks all its waiters as having cause to ask again.
    pub fn wake_all(&mut self) {
        for waiter in &mut self.waiters {
            waiter.wake = true;
        }
    }

    /// Marks the waiter whose owner matches, if there is one.
    pub fn wake(&mut self, is: impl Fn(Owner) -> bool) {
        for waiter in self.waiters.iter_mut().filter(|waiter| is(waiter.owner)) {
            waiter.wake = true;
        }
    }
}
