//! A small store, with a network that a test scripts.

mod voter;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::backend::{
    BackendError, BackendErrorKind, Capabilities, Finding, LockInfo, Mode, Owner, Renewed, Request,
    Servers, TokenTier,
};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::limits::DEFAULT_REQUEST_TIMEOUT;
use crate::store::{
    Abandoned, Applied, Attempt, Attempted, Behind, Break, Cause, Context, Due, Ending, Failure,
    Followed, Freed, Granted, Late, LeftBehind, Looks, Next, Opening, Scope, Store, Take, Waited,
    Want,
};
use crate::sync::{Mutex, MutexGuard};

/// The time from here to the store, or back.
pub(super) const ONE_WAY: Duration = Duration::from_millis(1);

/// How long a waiter that was let in may take to claim the lock.
const CLAIM: Duration = Duration::from_secs(3);

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Fine,
    /// The store refuses it for now.
    Refused,
    /// No connection is available in the remaining time.
    NotReached,
    /// It was sent to the wrong server, and the right one is known now.
    Moved,
    /// It is run, and answered with an error.
    Half,
    /// The connection breaks before the command has arrived.
    RequestLost,
    /// The connection breaks after the command is run.
    AnswerLost,
    /// The connection breaks, and the command is run after this time.
    Late(Duration),
    /// It is run after this time, and so are the commands after it.
    Slow(Duration),
    /// It is sent only after the first time, and then the connection breaks. It is run after the
    /// second time.
    Stuck(Duration, Duration),
    /// It is run, and answered after this time.
    SlowAnswer(Duration),
    /// It is run twice, and the second answer arrives.
    Twice,
}

/// The store and the network.
pub(super) struct Sim(Mutex<State>);

/// The state of the store and its behaviour, for a test to read and to change.
#[derive(Default)]
pub(super) struct State {
    holder: Option<(Owner, Instant)>,
    queue: VecDeque<(Owner, Duration)>,
    /// The owner whose body has been done.
    pub(super) done: Option<Owner>,
    token: u64,
    fates: VecDeque<Fate>,
    sent: Vec<&'static str>,
    ran: Vec<(Owner, &'static str)>,
    pub(super) events: Option<Events>,
    /// Messages are lost.
    pub(super) tells_nothing: bool,
    gone: bool,
    session: u64,
    ended: HashSet<u64>,
    /// The session ends right after the next grant.
    pub(super) ends_session: bool,
    /// Waiters are not notified, but may watch the one before them.
    pub(super) watches: bool,
    watched: Vec<(Owner, Arc<Notify>)>,
    /// The next watch fails.
    pub(super) watch_fails: bool,
    /// All watches fail.
    pub(super) watches_fail: bool,
    /// How long a watch lasts that fails.
    pub(super) watch_fails_after: Duration,
    /// For each of the next questions: its place is gone. `true` if it leaves something that has to
    /// be given back.
    pub(super) places_lost: VecDeque<bool>,
    /// A late command has no effect once the session in which it was sent has ended.
    pub(super) late_in_session: bool,
    /// Each record of a lease has a clone of this.
    records: Arc<()>,
    /// This many questions end in a tie.
    pub(super) ties: u32,
    pub(super) hold_back: Option<Duration>,
    /// Something else is stored where the lock belongs.
    pub(super) foreign: bool,
    lost_all: bool,
    pub(super) never_late: bool,
    /// How long a command may be late, if that is not the ttl.
    pub(super) late_for: Option<Duration>,
    /// When it was told that the process is alive.
    pub(super) beats: Vec<Instant>,
    pub(super) farewells: u32,
    /// How long a farewell takes; later commands may overtake it.
    pub(super) farewell_takes: Duration,
    pub(super) said_farewell: Option<Instant>,
    /// Whether it was told of the stop, and then whether leases must outlast it.
    pub(super) shut_down: Option<bool>,
    /// A grant counts only when it is confirmed.
    pub(super) confirms: bool,
    /// The next grant is gone before it is confirmed.
    pub(super) loses_grant: bool,
    /// How long it takes to subscribe.
    listens_for: Option<Duration>,
    /// A grant is reported with its place, which its owner may have left.
    pub(super) names_places: bool,
    pub(super) asked_for_a_place: bool,
    tokens: Option<TokenTier>,
    pub(super) has_wrong_config: bool,
    /// For each time it was told to settle, whether everything had been given back.
    pub(super) rests: Vec<bool>,
    /// It refuses releases, and would refuse them again.
    pub(super) refuses_releases: Option<BackendError>,
    /// The store has noticed that something may have changed.
    pub(super) changed: Arc<Notify>,
    /// The keys of each recheck.
    pub(super) rechecked: Vec<Vec<String>>,
    pub(super) findings: Vec<Finding>,
    /// How long it takes to examine the store.
    pub(super) examined_for: Duration,
    /// The servers of the settings, and those that were found at run time.
    pub(super) servers: Option<Servers>,
    pub(super) located: Option<Servers>,
    pub(super) label: Option<Arc<str>>,
    pub(super) stored_as: Vec<String>,
    /// It refuses everything but pings.
    pub(super) refuses: Option<BackendError>,
    /// The locks that it shows at once, whatever it has.
    pub(super) shows: Option<Vec<LockInfo>>,
    pub(super) closed: bool,
    voter: voter::State,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    First(Owner, Duration),
    Ask(Owner, Duration, bool),
    /// With `true`, by the manager.
    Release(Owner, bool),
    Mark(Owner),
    Forget,
    Renew(Owner, Duration),
    Confirm(Owner, Duration),
    Look,
    /// The vote of one voter in a lost election.
    Outvoted(Owner),
    Raise(u64),
    Ping,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Granted { token: u64, session: u64 },
    Held,
    Marked,
    Tie,
    Done(bool),
    Looked(Option<Owner>),
    Refused,
    Moved,
    Half,
    NotReached,
}

impl Command {
    fn name(self) -> &'static str {
        match self {
            Self::First(..) => "first",
            Self::Ask(..) => "ask",
            Self::Release(..) => "release",
            Self::Mark(_) => "mark",
            Self::Forget => "forget",
            Self::Renew(..) => "renew",
            Self::Confirm(..) => "confirm",
            Self::Look => "look",
            Self::Outvoted(_) => "outvoted",
            Self::Raise(_) => "raise",
            Self::Ping => "ping",
        }
    }

    fn owner(self) -> Option<Owner> {
        match self {
            Self::First(owner, _)
            | Self::Ask(owner, ..)
            | Self::Release(owner, _)
            | Self::Mark(owner)
            | Self::Renew(owner, _)
            | Self::Confirm(owner, _)
            | Self::Outvoted(owner) => Some(owner),
            Self::Forget | Self::Look | Self::Raise(_) | Self::Ping => None,
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sim")
    }
}

impl Sim {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            session: 1,
            ..State::default()
        })))
    }

    /// Sets the fates of the next commands of callers. Later commands succeed.
    pub(super) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.state().fates.extend(fates);
    }

    /// The next commands succeed, whatever was to become of them.
    pub(super) fn forget_fates(&self) {
        self.state().fates.clear();
    }

    pub(super) fn sent(&self) -> Vec<&'static str> {
        let state = self.state();
        let sent = state.sent.iter().copied();
        sent.filter(|sent| *sent != "look").collect()
    }

    pub(super) fn ran(&self, owner: Owner, what: &'static str) -> bool {
        self.state().ran.contains(&(owner, what))
    }

    pub(super) fn forget_history(&self) {
        self.state().sent.clear();
    }

    pub(super) fn holder(&self) -> Option<Owner> {
        let mut state = self.state();
        state.expire();
        state.holder.map(|(owner, _)| owner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    pub(super) fn is_free(&self) -> bool {
        self.holder().is_none() && self.waiting() == 0
    }

    pub(super) fn take_away(&self, to: Owner, ttl: Duration) {
        self.state().holder = Some((to, Instant::now() + ttl));
    }

    pub(super) fn release(&self, owner: Owner) {
        self.state().release(owner);
    }

    pub(super) fn tell(&self, owner: Owner) {
        self.events().wake(owner, "key");
    }

    pub(super) fn set_gone(&self, gone: bool) {
        self.state().gone = gone;
    }

    /// Ends the session. Returns how many locks are lost with it.
    pub(super) fn end_the_session(&self) -> usize {
        self.state().end_session()
    }

    /// The number of records of leases that are kept.
    pub(super) fn records(&self) -> usize {
        Arc::strong_count(&self.state().records) - 1
    }

    /// The store restarts and forgets everything.
    pub(super) fn lose_all(&self) {
        let mut state = self.state();
        state.holder = None;
        state.queue.clear();
        state.lost_all = true;
    }

    pub(super) fn listens_for(&self, duration: Duration) {
        self.state().listens_for = Some(duration);
    }

    /// Another server takes over, which knows this holder and these places.
    pub(super) fn fails_over(&self, holder: Owner, places: &[Owner]) {
        let mut state = self.state();
        state.holder = Some((holder, Instant::now() + CLAIM));
        state.queue = places.iter().map(|&place| (place, CLAIM)).collect();
    }

    /// Notifies an owner of its grant.
    pub(super) fn tell_place(&self, owner: Owner) {
        self.events().granted(owner, "key", &owner.to_string());
    }

    pub(super) fn events(&self) -> Events {
        self.state().events.clone().expect("it was opened")
    }

    /// Those of the locks that it shows.
    fn shown(&self, which: impl Fn(&LockInfo) -> bool) -> Option<Vec<LockInfo>> {
        let shown = self.state().shows.clone()?;
        Some(shown.into_iter().filter(which).collect())
    }

    pub(super) fn gives_tokens(&self, tier: TokenTier) {
        self.state().tokens = Some(tier);
    }

    pub(super) fn looks(&self) -> usize {
        let state = self.state();
        state.sent.iter().filter(|sent| **sent == "look").count()
    }

    /// Until when the lock is held, unless it is extended.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.state().holder.map(|(_, ends)| ends)
    }

    pub(super) fn request_timeout(&self) -> Duration {
        DEFAULT_REQUEST_TIMEOUT
    }

    /// Must not be held while the store is asked something else.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn expire(&mut self) {
        if self.holder.is_some_and(|(_, ends)| ends <= Instant::now()) {
            self.holder = None;
            self.let_in();
        }
    }

    fn let_in(&mut self) {
        if let Some((owner, ttl)) = self.queue.pop_front() {
            self.holder = Some((owner, Instant::now() + ttl.min(CLAIM)));
            self.tell(owner);
        }
    }

    /// Notifies an owner that its turn has come.
    fn tell(&self, owner: Owner) {
        let tells = !self.tells_nothing && !self.watches;
        let names = self.names_places;
        if let Some(events) = self.events.clone().filter(|_| tells) {
            tokio::spawn(async move {
                sleep(ONE_WAY).await;
                if names {
                    events.granted(owner, "key", &owner.to_string());
                } else {
                    events.wake(owner, "key");
                }
            });
        }
    }

    /// Notifies those who watch this owner, unless messages are lost.
    fn is_gone(&mut self, owner: Owner) {
        let tells = !self.tells_nothing;
        for (_, told) in self
            .watched
            .extract_if(.., |(watched, _)| *watched == owner)
        {
            tokio::spawn(async move {
                sleep(ONE_WAY).await;
                if tells {
                    told.notify_one();
                } else {
                    std::future::pending::<()>().await;
                }
            });
        }
    }

    /// The owner before this one.
    fn before(&self, owner: Owner) -> Option<Owner> {
        let place = self.queue.iter().position(|(waiter, _)| *waiter == owner)?;
        match place.checked_sub(1) {
            Some(before) => self.queue.get(before).map(|(waiter, _)| *waiter),
            None => self.holder.map(|(holder, _)| holder),
        }
    }

    fn release(&mut self, owner: Owner) -> bool {
        self.expire();
        self.is_gone(owner);
        self.queue.retain(|(waiter, _)| *waiter != owner);
        let held = self.holder.is_some_and(|(holder, _)| holder == owner);
        if held {
            self.holder = None;
            self.let_in();
        }
        held
    }

    fn grant(&mut self, owner: Owner, ttl: Duration) -> Answer {
        self.holder = Some((owner, Instant::now() + ttl));
        self.token += 64;
        let session = self.session;
        if std::mem::take(&mut self.ends_session) {
            self.end_session();
            // The session takes all its locks with it.
            self.holder = None;
        }
        Answer::Granted {
            token: self.token,
            session,
        }
    }

    fn end_session(&mut self) -> usize {
        self.ended.insert(self.session);
        let ended = Scope(self.session);
        self.session += 1;
        self.events.as_ref().map_or(0, |events| events.ended(ended))
    }

    fn run(&mut self, command: Command) -> Answer {
        self.expire();
        if let Some(owner) = command.owner() {
            self.ran.push((owner, command.name()));
        }
        match command {
            Command::First(..) | Command::Ask(..) if self.done.is_some() => Answer::Marked,
            Command::First(owner, ttl) if self.holder.is_none() && self.queue.is_empty() => {
                self.grant(owner, ttl)
            }
            Command::First(..) => Answer::Held,
            Command::Ask(..) if self.holder.is_none() && self.ties > 0 => {
                self.ties -= 1;
                Answer::Tie
            }
            Command::Ask(owner, ttl, queues) => match self.holder {
                Some((holder, _)) if holder == owner => self.grant(owner, ttl),
                None if self.queue.is_empty() => self.grant(owner, ttl),
                _ => {
                    if queues && !self.queue.iter().any(|(waiter, _)| *waiter == owner) {
                        self.queue.push_back((owner, ttl));
                    }
                    Answer::Held
                }
            },
            Command::Mark(owner) => {
                let held = self.holder.is_some_and(|(holder, _)| holder == owner);
                if held {
                    self.done = Some(owner);
                    self.holder = None;
                    self.is_gone(owner);
                    for (waiter, _) in std::mem::take(&mut self.queue) {
                        self.tell(waiter);
                    }
                }
                Answer::Done(self.done == Some(owner))
            }
            Command::Forget => Answer::Done(self.done.take().is_some()),
            Command::Release(owner, _) => {
                let held = self.release(owner);
                if held {
                    self.voter.tell(owner);
                }
                Answer::Done(held)
            }
            Command::Outvoted(owner) => Answer::Done(self.release(owner)),
            Command::Raise(last) => {
                self.token = self.token.max(last);
                Answer::Done(true)
            }
            Command::Ping => Answer::Done(true),
            Command::Confirm(..) if std::mem::take(&mut self.loses_grant) => {
                self.holder = None;
                Answer::Done(false)
            }
            Command::Renew(owner, ttl) | Command::Confirm(owner, ttl) => {
                let held = self.holder.is_some_and(|(holder, _)| holder == owner);
                if held {
                    self.holder = Some((owner, Instant::now() + ttl));
                }
                Answer::Done(held)
            }
            Command::Look => Answer::Looked(self.holder.map(|(owner, _)| owner)),
        }
    }
}

/// A kind of store, by what proves a grant.
pub(super) trait Proof: Clone + Send + Sync + 'static {
    const OPENING: Opening;
    const LOOKS: Looks = Looks::Together;
    const BEATS: bool = true;
    const EXPIRES: bool = true;
    const FLIGHT_LIMIT: Duration = Duration::from_millis(250);
    const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
    const DEAD_AFTER: Duration = Duration::from_secs(8);
    /// The interval between rechecks.
    const PACE: Duration = Duration::from_secs(1);
    const ON_MANAGER: bool = false;
    /// The first command of a request, as [`Sim::sent`] shows it.
    const FIRST: &'static str;

    fn of(session: u64, is_there: &Arc<()>) -> Self;

    /// Whether this record is of a place that was lost.
    fn is_lost(&self) -> bool {
        false
    }

    fn scope(&self) -> Option<Scope> {
        None
    }

    fn longest_lease() -> Option<Duration> {
        None
    }

    fn forgotten() -> Option<Self> {
        None
    }

    /// Updates the record when the lease is extended.
    fn extended(&mut self) {}
}

impl Proof for () {
    const OPENING: Opening = Opening::First;
    const FIRST: &'static str = "first";

    fn of(_session: u64, _is_there: &Arc<()>) -> Self {}
}

/// Its first command can be repeated. Its rechecks are frequent, and it soon takes a process for
/// dead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasty;

impl Proof for Hasty {
    const OPENING: Opening = Opening::Cheap;
    const FIRST: &'static str = "ask";
    const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
    const DEAD_AFTER: Duration = Duration::from_secs(4);
    const PACE: Duration = Duration::from_millis(100);

    fn of(_session: u64, _is_there: &Arc<()>) -> Self {
        Self
    }
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    number: u64,
    _is_there: Arc<()>,
}

/// The session number of a place that was lost; no session has it.
const LOST: u64 = 0;

impl Proof for Session {
    const OPENING: Opening = Opening::Place;
    const FIRST: &'static str = "ask";
    /// What was sent comes to its end by itself.
    const FLIGHT_LIMIT: Duration = Duration::MAX;

    fn of(session: u64, is_there: &Arc<()>) -> Self {
        Self {
            number: session,
            _is_there: Arc::clone(is_there),
        }
    }

    fn is_lost(&self) -> bool {
        self.number == LOST
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope(self.number))
    }
}

/// A session whose locks and places last as long as it does. This process ends its leases.
#[derive(Clone, Debug)]
pub(super) struct Lasting(u64);

/// How long such a lease is sure to last.
pub(super) const LONGEST: Duration = Duration::from_secs(120);

impl Proof for Lasting {
    const OPENING: Opening = Opening::Place;
    const BEATS: bool = false;
    const EXPIRES: bool = false;
    const FIRST: &'static str = "ask";

    fn of(session: u64, _is_there: &Arc<()>) -> Self {
        Self(session)
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope(self.0))
    }

    fn longest_lease() -> Option<Duration> {
        Some(LONGEST)
    }
}

/// A session whose leases this process ends, with all operations on the manager's runtime.
#[derive(Clone, Debug)]
pub(super) struct OnManager(u64);

impl Proof for OnManager {
    const OPENING: Opening = Opening::Place;
    const EXPIRES: bool = false;
    const ON_MANAGER: bool = true;
    const FIRST: &'static str = "ask";

    fn of(session: u64, _is_there: &Arc<()>) -> Self {
        Self(session)
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope(self.0))
    }
}

/// A store that has a queue, but in which taking a free lock costs less than a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried;

impl Proof for Tried {
    const OPENING: Opening = Opening::Try;
    const FIRST: &'static str = "ask";

    fn of(_session: u64, _is_there: &Arc<()>) -> Self {
        Self
    }
}

/// The record is a number that saves a question. There is no queue and there are no notifications.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(pub(super) Option<u64>);

impl Proof for Number {
    const OPENING: Opening = Opening::Try;
    const LOOKS: Looks = Looks::Each;
    const PACE: Duration = Duration::from_millis(5);
    const FIRST: &'static str = "ask";

    fn of(session: u64, _is_there: &Arc<()>) -> Self {
        Self(Some(session))
    }

    fn forgotten() -> Option<Self> {
        Some(Self(None))
    }

    fn extended(&mut self) {
        self.0 = self.0.map(|number| number + 1);
    }
}

pub(super) struct Scripted<P> {
    sim: Arc<Sim>,
    time: Time,
    caller: Mutex<Option<Link>>,
    manager: Mutex<Option<Link>>,
    listens: Arc<AtomicBool>,
    proof: PhantomData<fn() -> P>,
}

/// A connection. Commands that are sent over it are run in order.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkState>);

struct LinkState {
    broken: AtomicBool,
    /// Commands that were sent over it did not leave.
    stuck: AtomicBool,
    /// When the last command sent over it is run.
    last: Mutex<Instant>,
}

/// The connection broke.
struct Broken;

impl Link {
    fn new() -> Self {
        Self(Arc::new(LinkState {
            broken: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            last: Mutex::new(Instant::now()),
        }))
    }

    fn is_open(&self) -> bool {
        !self.0.broken.load(Ordering::Relaxed)
    }

    /// Sends a command at once.
    fn send(
        &self,
        sim: &Arc<Sim>,
        command: Command,
        fate: Fate,
    ) -> oneshot::Receiver<Result<Answer, Broken>> {
        let (tell, answer) = oneshot::channel();
        let now = Instant::now();
        let gone = {
            let mut state = sim.state();
            state.sent.push(command.name());
            state.gone
        };
        if gone || !self.is_open() {
            // No answer comes, and at last the connection gives up.
            tokio::spawn(async move {
                sleep(Duration::from_secs(2)).await;
                drop(tell);
            });
            return answer;
        }
        let run_at = {
            let mut last = self.0.last.lock();
            let delay = match fate {
                Fate::Slow(delay) | Fate::Stuck(delay, _) => delay,
                _ => ONE_WAY,
            };
            let run_at = (now + delay).max(*last);
            *last = match fate {
                Fate::Stuck(..) => run_at + ONE_WAY,
                _ => run_at,
            };
            run_at
        };
        let (link, sim) = (self.clone(), Arc::clone(sim));
        let run = move |command| sim.state().run(command);
        tokio::spawn(async move {
            match fate {
                Fate::RequestLost | Fate::Late(_) => {
                    sleep_until(run_at).await;
                    link.break_up();
                    let _ = tell.send(Err(Broken));
                    if let Fate::Late(late) = fate {
                        sleep_until(now + late).await;
                        run(command);
                    }
                }
                Fate::Stuck(_, late) => {
                    sleep_until(run_at).await;
                    link.0.stuck.store(true, Ordering::Relaxed);
                    link.break_up();
                    let _ = tell.send(Err(Broken));
                    sleep(late).await;
                    run(command);
                }
                Fate::AnswerLost => {
                    sleep_until(run_at).await;
                    run(command);
                    link.break_up();
                    let _ = tell.send(Err(Broken));
                }
                Fate::Refused | Fate::NotReached | Fate::Moved | Fate::Half => {
                    sleep_until(run_at).await;
                    let answer = match fate {
                        Fate::Moved => Answer::Moved,
                        Fate::NotReached => Answer::NotReached,
                        Fate::Half => {
                            run(command);
                            Answer::Half
                        }
                        _ => Answer::Refused,
                    };
                    sleep(ONE_WAY).await;
                    let _ = tell.send(Ok(answer));
                }
                Fate::Fine | Fate::Slow(_) | Fate::SlowAnswer(_) | Fate::Twice => {
                    sleep_until(run_at).await;
                    if link.0.stuck.load(Ordering::Relaxed) {
                        let _ = tell.send(Err(Broken));
                        return;
                    }
                    let mut answer = run(command);
                    if fate == Fate::Twice {
                        answer = run(command);
                    }
                    match fate {
                        Fate::SlowAnswer(delay) => sleep(delay).await,
                        _ => sleep(ONE_WAY).await,
                    }
                    let _ = tell.send(Ok(answer));
                }
            }
        });
        answer
    }

    fn break_up(&self) {
        self.0.broken.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Notes {
    in_flight: Option<Link>,
    listens: bool,
    lists: u32,
}

/// A watch, notified when the owner before has gone.
pub(super) struct Before {
    told: Arc<Notify>,
    fails: bool,
}

/// How many questions a list takes.
pub(super) const LISTS: u32 = 3;

impl<P: Proof> Store for Scripted<P> {
    type Config = Arc<Sim>;
    type Record = P;
    type Notes = Notes;
    type Flight = (Link, Ending);
    type Watch = Before;
    type Seen = ();

    const LOOKS: Looks = P::LOOKS;
    const BEAT: Option<Duration> = match (P::LOOKS, P::BEATS) {
        (Looks::Together, true) => Some(Duration::from_secs(1)),
        _ => None,
    };
    const EXPIRES: bool = P::EXPIRES;
    const FLIGHT_LIMIT: Duration = P::FLIGHT_LIMIT;
    const ON_MANAGER: bool = P::ON_MANAGER;

    const CLAIM: Option<Duration> = match P::LOOKS {
        Looks::Together => Some(CLAIM),
        Looks::Each => None,
    };
    const PAUSES: (Duration, Duration) = P::PAUSES;
    const DEAD_AFTER: Duration = P::DEAD_AFTER;

    async fn complete(config: Arc<Sim>, _: Duration) -> Result<Arc<Sim>, BackendError> {
        match config.state().has_wrong_config {
            true => Err(foreign()),
            false => Ok(Arc::clone(&config)),
        }
    }

    fn open(config: Arc<Sim>, context: Context) -> Self {
        let listens = Arc::<AtomicBool>::default();
        config.state().voter.is_opened_by(voter::Subscriber {
            events: context.events.clone(),
            listens: Arc::clone(&listens),
        });
        config.state().events = Some(context.events);
        config.state().label = context.label;
        Self {
            sim: config,
            time: context.time,
            caller: Mutex::default(),
            manager: Mutex::default(),
            listens,
            proof: PhantomData,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        let mut notes = Notes::default();
        let looked = self.send(Command::Look, None, deadline, &mut notes).await;
        looked.map(drop)
    }

    fn capabilities(_config: &Arc<Sim>) -> Capabilities {
        Capabilities {
            in_order: true,
            ..Capabilities::new("scripted")
        }
    }

    fn servers(config: &Arc<Sim>) -> Option<Servers> {
        config.state().servers.clone()
    }

    fn located(&self) -> Option<Servers> {
        self.sim.state().located.clone()
    }

    async fn examine(&self, _deadline: Deadline) -> Vec<Finding> {
        let examined_for = self.sim.state().examined_for;
        sleep(examined_for).await;
        self.sim.state().findings.clone()
    }

    fn close(&self) {
        self.sim.state().closed = true;
    }

    async fn raise_tokens(&self, floor: u64, deadline: Deadline) -> Attempted<()> {
        let fate = self.sim.state().fates.pop_front();
        let mut notes = Notes::default();
        let command = Command::Raise(floor);
        match self.send(command, fate, deadline, &mut notes).await?.0 {
            Answer::Done(_) => Ok(()),
            answer => Err(failed(answer)),
        }
    }

    async fn shut_down(&self, holds: bool, _deadline: Deadline) {
        self.sim.state().shut_down = Some(holds);
    }

    async fn settle(&self) {
        let is_free = self.sim.is_free();
        self.sim.state().rests.push(is_free);
    }

    fn tokens(&self) -> Option<TokenTier> {
        self.sim.state().tokens
    }

    fn opening(&self, _request: &Request) -> Opening {
        P::OPENING
    }

    fn hold_back(&self, _request: &Request) -> Option<Duration> {
        self.sim.state().hold_back.take()
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let (owner, ttl) = (request.owner, lasts::<P>(request.ttl));
        let command = match want {
            Want::First if P::OPENING == Opening::First => Command::First(owner, ttl),
            Want::First | Want::Try => Command::Ask(owner, ttl, false),
            Want::Queue { .. } => Command::Ask(owner, ttl, P::LOOKS == Looks::Together),
        };
        let waits = matches!(want, Want::Queue { .. });
        let listens_for = self.sim.state().listens_for;
        if let Some(listens_for) = listens_for.filter(|_| waits && !notes.listens) {
            notes.listens = true;
            self.sim.state().sent.push("listen");
            sleep(listens_for).await;
        }
        let fate = {
            let mut state = self.sim.state();
            state.asked_for_a_place |= waits;
            state.fates.pop_front()
        };
        let (answer, sent_at) = self.send(command, fate, deadline, notes).await?;
        let (lost, confirms, records) = {
            let mut state = self.sim.state();
            let lost = state.places_lost.pop_front();
            (lost, state.confirms, Arc::clone(&state.records))
        };
        if let Some(leaves_something) = lost {
            let record = leaves_something.then(|| P::of(LOST, &records));
            return Ok(Take::PlaceLost(record));
        }
        match answer {
            Answer::Granted { token, session } => Ok(Take::Granted(Granted {
                token,
                sent_at: match confirms {
                    true => self.confirmed(request, deadline, notes).await?,
                    false => sent_at,
                },
                record: P::of(session, &records),
            })),
            Answer::Tie => Ok(Take::Contended),
            Answer::Marked => Ok(Take::Done),
            Answer::Held => Ok(self.held(want, owner, sent_at)),
            answer => Err(failed(answer)),
        }
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let mut renewed = Vec::new();
        for due in due {
            let command = Command::Renew(due.request.owner, lasts::<P>(due.request.ttl));
            let fate = self.sim.state().fates.pop_front();
            let answer = self
                .send(command, fate, deadline, &mut Notes::default())
                .await;
            due.record.extended();
            renewed.push(answer.and_then(|(answer, sent_at)| match answer {
                Answer::Done(true) => Ok(Renewed::Extended {
                    sent_at: sent_at.into(),
                }),
                Answer::Done(false) => Ok(Renewed::Gone),
                answer => Err(failed(answer)),
            }));
        }
        renewed
    }

    async fn release(
        &self,
        request: &Request,
        record: Option<&P>,
        ending: Ending,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let fate = match ending {
            Ending::Released | Ending::Done(_) => self.sim.state().fates.pop_front(),
            Ending::Left | Ending::Outvoted => None,
        };
        let lost = record.is_some_and(P::is_lost).then(Owner::unique);
        let owner = lost.unwrap_or(request.owner);
        let command = match ending {
            Ending::Outvoted => Command::Outvoted(owner),
            Ending::Done(_) => Command::Mark(owner),
            Ending::Released | Ending::Left => Command::Release(owner, ending == Ending::Left),
        };
        let refuses = self.sim.state().refuses_releases.clone();
        let fate = refuses.as_ref().map(|_| Fate::Refused).or(fate);
        match self.send(command, fate, deadline, notes).await?.0 {
            Answer::Refused if refuses.is_some() => {
                Err(Failure::stop(refuses.unwrap_or_else(foreign)))
            }
            Answer::Done(true) => {
                self.sim.state().voter.answers(&self.listens, request);
                Ok(Freed::Released)
            }
            Answer::Done(false) if self.sim.state().lost_all => Ok(Freed::Lost),
            Answer::Done(false) => Ok(Freed::NotHeld),
            answer => Err(failed(answer)),
        }
    }

    async fn forget(
        &self,
        _key: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<bool> {
        let fate = self.sim.state().fates.pop_front();
        match self.send(Command::Forget, fate, deadline, notes).await?.0 {
            Answer::Done(forgotten) => Ok(forgotten),
            answer => Err(failed(answer)),
        }
    }

    /// Checked when the command is sent: if the broken lease ends on the way, the command affects
    /// nobody.
    async fn break_off(
        &self,
        broken: &Break,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let holder = broken.only_holder("scripted")?;
        let held_by = self.sim.holder();
        let shown = held_by.filter(|owner| owner.to_string() == holder.owner);
        let command = Command::Release(shown.unwrap_or_else(Owner::unique), false);
        let fate = self.sim.state().fates.pop_front();
        match self.send(command, fate, deadline, notes).await?.0 {
            Answer::Done(true) => Ok(Freed::Released),
            Answer::Done(false) => Ok(Freed::NotHeld),
            answer => Err(failed(answer)),
        }
    }

    async fn disown(
        &self,
        _key: &str,
        granted: &str,
        knows: &(dyn Fn(Owner) -> bool + Sync),
        deadline: Deadline,
    ) -> Attempted<()> {
        let fate = self.sim.state().fates.pop_front();
        match self
            .send(Command::Look, fate, deadline, &mut Notes::default())
            .await?
            .0
        {
            Answer::Looked(_) => {}
            answer => return Err(failed(answer)),
        }
        let mut state = self.sim.state();
        state.queue.retain(|(owner, _)| knows(*owner));
        let holder = state.holder.map(|(holder, _)| holder);
        if let Some(holder) = holder.filter(|holder| holder.to_string() == granted) {
            state.release(holder);
        }
        Ok(())
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        BackendError::unavailable(format!("silent for {for_long:?}"))
    }

    fn abandon(&self, _request: &Request, notes: Notes, left: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(notes.in_flight.map(|link| (link, left.ending)))
    }

    async fn follow(&self, (flight, ending): (Link, Ending), request: &Request) -> Followed {
        if P::LOOKS == Looks::Each {
            // Its answer comes after that of the command before it.
            let behind = Command::Look;
            return match flight.send(&self.sim, behind, Fate::Fine).await {
                Ok(Ok(_)) => Followed::Run,
                _ => Followed::Unknown,
            };
        }
        let release = match ending {
            Ending::Outvoted => Command::Outvoted(request.owner),
            Ending::Done(_) | Ending::Released | Ending::Left => {
                Command::Release(request.owner, true)
            }
        };
        match flight.send(&self.sim, release, Fate::Fine).await {
            Ok(Ok(_)) => Followed::Settled,
            _ => Followed::Unknown,
        }
    }

    fn late(&self, request: &Request, record: Option<&P>, sent_at: std::time::Instant) -> Late {
        let state = self.sim.state();
        if state.never_late {
            return Late::Never;
        }
        if state.late_in_session {
            let scope = record.and_then(P::scope);
            return Late::In(scope.unwrap_or(Scope(state.session)));
        }
        let late_for = state.late_for.unwrap_or(request.ttl);
        Late::Until(Deadline::from(sent_at, late_for))
    }

    fn forgotten() -> Option<P> {
        P::forgotten()
    }

    fn longest_lease(_record: &P) -> Option<Duration> {
        P::longest_lease()
    }

    fn scope(record: &P) -> Option<Scope> {
        record.scope()
    }

    fn has_ended(&self, scope: Scope) -> bool {
        self.sim.state().ended.contains(&scope.0)
    }

    async fn wait(&self, _request: &Request, watch: Before, _notes: &mut Notes) -> Attempted<()> {
        if watch.fails {
            let lasts = self.sim.state().watch_fails_after;
            sleep(ONE_WAY + lasts).await;
            return Err(nothing(Applied::No));
        }
        watch.told.notified().await;
        Ok(())
    }

    fn pace(&self, _seen: &mut ()) -> Duration {
        P::PACE
    }

    async fn changed(&self) {
        let changed = Arc::clone(&self.sim.state().changed);
        changed.notified().await;
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        let mut notes = Notes::default();
        let answer = self.send(Command::Look, None, deadline, &mut notes).await?;
        let mut state = self.sim.state();
        let keys = waited.iter().map(|key| key.key.to_string());
        state.rechecked.push(keys.collect());
        let of_who_is_before = |key: &Waited<Self>| key.key.starts_with("before ");
        assert!(!state.watches || waited.iter().all(of_who_is_before));
        for waiter in waited.iter().flat_map(|key| &key.waiters) {
            assert_eq!(waiter.mode, Mode::Write);
            assert!(waiter.since <= self.time.now());
        }
        if beat {
            state.beats.push(Instant::now());
        }
        if state.foreign {
            for key in waited {
                key.refused = Some(foreign());
            }
        } else if let Answer::Looked(holder) = answer.0 {
            for key in waited {
                match holder {
                    Some(holder) => key.wake(|owner| owner == holder),
                    None => key.wake_all(),
                }
            }
        }
        Ok(())
    }

    async fn farewell(&self, _deadline: Deadline) {
        let takes = {
            let mut state = self.sim.state();
            state.farewells += 1;
            state.farewell_takes
        };
        sleep(takes).await;
        self.sim.state().said_farewell = Some(Instant::now());
    }

    async fn inspect(
        &self,
        key: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<LockInfo>> {
        self.send(Command::Look, None, deadline, notes).await?;
        Ok(self
            .sim
            .shown(|lock| lock.key == key)
            .and_then(|mut locks| locks.pop()))
    }

    fn stored_as(&self, _key: &str) -> Vec<String> {
        self.sim.state().stored_as.clone()
    }

    async fn list(
        &self,
        prefix: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        if let Some(shown) = self.sim.shown(|lock| lock.key.starts_with(prefix)) {
            self.send(Command::Look, None, deadline, notes).await?;
            return Ok(Some(shown));
        }
        sleep(Duration::from_secs(4)).await;
        notes.lists += 1;
        Ok((notes.lists == LISTS).then(Vec::new))
    }
}

impl<P: Proof> Scripted<P> {
    /// The connection of callers or that of the manager, although a test has only one runtime.
    fn link(&self, command: Command) -> MutexGuard<'_, Option<Link>> {
        let link = match command {
            Command::Look | Command::Release(_, true) | Command::Outvoted(_) | Command::Ping => {
                &self.manager
            }
            _ => &self.caller,
        };
        link.lock()
    }

    /// Confirms a grant, which counts only then.
    async fn confirmed(
        &self,
        request: &Request,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<std::time::Instant, Failure> {
        let command = Command::Confirm(request.owner, request.ttl);
        let fate = self.sim.state().fates.pop_front();
        let failure = match self.send(command, fate, deadline, notes).await {
            Ok((Answer::Done(true), sent_at)) => return Ok(sent_at),
            Ok((Answer::Done(false), _)) => Failure::not_sent(),
            Ok((answer, _)) => failed(answer),
            Err(failure) => failure,
        };
        Err(Failure {
            applied: Applied::Answered,
            ..failure
        })
    }

    fn held(&self, want: Want, owner: Owner, sent_at: std::time::Instant) -> Take<Self> {
        let mut state = self.sim.state();
        if let Some(events) = &state.events {
            events.answered(sent_at);
        }
        let Want::Queue { beat, .. } = want else {
            return Take::Busy;
        };
        if P::LOOKS == Looks::Each {
            return Take::Busy;
        }
        if let Some(events) = state.events.clone().filter(|_| beat) {
            events.beats(sent_at);
            state.beats.push(sent_at.into());
        }
        let before = state.before(owner).filter(|_| state.watches);
        let Some(before) = before else {
            return Take::Queued;
        };
        let fails = std::mem::take(&mut state.watch_fails) || state.watches_fail;
        let told = Arc::new(Notify::new());
        state.watched.push((before, Arc::clone(&told)));
        Take::Behind(Behind {
            name: format!("before {before}").into(),
            watch: Before { told, fails },
        })
    }

    async fn connect(&self, command: Command, deadline: Deadline) -> Result<Link, Failure> {
        let dials_for = self.sim.state().voter.dials_for;
        sleep(ONE_WAY + dials_for).await;
        while self.sim.state().gone {
            if self.time.has_passed(deadline) {
                return Err(Failure::not_sent());
            }
            sleep(Duration::from_millis(100)).await;
        }
        sleep(ONE_WAY).await;
        let link = Link::new();
        *self.link(command) = Some(link.clone());
        Ok(link)
    }

    async fn send(
        &self,
        command: Command,
        fate: Option<Fate>,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<(Answer, std::time::Instant), Failure> {
        let refuses = self.sim.state().refuses.clone();
        if let Some(error) = refuses.filter(|_| !matches!(command, Command::Ping)) {
            return Err(Failure::refused(error));
        }
        let open = self.link(command).clone().filter(Link::is_open);
        let link = match open {
            Some(link) => link,
            None => self.connect(command, deadline).await?,
        };
        let sent_at = self.time.now();
        notes.in_flight = Some(link.clone());
        let answer = link.send(&self.sim, command, fate.unwrap_or(Fate::Fine));
        match self.time.bound(deadline, answer).await {
            Ok(Ok(Ok(answer))) => {
                notes.in_flight = None;
                Ok((answer, sent_at))
            }
            Ok(Ok(Err(Broken)) | Err(_)) => {
                notes.in_flight = None;
                link.break_up();
                Err(nothing(Applied::Unknown { sent_at }))
            }
            Err(_) => Err(nothing(Applied::OnItsWay)),
        }
    }
}

/// How long the store keeps a lock.
fn lasts<P: Proof>(ttl: Duration) -> Duration {
    const FOR_EVER: Duration = Duration::from_secs(1_000_000);
    if P::EXPIRES { ttl } else { FOR_EVER }
}

fn nothing(applied: Applied) -> Failure {
    Failure {
        cause: Cause::Silence,
        next: Next::Pause,
        applied,
    }
}

/// The failure that an error answer means.
fn failed(answer: Answer) -> Failure {
    let refused = Failure::refused(BackendError::unavailable("it cannot just now"));
    match answer {
        Answer::Moved => Failure {
            next: Next::Now,
            ..refused
        },
        Answer::Half => Failure {
            applied: Applied::Answered,
            ..refused
        },
        Answer::NotReached => Failure {
            cause: Cause::NotReached(BackendError::unavailable("there is no connection")),
            ..refused
        },
        _ => refused,
    }
}

pub(super) fn foreign() -> BackendError {
    BackendError::new(BackendErrorKind::Config, "something else stands there")
}
