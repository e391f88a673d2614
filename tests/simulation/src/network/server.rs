//! A server: its state, its clock, and whether it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock::backend::Owner;
use tokio::sync::mpsc;

use super::Weather;
use super::connection::LastBack;
use crate::world::{At, Clock, ProcessId, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u32);

/// What a server does: one command after the other.
pub(crate) trait Service: Clone + Send + 'static {
    type Command: Clone + fmt::Debug + Send + 'static;
    type Answer: fmt::Debug + Send + 'static;

    fn run(&mut self, visit: &mut Visit, command: Self::Command) -> Self::Answer;

    /// What is held or waited for, in words; empty when nothing is.
    fn left(&mut self, visit: &mut Visit) -> Vec<String>;

    /// Whether somebody holds this lock.
    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool;

    /// It was that, and has lost what it wrote last, or its clock was set ahead. Nobody
    /// can ask it before `back`.
    fn broke(&mut self, _before: &Self, _visit: &mut Visit, _back: At) {}

    /// Its clock was set back. Nobody can ask it before `back`.
    fn clock_went_back(&self, _visit: &Visit, _back: At) {}

    /// Who holds this lock, by the server's clock, where it alone decides that.
    fn holders(&self, _now: Duration, _key: &str) -> Option<Vec<Holder>> {
        None
    }
}

/// Who holds a lock, as its server sees it.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    /// The first number of its grant.
    pub(crate) token: u64,
    pub(crate) process: Option<ProcessId>,
    pub(crate) owner: Owner,
    /// For how much longer, unless its session says that.
    pub(crate) lasts: Option<Duration>,
}

/// A lease that a server has forgotten, or a part of it, and whose owner does not know yet.
struct Forgotten {
    key: String,
    owner: Owner,
    process: ProcessId,
    /// When it knows: it was told, or its time is over.
    known: At,
}

/// A moment at a server.
pub(crate) struct Visit {
    /// By the server's clock.
    pub(crate) now: Duration,
    pub(crate) clock: Clock,
    /// By nobody's.
    pub(crate) at: At,
    /// What it says by itself to whom.
    pub(super) pushed: Vec<(ProcessId, Pushed)>,
    /// First numbers of the grants that were made, and to whom.
    pub(super) granted: Vec<((String, u64), Owner)>,
    /// Locks that nobody has any more.
    pub(super) freed: Vec<String>,
    /// Who knows what it has: it was told, or has given it back.
    pub(super) knows: Vec<Owner>,
    /// Marks that were set, by the grants of those who set them, and for how long.
    pub(super) marked: Vec<(String, u64, Duration)>,
    /// Locks whose marks are gone.
    pub(super) unmarked: Vec<String>,
    /// Grants that their owners have given back without a mark.
    pub(super) given_back: Vec<(String, u64)>,
    /// Grants to whoever asked, past those who were before.
    pub(super) passed: Vec<(String, u64)>,
}

/// That a body has been done, as its server remembered it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    /// The first number of the grant of who did it.
    pub(crate) token: u64,
    pub(crate) owner: Option<Owner>,
    pub(crate) set: At,
    pub(crate) lasts: Duration,
    /// Since when it is not remembered any more.
    pub(crate) over: Option<At>,
}

/// What a server says by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) key: Arc<str>,
    /// The owner, as it is displayed.
    pub(crate) owner: Option<Owner>,
}

impl Visit {
    fn at(clock: Clock, at: At) -> Self {
        Self {
            now: clock.shows(at),
            clock,
            at,
            pushed: Vec::new(),
            granted: Vec::new(),
            freed: Vec::new(),
            knows: Vec::new(),
            marked: Vec::new(),
            unmarked: Vec::new(),
            given_back: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// From now on it is remembered that the body of this grant has been done.
    pub(crate) fn marked(&mut self, key: &str, token: u64, lasts: Duration) {
        self.marked.push((key.to_owned(), token, lasts));
    }

    pub(crate) fn unmarked(&mut self, key: &str) {
        self.unmarked.push(key.to_owned());
    }

    pub(crate) fn given_back(&mut self, key: &str, token: u64) {
        self.given_back.push((key.to_owned(), token));
    }

    pub(crate) fn passed(&mut self, key: &str, token: u64) {
        self.passed.push((key.to_owned(), token));
    }

    pub(crate) fn knows(&mut self, owner: Owner) {
        self.knows.push(owner);
    }

    pub(crate) fn tell(&mut self, process: ProcessId, pushed: Pushed) {
        self.pushed.push((process, pushed));
    }

    pub(crate) fn freed(&mut self, key: &str) {
        self.freed.push(key.to_owned());
    }

    pub(crate) fn granted(&mut self, key: &str, token: u64, owner: Owner) {
        self.granted.push(((key.to_owned(), token), owner));
    }
}

/// So many nanoseconds the clocks of a server and its replica differ at the most.
const CLOCKS_APART: i64 = 200_000_000;

pub(crate) struct Server<S: Service> {
    pub(crate) id: ServerId,
    pub(crate) world: Arc<World>,
    state: Mutex<State<S>>,
}

/// Where to say it, and behind what.
type Ear = (mpsc::UnboundedSender<Pushed>, LastBack);

struct State<S> {
    service: S,
    clock: Clock,
    /// Nobody can connect before then, and it runs nothing.
    down_until: At,
    /// It stands still until then, and so does what arrives.
    stands_until: At,
    /// How often it was started.
    starts: u32,
    /// Who listens to what it says, and over which of its connections.
    ears: BTreeMap<ProcessId, (u64, Ear)>,
    weather: BTreeMap<ProcessId, Weather>,
    /// When each process last had an answer.
    heard: BTreeMap<ProcessId, At>,
    /// When each process last sent something over a connection that it did not know to be
    /// broken.
    in_vain: BTreeMap<ProcessId, At>,
    connections: u64,
    cuts: BTreeMap<ProcessId, u32>,
    /// When each grant was made, and to whom, by its key and first number.
    grants: BTreeMap<(String, u64), (At, Owner)>,
    /// To whom each number was ever granted: after a promise was broken, to several.
    given_to: BTreeMap<(String, u64), BTreeSet<Owner>>,
    /// Whose leases were forgotten, or cut short: they may be overlapped.
    cut_short: BTreeSet<(String, Owner)>,
    /// When each lock was last given back, or seen to have run out.
    freed: BTreeMap<String, At>,
    /// What was ever remembered of each lock.
    marks: BTreeMap<String, Vec<Marked>>,
    /// When each grant was given back without a mark.
    given_back: BTreeMap<(String, u64), At>,
    /// Grants to whoever asked.
    passed: BTreeSet<(String, u64)>,
    /// When it last broke a promise: what was granted before may be granted again.
    broke: Option<At>,
    forgotten: Vec<Forgotten>,
}

impl<S: Service> State<S> {
    /// It breaks a promise; its clock showed `was`.
    fn breaks(&mut self, before: &S, was: Duration, now: At) {
        self.broke = Some(now);
        self.forgets(before, was, now);
        let (mut visit, back) = (Visit::at(self.clock, now), self.down_until.max(now));
        self.service.broke(before, &mut visit, back);
    }
}

impl<S: Service> State<S> {
    fn forgets(&mut self, before: &S, was: Duration, now: At) {
        let shows = self.clock.shows(now);
        let keys: BTreeSet<_> = self.grants.keys().map(|(key, _)| key.clone()).collect();
        for key in &keys {
            let left = self.service.holders(shows, key).unwrap_or_default();
            let had = before.holders(was, key).unwrap_or_default();
            for holder in had {
                // One that is shorter now ends before its owner thinks.
                let is_left = left
                    .iter()
                    .any(|one| one.owner == holder.owner && one.lasts >= holder.lasts);
                // By its session: it is not known how long that lasts.
                if !is_left || holder.lasts.is_none() {
                    self.cut_short.insert((key.clone(), holder.owner));
                }
                if let (false, Some(process), Some(lasts)) = (is_left, holder.process, holder.lasts)
                {
                    self.forgotten.push(Forgotten {
                        key: key.clone(),
                        owner: holder.owner,
                        process,
                        // By another clock.
                        known: now + lasts + lasts / 50,
                    });
                }
            }
        }
    }
}

impl<S: Service> Server<S> {
    pub(crate) fn start(id: ServerId, world: &Arc<World>, service: S) -> Arc<Self> {
        let drift = crate::world::MOST_DRIFT;
        let drift = world.draw(|chance| chance.i64(-drift..=drift));
        Arc::new(Self {
            id,
            world: Arc::clone(world),
            state: Mutex::new(State {
                service,
                clock: Clock::new(drift),
                down_until: At::ZERO,
                stands_until: At::ZERO,
                starts: 0,
                ears: BTreeMap::new(),
                weather: BTreeMap::new(),
                heard: BTreeMap::new(),
                in_vain: BTreeMap::new(),
                connections: 0,
                cuts: BTreeMap::new(),
                grants: BTreeMap::new(),
                given_to: BTreeMap::new(),
                cut_short: BTreeSet::new(),
                freed: BTreeMap::new(),
                marks: BTreeMap::new(),
                given_back: BTreeMap::new(),
                passed: BTreeSet::new(),
                broke: None,
                forgotten: Vec::new(),
            }),
        })
    }

    fn start_again(&self, down: Duration, with: Option<(S, Clock)>) {
        let now = self.world.now();
        self.world.log(|| format!("{:?} ends", self.id));
        let mut state = self.state();
        state.starts += 1;
        state.down_until = state.down_until.max(now + down);
        state.ears.clear();
        if let Some((service, clock)) = with {
            // What it has lost was held until now.
            let keys: BTreeSet<_> = state.grants.keys().map(|(key, _)| key.clone()).collect();
            for key in keys {
                let mut visit = Visit::at(state.clock, now);
                if state.service.is_held(&mut visit, &key) {
                    state.freed.insert(key, now);
                }
            }
            let before = std::mem::replace(&mut state.service, service);
            let was = state.clock.shows(now);
            state.clock = clock;
            state.breaks(&before, was, now);
        }
    }

    /// How often the connections of a process were cut.
    pub(super) fn cuts(&self, process: ProcessId) -> u32 {
        self.state().cuts.get(&process).copied().unwrap_or_default()
    }

    pub(super) fn next_connection(&self) -> u64 {
        let mut state = self.state();
        state.connections += 1;
        state.connections
    }

    pub(super) fn starts(&self) -> u32 {
        self.state().starts
    }

    pub(super) fn is_down(&self) -> bool {
        self.state().down_until > self.world.now()
    }

    pub(super) fn stands_until(&self) -> Option<At> {
        let until = self.state().stands_until;
        (until > self.world.now()).then_some(until)
    }

    pub(super) fn weather(&self, process: ProcessId) -> Weather {
        self.state()
            .weather
            .get(&process)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn is_heard(&self, process: ProcessId) {
        self.state().heard.insert(process, self.world.now());
    }

    pub(super) fn is_sent_in_vain(&self, process: ProcessId) {
        self.state().in_vain.insert(process, self.world.now());
    }

    /// Runs a command here and now.
    pub(crate) fn run(&self, command: S::Command) -> S::Answer {
        let (answer, pushed) = self.visit(|service, visit| service.run(visit, command));
        for (process, what) in pushed {
            self.push(process, what);
        }
        answer
    }

    fn visit<T>(&self, ask: impl FnOnce(&mut S, &mut Visit) -> T) -> (T, Vec<(ProcessId, Pushed)>) {
        let at = self.world.now();
        let mut state = self.state();
        let mut visit = Visit::at(state.clock, at);
        let answer = ask(&mut state.service, &mut visit);
        for (grant, owner) in visit.granted {
            state
                .given_to
                .entry(grant.clone())
                .or_default()
                .insert(owner);
            // Of a number that was given twice, the first counts.
            state.grants.entry(grant).or_insert((at, owner));
        }
        for key in visit.freed {
            state.freed.insert(key, at);
        }
        for key in visit.unmarked {
            for mark in state.marks.entry(key).or_default() {
                mark.over.get_or_insert(at);
            }
        }
        for (key, token, lasts) in visit.marked {
            let grant = (key, token);
            let owner = state.grants.get(&grant).map(|(_, owner)| *owner);
            state.marks.entry(grant.0).or_default().push(Marked {
                token,
                owner,
                set: at,
                lasts,
                over: None,
            });
        }
        for grant in visit.given_back {
            state.given_back.insert(grant, at);
        }
        state.passed.extend(visit.passed);
        for lease in &mut state.forgotten {
            if visit.knows.contains(&lease.owner) {
                lease.known = lease.known.min(at);
            }
        }
        (answer, visit.pushed)
    }

    fn push(&self, process: ProcessId, what: Pushed) {
        let weather = self.weather(process);
        let world = &self.world;
        if Weather::meets(weather.loses_messages, world) || weather.silent_back > world.now() {
            world.log(|| format!("{:?} loses {what:?} for {process:?}", self.id));
            return;
        }
        let Some((_, (ear, behind))) = self.state().ears.get(&process).cloned() else {
            return;
        };
        let arrives = behind.comes_behind(world.now() + weather.delay(world));
        world.at(arrives, move || {
            // It may have gone.
            let _ = ear.send(what);
        });
    }

    /// From now on this process is told.
    pub(super) fn listens(&self, process: ProcessId, number: u64, ear: Ear) {
        self.state().ears.insert(process, (number, ear));
    }

    pub(super) fn is_deaf(&self, process: ProcessId, number: u64) {
        let mut state = self.state();
        if state
            .ears
            .get(&process)
            .is_some_and(|(known, _)| *known == number)
        {
            state.ears.remove(&process);
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server, whatever it serves: what may befall it.
pub(crate) trait Machine: Send + Sync {
    fn id(&self) -> ServerId;

    fn change_weather(&self, process: ProcessId, change: &dyn Fn(&mut Weather));

    /// Ends all connections of a process.
    fn cut(&self, process: ProcessId);

    /// It runs nothing until then; what arrives waits.
    fn stand_still(&self, until: At);

    /// It ends, and starts again after this time with all that it had.
    fn restart(&self, down: Duration);

    /// It does so with what it had `lag` before that, which is then a promise broken.
    fn lose_writes(self: Arc<Self>, lag: Duration, down: Duration);

    /// Another takes its place, by a clock of its own, and with what it has been told
    /// until `lag` before that.
    fn fail_over(self: Arc<Self>, lag: Duration, down: Duration);

    /// Its clock is set by so many nanoseconds. A step ahead breaks promises: it
    /// cuts leases short.
    fn step_clock(&self, by: i64);
}

/// What is seen of a store, which is one server or several.
pub(crate) trait Witness: Send + Sync {
    /// Of so many servers, all locks are out of reach at least.
    fn blocking(&self) -> usize {
        1
    }

    /// Whether what was granted with this number was granted before a promise was
    /// broken, and so may have been granted to another.
    fn broke_promise_to(&self, key: &str, token: u64) -> bool;

    /// Whether the lease with this number was forgotten or cut short, so that another may
    /// have the lock beside it.
    fn may_be_overlapped(&self, key: &str, token: u64) -> bool {
        self.broke_promise_to(key, token)
    }

    /// Whether numbers from this one on may have been forgotten, and be given again.
    fn forgot_number(&self, key: &str, token: u64) -> bool {
        self.broke_promise_to(key, token)
    }

    /// Whether one of its answers has come to this process since then.
    fn was_heard_since(&self, process: ProcessId, since: At) -> bool;

    /// To which servers this process has sent something since then over a connection that had
    /// broken without a word.
    fn sent_in_vain_since(&self, process: ProcessId, since: At) -> Vec<ServerId>;

    /// Whether this lock was held at some time since then.
    fn was_held_since(&self, key: &str, since: At) -> bool;

    /// Who holds this lock, where this server alone decides that.
    fn holders(&self, _key: &str) -> Option<Vec<Holder>> {
        None
    }

    /// When this lock was last given back, or seen to have run out.
    fn freed(&self, _key: &str) -> Option<At> {
        None
    }

    /// Until when this process takes this lock for its own, by a lease that its server has
    /// forgotten.
    fn thinks_it_has(&self, _key: &str, _process: ProcessId) -> At {
        At::ZERO
    }

    /// Whether a grant with this first number was ever made.
    fn was_granted(&self, key: &str, token: u64) -> bool;

    /// When the grant with this first number was made, and to whom, where one server
    /// decides that.
    fn granted(&self, _key: &str, _token: u64) -> Option<(At, Owner)> {
        None
    }

    /// What was ever remembered of this lock, in the order in which it was set.
    fn marks(&self, _key: &str) -> Vec<Marked> {
        Vec::new()
    }

    /// When the grant with this first number was given back by its owner without a mark.
    fn given_back(&self, _key: &str, _token: u64) -> Option<At> {
        None
    }

    /// Whether the grant with this first number went to whoever asked, as those before had
    /// not for long.
    fn passed(&self, _key: &str, _token: u64) -> bool {
        false
    }

    /// What is left when all should have been given back.
    fn left(&self) -> Vec<String>;

    /// What nobody gave back, so that it ran out.
    fn ran_out(&self) -> Vec<RanOut> {
        Vec::new()
    }
}

/// Something of a process that has run out at a server.
#[derive(Clone)]
pub(crate) struct RanOut {
    pub(crate) process: ProcessId,
    pub(crate) server: ServerId,
    pub(crate) what: String,
    /// When it was last asked for.
    pub(crate) since: At,
    pub(crate) at: At,
}

impl fmt::Display for RanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            server,
            what,
            since,
            at,
        } = self;
        write!(
            f,
            "{what} of {process:?} at {server:?}, from {since:?} to {at:?}"
        )
    }
}

impl<S: Service> Machine for Server<S> {
    fn id(&self) -> ServerId {
        self.id
    }

    fn change_weather(&self, process: ProcessId, change: &dyn Fn(&mut Weather)) {
        change(self.state().weather.entry(process).or_default());
    }

    fn cut(&self, process: ProcessId) {
        let mut state = self.state();
        let cuts = state.cuts.entry(process).or_default();
        *cuts += 1;
        state.ears.remove(&process);
    }

    fn stand_still(&self, until: At) {
        let mut state = self.state();
        state.stands_until = state.stands_until.max(until);
    }

    fn restart(&self, down: Duration) {
        self.start_again(down, None);
    }

    fn lose_writes(self: Arc<Self>, lag: Duration, down: Duration) {
        let before = self.state().service.clone();
        let this = Arc::clone(&self);
        let ends = self.world.now() + lag;
        self.world.at(ends, move || {
            let clock = this.state().clock;
            this.start_again(down, Some((before, clock)));
        });
    }

    fn fail_over(self: Arc<Self>, lag: Duration, down: Duration) {
        let replica = self.state().service.clone();
        let most = crate::world::MOST_DRIFT;
        let drift = self.world.draw(|chance| chance.i64(-most..=most));
        let apart = self
            .world
            .draw(|chance| chance.i64(-CLOCKS_APART..=CLOCKS_APART));
        let this = Arc::clone(&self);
        let ends = self.world.now() + lag;
        self.world.at(ends, move || {
            let shown = this.state().clock.shows(ends);
            let mut clock = Clock::new(drift);
            clock.show(ends, shown);
            clock.step(apart);
            this.start_again(down, Some((replica, clock)));
        });
    }

    fn step_clock(&self, by: i64) {
        let now = self.world.now();
        let mut state = self.state();
        let was = state.clock.shows(now);
        state.clock.step(by);
        if by > 0 {
            let before = state.service.clone();
            state.breaks(&before, was, now);
        } else {
            let (visit, back) = (Visit::at(state.clock, now), state.down_until.max(now));
            state.service.clock_went_back(&visit, back);
        }
    }
}

impl<S: Service> Witness for Server<S> {
    fn broke_promise_to(&self, key: &str, token: u64) -> bool {
        let state = self.state();
        let Some(broke) = state.broke else {
            return false;
        };
        let first = token - token % dlock_runtime::TOKENS_PER_GRANT;
        let granted = state.grants.get(&(key.to_owned(), first));
        granted.is_some_and(|(at, _)| *at <= broke)
    }

    fn may_be_overlapped(&self, key: &str, token: u64) -> bool {
        let state = self.state();
        let grant = (
            key.to_owned(),
            token - token % dlock_runtime::TOKENS_PER_GRANT,
        );
        let mut owners = state.given_to.get(&grant).into_iter().flatten();
        owners.any(|owner| state.cut_short.contains(&(key.to_owned(), *owner)))
    }

    fn was_heard_since(&self, process: ProcessId, since: At) -> bool {
        let state = self.state();
        state.heard.get(&process).is_some_and(|at| *at >= since)
    }

    fn sent_in_vain_since(&self, process: ProcessId, since: At) -> Vec<ServerId> {
        let last = self.state().in_vain.get(&process).copied();
        let last = last.filter(|at| *at >= since);
        last.map(|_| self.id).into_iter().collect()
    }

    fn was_held_since(&self, key: &str, since: At) -> bool {
        let (is_held, pushed) = self.visit(|service, visit| service.is_held(visit, key));
        // Whoever was let in by that is told.
        for (process, what) in pushed {
            self.push(process, what);
        }
        is_held || self.state().freed.get(key).is_some_and(|at| *at >= since)
    }

    fn holders(&self, key: &str) -> Option<Vec<Holder>> {
        let at = self.world.now();
        let state = self.state();
        state.service.holders(state.clock.shows(at), key)
    }

    fn freed(&self, key: &str) -> Option<At> {
        self.state().freed.get(key).copied()
    }

    fn thinks_it_has(&self, key: &str, process: ProcessId) -> At {
        let state = self.state();
        let of_it = state.forgotten.iter();
        let of_it = of_it.filter(|lease| lease.key == key && lease.process == process);
        of_it.map(|lease| lease.known).max().unwrap_or_default()
    }

    fn was_granted(&self, key: &str, token: u64) -> bool {
        self.granted(key, token).is_some()
    }

    fn granted(&self, key: &str, token: u64) -> Option<(At, Owner)> {
        self.state().grants.get(&(key.to_owned(), token)).copied()
    }

    fn marks(&self, key: &str) -> Vec<Marked> {
        self.state().marks.get(key).cloned().unwrap_or_default()
    }

    fn given_back(&self, key: &str, token: u64) -> Option<At> {
        let state = self.state();
        state.given_back.get(&(key.to_owned(), token)).copied()
    }

    fn passed(&self, key: &str, token: u64) -> bool {
        self.state().passed.contains(&(key.to_owned(), token))
    }

    fn left(&self) -> Vec<String> {
        self.visit(S::left).0
    }
}

impl<S: Service> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}
