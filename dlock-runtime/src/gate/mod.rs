//! The gate: tasks of this process that want the same key queue here, and one
//! of them speaks to the store.
//!
//! There is a queue for each key and ttl, for writers only: readers do not
//! exclude each other, so each of them asks the store by itself. Whoever finds
//! no queue opens one and *leads* it: the right to speak to the store is its
//! [`Baton`]. What the leader gets is a [`Turn`]: a lease together with the
//! baton. After a body that ended normally the turn may go to the next task in
//! the queue without the store being asked; otherwise the lease goes back and
//! the baton passes on. Dropping either, at any moment, does the same.
//!
//! A task that is not polled drops nothing. Whatever it is given therefore lies
//! where the [`sweep`] can take it back: see there.

mod asking;
mod attention;
mod name;
mod outage;
mod place;
mod queue;
mod several;
mod sweep;
mod ticket;
mod turn;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Wake;
use std::time::Duration;

use asking::{Alone, Asked, Asking, Polling};
use name::{Hashed, Name};
pub(crate) use outage::Whereabouts;
use outage::{Place, Probe};
use place::StorePlace;
use queue::{Neglected, Queue};
pub(crate) use several::Collecting;
use several::{Other, Others};
use sweep::{Sweep, Tick};
use ticket::{Came, Delivery, Ticket, Waiting};
pub(crate) use turn::Turn;

use crate::backend::{BackendError, Mode, Owner, Progress, Request};
use crate::lease::{Follower, LeaseGuard, Leases, NotHad};
use crate::observe::{self, SectionSpan};

/// The gate of one manager.
#[derive(Debug)]
pub(crate) struct Gate {
    leases: Arc<Leases>,
    /// How many times in a row a lease may be handed over.
    handoff: u32,
    /// A queue is here while somebody leads it or has a turn.
    queues: Mutex<Queues>,
    /// What no queue knows.
    others: Mutex<Others>,
    /// Nobody outside can choose keys that fall together.
    hasher: RandomState,
    sweep: Arc<Sweep>,
}

type Queues = HashMap<Name, Queue, Hashed>;

/// For how long a task that does not wait for the lock leaves it to another, which
/// asks already, to hear from the store.
const SHARED_FOR: Duration = Duration::from_millis(500);

/// How a task comes to the gate.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// Does not wait, neither here nor in the store.
    pub(crate) try_only: bool,
    /// Needs a lease that comes from the store, not one that was used before:
    /// it will not be renewed.
    pub(crate) fresh: bool,
    /// What it is asked for.
    pub(crate) section: &'a SectionSpan,
}

/// Why there is no turn.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Busy,
    Store(BackendError),
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self::Store(error)
    }
}

impl From<NotHad> for Refusal {
    fn from(not_had: NotHad) -> Self {
        Self::Store(not_had.into_error())
    }
}

/// How a task is received at the gate.
enum Joined {
    Leads(Baton),
    Waits(Waiting),
    /// Somebody else speaks to the store. What that hears is the answer.
    Shares(Waiting),
    Busy,
}

impl Gate {
    pub(crate) fn new(leases: Arc<Leases>, handoff: u32) -> Arc<Self> {
        Arc::new_cyclic(|gate| Self {
            leases,
            handoff,
            queues: Mutex::default(),
            others: Mutex::default(),
            hasher: RandomState::new(),
            sweep: Sweep::new(gate.clone()),
        })
    }

    /// Waits for a turn on `key`. May be dropped at any await: the place in
    /// the queue goes to the next task, and a turn that crosses with the drop
    /// is passed on. It may also be left unpolled: what it was given is then
    /// taken back, and it queues again when it is polled.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: Arc<str>,
        entry: &Entry<'_>,
        whereabouts: &Whereabouts,
    ) -> Result<Turn, Refusal> {
        if entry.mode != Mode::Write {
            return Box::pin(self.enter_alone(key, entry, whereabouts)).await;
        }
        let name = Name::new(key, entry.ttl, &self.hasher);
        whereabouts.set(|| Place::InProcess {
            name: name.clone(),
            since: self.leases.now(),
        });
        loop {
            let came = match self.lead_or_queue(&name, entry) {
                Joined::Leads(baton) => Came::For(Delivery::Lead(baton)),
                Joined::Waits(mut waiting) => waiting.comes().await,
                Joined::Shares(waiting) => match Box::pin(self.share(waiting, entry)).await {
                    Some(answer) => return answer,
                    None => continue,
                },
                Joined::Busy => return Err(Refusal::Busy),
            };
            let baton = match came {
                Came::For(Delivery::Turn(turn)) => return Ok(turn),
                Came::For(Delivery::Failed(refusal)) => return Err(refusal),
                Came::For(Delivery::Lead(baton)) => baton,
                Came::Called | Came::TooLate => continue,
            };
            if let Some(answer) = baton.lead(entry).await {
                return answer;
            }
        }
    }

    /// Asks the store for one task only. Readers do: each has a lease of its own.
    async fn enter_alone(
        self: &Arc<Self>,
        key: Arc<str>,
        entry: &Entry<'_>,
        whereabouts: &Whereabouts,
    ) -> Result<Turn, Refusal> {
        loop {
            let answer = match self.request(Arc::clone(&key), entry.mode, entry.ttl) {
                Ok(request) => {
                    whereabouts.set(|| Place::InStore(request.progress().clone()));
                    let place =
                        StorePlace::begin(&self.leases, request, entry.try_only, entry.section);
                    Alone::begin(self, place, entry.section.labels()).await
                }
                Err(error) => Some(Err(error.into())),
            };
            let Some(answer) = answer else { continue };
            let lease = self.leases.answered(answer, entry.section.clone())?;
            return lease.map(Turn::alone).ok_or(Refusal::Busy);
        }
    }

    /// Opens the queue, or joins it.
    fn lead_or_queue(self: &Arc<Self>, name: &Name, entry: &Entry<'_>) -> Joined {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            queues.insert(name.clone(), Queue::default());
            return Joined::Leads(Baton::new(self, name, None));
        };
        if let Some(place) = queue.take_loose() {
            return Joined::Leads(Baton::new(self, name, place));
        }
        if entry.try_only && queue.is_held() {
            return Joined::Busy;
        }
        let labels = entry.section.labels();
        let (ahead, is_asked) = (queue.len(), queue.progress().is_some());
        let ticket = if entry.try_only {
            queue.join_tries(labels)
        } else {
            queue.join(entry.fresh, labels)
        };
        drop(queues);
        let waiting = Waiting::new(Arc::clone(self), name.clone(), ticket, entry.try_only);
        if entry.try_only {
            return Joined::Shares(waiting);
        }
        if is_asked {
            self.sweep.arm();
        }
        observe::waits_in_process(name.key(), ahead);
        Joined::Waits(waiting)
    }

    /// Waits for what the store tells whoever speaks to it: that is the answer
    /// of a task that does not wait for the lock, too. But for what was told
    /// before it came: then the store is asked whether it is still there. And if
    /// nothing is told for a while, this task asks by itself: the runtime of the
    /// other may be blocked, and a backend need not say that the lock is held.
    ///
    /// Whoever else comes and goes meanwhile, a silent store is waited for only
    /// once. `None`: it was given something and did not come in time.
    async fn share(
        self: &Arc<Self>,
        mut waiting: Waiting,
        entry: &Entry<'_>,
    ) -> Option<Result<Turn, Refusal>> {
        let since = self.leases.now();
        let name = waiting.name().clone();
        let progress = || self.queues().get(&name).and_then(Queue::progress).cloned();
        let mut asked = progress();
        let heard_before = asked.as_ref().is_some_and(Progress::has_heard);
        let probe = heard_before.then(|| self.probe(&name)).flatten();
        let asks = AtomicBool::new(false);
        let mut alone = pin!(async {
            self.leases.executor().sleep(SHARED_FOR).await;
            asks.store(true, Relaxed);
            let nowhere = Whereabouts::new(false);
            let key = Arc::clone(name.key());
            self.enter_alone(key, entry, &nowhere).await
        });
        loop {
            tokio::select! {
                biased;
                came = waiting.comes() => match came {
                    // Somebody else asks now.
                    Came::Called => asked = progress(),
                    Came::TooLate => return None,
                    Came::For(Delivery::Turn(turn)) => return Some(Ok(turn)),
                    Came::For(Delivery::Failed(refusal)) => return Some(Err(refusal)),
                    // It has asked already.
                    Came::For(Delivery::Lead(baton)) if asks.load(Relaxed) => {
                        drop(baton);
                        return Some(alone.await);
                    }
                    Came::For(Delivery::Lead(baton)) => return tokio::select! {
                        biased;
                        answer = baton.lead(entry) => answer,
                        Err(error) = answer_of(probe.as_deref()) => Some(Err(error.into())),
                    },
                },
                () = hears(asked.as_ref(), since) => return Some(Err(Refusal::Busy)),
                answer = answer_of(probe.as_deref()) => return Some(Err(match answer {
                    // Whoever leads is before this one.
                    Ok(()) => Refusal::Busy,
                    Err(error) => error.into(),
                })),
                answer = &mut alone, if probe.is_none() => return Some(answer),
            }
        }
    }

    /// A request to the store: all that tasks ask it for begins here.
    fn request(&self, key: Arc<str>, mode: Mode, ttl: Duration) -> Result<Request, BackendError> {
        let clock = self.leases.executor().clock();
        Ok(Request::of(Owner::draw()?, clock, key, mode, ttl))
    }

    /// The baton of a queue that has nobody to lead it, for who has come; who
    /// waited leaves the queue with it.
    fn take_loose(self: &Arc<Self>, name: &Name, ticket: &Ticket, tries: bool) -> Option<Baton> {
        let mut queues = self.queues();
        let queue = queues.get_mut(name).filter(|queue| queue.is_loose())?;
        if !ticket.leave() {
            return None;
        }
        if tries {
            queue.left_tries();
        } else {
            queue.left();
        }
        let place = queue.take_loose()?;
        Some(Baton::new(self, name, place))
    }

    /// A waiter was dropped.
    fn left(&self, name: &Name, tries: bool) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            return;
        };
        if tries {
            queue.left_tries();
        } else {
            queue.left();
        }
        if queue.is_loose() && queue.is_deserted() {
            let queue = queues.remove(name);
            drop(queues);
            // With the place, if there is one.
            drop(queue);
        }
    }

    /// Nobody may come for the baton for long: the first who comes has it.
    fn let_loose(&self, name: &Name, place: Option<StorePlace>) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            return;
        };
        if queue.is_deserted() {
            let queue = queues.remove(name);
            drop(queues);
            drop((queue, place));
            return;
        }
        let called = queue.let_loose(place);
        drop(queues);
        self.sweep.arm();
        called.into_iter().for_each(std::task::Waker::wake);
    }

    /// Takes back what nobody has come for. Whether there is more that may come
    /// to that.
    fn sweep(&self, tick: Tick) -> bool {
        let mut neglected = Vec::new();
        let mut outstanding = false;
        for queue in self.queues().values_mut() {
            outstanding |= queue.look(tick, &mut neglected);
        }
        let others = self.others().all();
        for other in others {
            match other {
                Other::Asking(asking) => {
                    outstanding |= queue::look_at(&asking, tick, &mut neglected);
                }
                Other::Collected(collected) => {
                    outstanding = true;
                    let turns = collected.look(tick).unwrap_or_default();
                    if let Some(turn) = turns.first() {
                        observe::nobody_came(turn.lease().key());
                    }
                    drop(turns);
                }
            }
        }
        for one in neglected {
            self.take_back(one);
        }
        outstanding
    }

    fn take_back(&self, neglected: Neglected) {
        match neglected {
            Neglected::Unseen(ticket) => ticket.show(),
            Neglected::Unheard(asking) => self.show_if_granted(asking),
            // It may have an answer that its runtime, which is blocked, would have
            // to hear.
            Neglected::Ahead(asking) => asking.wake(),
            Neglected::Given(ticket) => match ticket.take_back() {
                Some(Delivery::Turn(turn)) => {
                    if let Some(name) = turn.queue() {
                        observe::nobody_came(name.key());
                        if let Some(queue) = self.queues().get_mut(name) {
                            queue.doubt();
                        }
                    }
                    turn.give_back();
                }
                Some(Delivery::Lead(baton)) => {
                    observe::nobody_came(baton.name.key());
                    baton.let_loose();
                }
                Some(Delivery::Failed(_)) | None => {}
            },
            Neglected::Asking(asking) => match asking.take_away() {
                Some(Asked::Leads(baton)) => {
                    observe::nobody_came(baton.name.key());
                    baton.let_loose();
                }
                Some(Asked::Alone(place)) => {
                    observe::nobody_came(&place.request.key);
                    drop(place);
                }
                None => {}
            },
            Neglected::Place { .. } => {}
        }
    }

    /// Nobody is there to hear the store's answer. Whether it has granted the
    /// lock, it is asked.
    fn show_if_granted(&self, asking: Arc<Asking>) {
        let backend = Arc::clone(self.leases.backend());
        let runtime = self.leases.executor().keeper_runtime();
        runtime.spawn(async move {
            let request = asking.request();
            if let Ok(Some(lock)) = backend.inspect(&request.key).await
                && lock
                    .holders
                    .iter()
                    .any(|holder| backend.is_owner(holder, request.asker()))
            {
                asking.show();
            }
        });
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // No code of ours panics while it holds this.
        self.queues
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

async fn hears(progress: Option<&Progress>, since: tokio::time::Instant) {
    match progress {
        Some(progress) => progress.hears_since(since).await,
        None => std::future::pending().await,
    }
}

async fn answer_of(probe: Option<&Probe>) -> Result<(), BackendError> {
    match probe {
        Some(probe) => probe.answer().await,
        None => std::future::pending().await,
    }
}

/// The right to speak to the store for one queue. Dropped, it goes to the next
/// task in the queue, with the place in the store's queue if there is one; the
/// last one closes the queue.
struct Baton {
    gate: Arc<Gate>,
    name: Name,
    place: Option<StorePlace>,
    /// It has been passed on, or left to whoever comes.
    passed: bool,
}

impl Baton {
    fn new(gate: &Arc<Gate>, name: &Name, place: Option<StorePlace>) -> Self {
        Self {
            gate: Arc::clone(gate),
            name: name.clone(),
            place,
            passed: false,
        }
    }

    /// Asks the store until it grants or refuses; `None` if that was taken away
    /// from a task that was not polled.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an `async fn` has room for its arguments twice: rust-lang/rust#62958"
    )]
    fn lead(mut self, entry: &Entry<'_>) -> impl Future<Output = Option<Result<Turn, Refusal>>> {
        async move {
            let gate = Arc::clone(&self.gate);
            let (baton, answer) = match self.request(entry) {
                Ok(request) => self.ask(request, entry).await?,
                Err(error) => (Some(self), Err(error.into())),
            };
            let baton = baton?;
            Some(match gate.leases.answered(answer, entry.section.clone()) {
                Ok(Some(lease)) => Ok(baton.begin_turns(lease)),
                Ok(None) => {
                    baton.tell_tries(&Refusal::Busy);
                    Err(Refusal::Busy)
                }
                Err(NotHad::Store(error)) => {
                    let refusal = Refusal::from(error);
                    baton.fail_all(&refusal);
                    Err(refusal)
                }
                // The next one asks by itself.
                Err(too_late @ NotHad::TooLate(_)) => Err(too_late.into()),
            })
        }
    }

    /// The request whose place in the store's queue it has, or a new one.
    fn request(&mut self, entry: &Entry<'_>) -> Result<Request, BackendError> {
        let try_only = entry.try_only;
        self.place.take_if(|place| try_only || !place.is_of_use());
        if let Some(place) = &self.place {
            return Ok(place.request.clone());
        }
        let key = Arc::clone(self.name.key());
        let request = self.gate.request(key, Mode::Write, self.name.ttl())?;
        let asked = request.clone();
        let place = StorePlace::begin(&self.gate.leases, asked, try_only, entry.section);
        self.place = Some(place);
        Ok(request)
    }

    fn ask(self, request: Request, entry: &Entry<'_>) -> Polling {
        let gate = Arc::clone(&self.gate);
        let name = self.name.clone();
        let labels = entry.section.labels();
        let asking = Asking::begin(&gate.sweep, request, Asked::Leads(self), labels);
        let (before, called) = {
            let mut queues = gate.queues();
            match queues.get_mut(&name) {
                Some(queue) => queue.asks(Arc::clone(&asking)),
                None => (None, Vec::new()),
            }
        };
        drop(before);
        called.into_iter().for_each(std::task::Waker::wake);
        Polling::new(asking)
    }

    /// A fresh lease serves those who queue now, up to the limit: whoever
    /// comes later queues behind the other processes that wait in the store.
    fn begin_turns(self, lease: LeaseGuard) -> Turn {
        let (waiting, asked, tries) = {
            let mut queues = self.gate.queues();
            match queues.get_mut(&self.name) {
                Some(queue) => {
                    let (asked, tries) = queue.holds();
                    (queue.len(), asked, tries)
                }
                None => (0, None, Vec::new()),
            }
        };
        drop(asked);
        for one in tries {
            one.deliver(Delivery::Failed(Refusal::Busy));
        }
        let handovers = u32::try_from(waiting)
            .unwrap_or(u32::MAX)
            .min(self.gate.handoff);
        Turn::first(lease, handovers, self)
    }

    /// An outage is everybody's: those behind would only wait for it again,
    /// one after the other.
    fn fail_all(&self, refusal: &Refusal) {
        let waiters = self.gate.queues().get_mut(&self.name).map(Queue::take_all);
        for waiter in waiters.into_iter().flatten() {
            waiter.deliver(Delivery::Failed(refusal.clone()));
        }
    }

    /// The answer is that of those who wait for one only.
    fn tell_tries(&self, refusal: &Refusal) {
        let tries = self
            .gate
            .queues()
            .get_mut(&self.name)
            .map(Queue::take_tries);
        for one in tries.into_iter().flatten() {
            one.deliver(Delivery::Failed(refusal.clone()));
        }
    }

    /// Leaves it to whoever comes first.
    fn let_loose(mut self) {
        self.passed = true;
        let place = self.place.take().filter(StorePlace::can_be_kept);
        self.gate.let_loose(&self.name, place);
    }
}

impl Follower for Baton {
    fn lease_returns(&self) {
        let now = self.gate.leases.now();
        if let Some(queue) = self.gate.queues().get_mut(&self.name) {
            queue.returns(now);
        }
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        if self.passed {
            return;
        }
        let mut place = self.place.take().filter(StorePlace::can_be_kept);
        let mut queues = self.gate.queues();
        let Some(queue) = queues.get_mut(&self.name) else {
            return;
        };
        if queue.is_doubtful() {
            drop(queues);
            return self.gate.let_loose(&self.name, place);
        }
        let Some((next, waits)) = queue.next_leader(place.is_some()) else {
            let queue = queues.remove(&self.name);
            drop(queues);
            return drop(queue);
        };
        drop(queues);
        // Who does not wait does not go on waiting for another.
        let kept = if waits { place.take() } else { None };
        drop(place);
        // A waiter that was dropped just now drops what it is given, which
        // brings it here again for the one after.
        next.deliver(Delivery::Lead(Self::new(&self.gate, &self.name, kept)));
        self.gate.sweep.arm();
    }
}

impl std::fmt::Debug for Baton {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Baton")
            .field("name", &self.name)
            .field("in_store_queue", &self.place.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::owner::refusal;
    use crate::{Config, LockError, LockManager};

    /// Says what is wrong, and what to do.
    fn is_told<T: std::fmt::Debug>(answer: Result<T, LockError>) {
        let error = answer.expect_err("the kernel refuses");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
        for part in ["`key`", "random numbers", "`getrandom`"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn no_request_is_made_of_what_a_clone_has_too() {
        let manager = LockManager::connect(Config::default()).await;
        let manager = manager.expect("memory connects");
        let lock = || manager.lock("key");
        refusal::set(true);
        is_told(lock().acquire().await);
        is_told(lock().read().acquire().await);
        is_told(lock().try_acquire().await);
        is_told(lock().read().try_acquire().await);
        is_told(manager.lock(["key", "other"]).acquire().await);
        refusal::set(false);

        // A turn that is not handed over leaves the next to ask the store.
        let guard = lock().acquire().await.expect("free");
        let behind = [(); 2].map(|()| tokio::spawn(lock().acquire()));
        tokio::task::yield_now().await;
        refusal::set(true);
        drop(guard);
        for one in behind {
            is_told(one.await.expect("no panic"));
        }
        refusal::set(false);

        drop(lock().acquire().await.expect("free again"));
        assert!(manager.list("").await.expect("it answers").is_empty());
    }
}
