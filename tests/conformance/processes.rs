//! Contenders in separate processes, some of which are killed, and some paused for longer than
//! their ttl. They protect a counter that records everything; a working lock must explain its
//! history.
//!
//! Each store that processes can share runs all of these tests:
//! [`contenders!(crate::ItsStore)`](crate::contenders!).

use std::path::PathBuf;
use std::time::Duration;

use dlock::LockManager;
use dlock::backend::TokenTier;

use crate::Store;
use crate::support::calm::unless_it_stands_still;
use crate::support::dir::TempDir;
use crate::support::locks::{connect, held, nothing_left};
use crate::support::process::Process;
use crate::support::resource::{History, Resource};
use crate::support::wait::until;
use crate::support::worker;

#[doc(hidden)]
pub mod contender;
mod doers;
mod sharers;

/// The rounds of a worker that runs until it is told to stop, or dies.
pub const ENDLESS: usize = usize::MAX;

/// What a test has: a store, the resource, and the workers.
#[derive(Debug)]
pub struct Scene<'a, S: ?Sized> {
    /// The store that the workers use.
    pub store: &'a mut S,
    /// The resource that the lock protects.
    pub resource: Resource,
    dir: TempDir,
}

impl<'a, S: Store + ?Sized> Scene<'a, S> {
    /// Creates a scene for a store, without workers.
    pub fn around(store: &'a mut S) -> Self {
        Self {
            store,
            resource: Resource::start(),
            dir: TempDir::default(),
        }
    }

    /// Starts one more process, which plays `role` as `name`: `tasks` tasks take the lock
    /// `rounds` times. A stubborn worker continues after it has lost the lock.
    pub fn worker(
        &self,
        role: &str,
        name: &str,
        tasks: usize,
        rounds: usize,
        stubborn: bool,
    ) -> Process {
        self.worker_above(0, role, name, tasks, rounds, stubborn)
    }

    /// Like [`worker`](Self::worker), with a floor for the tokens; 0: none.
    fn worker_above(
        &self,
        floor: u64,
        role: &str,
        name: &str,
        tasks: usize,
        rounds: usize,
        stubborn: bool,
    ) -> Process {
        worker::start(
            role,
            &[
                ("NAME", name),
                ("FLOOR", &floor.to_string()),
                ("URL", &self.store.url()),
                ("RESOURCE", &self.resource.address().to_string()),
                ("TASKS", &tasks.to_string()),
                ("ROUNDS", &rounds.to_string()),
                ("STOP", self.stop_sign().to_str().expect("a path of text")),
                ("STUBBORN", if stubborn { "yes" } else { "no" }),
                ("TTL", &self.store.contenders_ttl().as_millis().to_string()),
                ("TOKENS", if self.store.has_tokens() { "yes" } else { "no" }),
            ],
        )
    }

    /// Pauses a worker, at a moment when that does not block the store.
    pub async fn pause(&self, worker: &Process) {
        pause(self.store, worker).await;
    }

    /// The file that tells the workers to stop.
    pub fn stop_sign(&self) -> PathBuf {
        self.dir.path().join("stop")
    }

    /// A manager in this process, which looks like one more process to the store.
    pub async fn judge(&self) -> LockManager {
        let judge = connect(self.store.config()).await;
        let tokens = judge.capabilities().tokens;
        assert_eq!(tokens > TokenTier::None, self.store.has_tokens());
        judge
    }

    /// Waits until this many processes wait for the lock.
    async fn waiting(&self, judge: &LockManager, count: usize) {
        let waiters = async || self.store.waiters(judge, "counter").await;
        until("they wait", waiters, |&waiting| waiting == count).await;
    }

    /// The same while `holder` holds the lock. Its lease may end on a machine that stands still:
    /// then they do not all wait.
    async fn waiting_unless_lost(&self, judge: &LockManager, count: usize, holder: &str) {
        let state = async || {
            let lost = !self.resource.history().reports_of(holder).is_empty();
            (self.store.waiters(judge, "counter").await, lost)
        };
        let done = |&(waiting, lost): &(usize, bool)| waiting == count || lost;
        until("they wait", state, done).await;
    }

    /// Waits until `worker` is in its critical section, where its read is not answered.
    pub async fn inside(&self, worker: &str) {
        let inside = async || self.resource.history().is_inside(worker);
        until(&format!("{worker} is inside"), inside, |&inside| inside).await;
    }

    /// Waits until `worker` has got in `count` more times.
    pub async fn adds(&self, worker: &str, count: usize) {
        let writes = async || self.resource.history().writes_of(worker);
        let before = writes().await;
        until("it goes on", writes, |&now| now >= before + count).await;
    }

    /// Waits until others have got in `count` more times.
    pub async fn others_add(&self, worker: &str, count: usize) {
        let before = self.others(worker);
        self.others_have(worker, before + count).await;
    }

    /// Waits until others have got in `count` times in all.
    async fn others_have(&self, worker: &str, count: usize) {
        let others = async || self.others(worker);
        until("others go on", others, |&now| now >= count).await;
    }

    /// How many times others have got in.
    fn others(&self, worker: &str) -> usize {
        let history = self.resource.history();
        usize::try_from(history.value()).expect("a small number") - history.writes_of(worker)
    }
}

/// Waits until all workers have ended successfully.
pub async fn all_end_well(workers: &mut [Process]) {
    for worker in workers {
        let status = worker.end().await;
        assert!(status.success(), "a worker failed: {status}");
    }
}

/// Checks that the bodies of each of these workers have added this many, and nobody else any. If
/// a lease ends on a machine that stands still, its body is dropped, which the worker reports: it
/// may have added one before, and runs again.
fn added_up(history: &History, workers: &[(&str, usize)]) {
    history.check();
    let mut all = 0;
    for &(name, bodies) in workers {
        let (written, failed) = (history.writes_of(name), history.reports_of(name).len());
        let range = bodies..=bodies + failed;
        assert!(
            range.contains(&written),
            "{name}: {written} is not in {range:?}"
        );
        all += written as u64;
    }
    assert_eq!(history.value(), all);
}

pub(crate) async fn processes_add_up(store: &mut dyn Store) {
    let scene = Scene::around(store);
    let mut workers: Vec<_> = ["a", "b", "c"]
        .map(|name| scene.worker("contend", name, 3, 20, false))
        .into();
    all_end_well(&mut workers).await;
    let bodies = ["a", "b", "c"].map(|name| (name, 3 * 20));
    added_up(&scene.resource.history(), &bodies);
}

/// Processes that name a floor replace those that do not, one by one. Every grant after the first
/// of them has started has a token above the floor, and no work is refused.
pub(crate) async fn a_deploy_in_which_half_name_a_floor_adds_up(store: &mut dyn Store) {
    if !store.lifts_tokens() {
        return;
    }
    let scene = Scene::around(store);
    let old = |name| scene.worker("contend", name, 2, ENDLESS, false);
    let (mut first, mut second) = (old("old-a"), old("old-b"));
    for name in ["old-a", "old-b"] {
        scene.adds(name, 3).await;
    }
    let floor = scene.resource.history().newest() + 1_000_000_000_000;
    let new = |name| scene.worker_above(floor, "contend", name, 2, ENDLESS, false);
    let third = new("new-a");
    for name in ["new-a", "old-a", "old-b"] {
        scene.adds(name, 3).await;
    }
    assert!(scene.resource.history().newest() > floor);
    // Before it is killed: on a slow machine, its lease may have ended directly after that.
    scene.resource.suspended("old-a");
    first.kill();
    let fourth = new("new-b");
    for name in ["new-b", "old-b", "new-a"] {
        scene.adds(name, 3).await;
    }
    scene.resource.suspended("old-b");
    second.kill();
    for name in ["new-a", "new-b"] {
        scene.adds(name, 3).await;
    }
    std::fs::write(scene.stop_sign(), "").expect("a file");
    all_end_well(&mut [third, fourth]).await;
    let history = scene.resource.history();
    history.check();
    for name in ["old-a", "old-b", "new-a", "new-b"] {
        let reports = history.reports_of(name);
        assert!(!reports.contains(&"outdated"), "{name}: {reports:?}");
    }
}

/// A holder is killed inside its critical section: the lock becomes free within the ttl, and
/// nobody notices more than that.
pub(crate) async fn a_killed_holder_frees_its_lock(store: &mut dyn Store) {
    let scene = Scene::around(store);
    scene.resource.hold_back("victim");
    let mut victim = scene.worker("contend", "victim", 1, ENDLESS, false);
    scene.inside("victim").await;
    let mut workers: Vec<_> = ["a", "b"]
        .map(|name| scene.worker("contend", name, 2, 20, false))
        .into();
    let judge = scene.judge().await;
    scene.waiting_unless_lost(&judge, 2, "victim").await;
    scene.resource.suspended("victim");
    victim.kill();
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    added_up(&history, &[("a", 2 * 20), ("b", 2 * 20)]);
    assert_eq!(history.writes_of("victim"), 0);
    nothing_left(&judge).await;
}

/// A waiter is killed in front of the others.
pub(crate) async fn a_killed_waiter_delays_the_rest_for_a_bounded_time(store: &mut dyn Store) {
    let scene = Scene::around(store);
    let judge = scene.judge().await;
    let guard = held(judge.lock("counter")).await;
    let mut victim = scene.worker("contend", "victim", 2, 5, false);
    scene.waiting(&judge, 1).await;
    let mut workers = vec![scene.worker("contend", "a", 2, 5, false)];
    scene.waiting(&judge, 2).await;
    scene.resource.suspended("victim");
    victim.kill();
    guard.release().await.expect("the release");
    all_end_well(&mut workers).await;
    added_up(&scene.resource.history(), &[("a", 2 * 5)]);
    nothing_left(&judge).await;
}

/// A holder is paused inside for longer than its ttl: the others go on, and when it is resumed,
/// its body is dropped before it writes.
pub(crate) async fn a_paused_holder_stops_when_it_comes_back(store: &mut dyn Store) {
    comes_back_late(store, false, "lost").await;
}

/// The same with a body that continues anyway: its late write is refused.
pub(crate) async fn a_paused_holder_that_writes_late_is_refused(store: &mut dyn Store) {
    if store.has_tokens() {
        comes_back_late(store, true, "outdated").await;
    }
}

async fn comes_back_late(store: &mut dyn Store, stubborn: bool, reports: &str) {
    // Nobody else may lose its lease, or be told of an outage.
    let renewals = store.contenders_ttl() / 4;
    let test = async || comes_back(&mut *store, stubborn, reports).await;
    unless_it_stands_still(renewals, test).await;
}

async fn comes_back(store: &mut dyn Store, stubborn: bool, reports: &str) {
    let scene = Scene::around(store);
    scene.resource.hold_back("victim");
    let victim = scene.worker("contend", "victim", 1, 3, stubborn);
    scene.inside("victim").await;
    let mut workers = vec![scene.worker("contend", "a", 2, 20, false)];

    scene.resource.suspended("victim");
    scene.pause(&victim).await;
    // The read is answered, but the paused process cannot receive the answer.
    scene.resource.answer("victim");
    // In all: on a slow machine they may have begun.
    scene.others_have("victim", 5).await;
    scene.resource.resumed("victim");
    victim.resume();

    workers.push(victim);
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    added_up(&history, &[("a", 2 * 20), ("victim", 3)]);
    let told = history.reports_of("victim");
    assert_eq!(told[0], reports);
    // The body that reported did not write.
    assert!(history.writes_of("victim") < 3 + told.len());
}

/// Pauses a process, at a moment when that does not block the store.
async fn pause(store: &(impl Store + ?Sized), process: &Process) {
    process.pause();
    while store.is_stuck().await {
        // On a busy machine it takes a while until it gets to the end of its write.
        process.resume();
        until(
            "it goes on",
            async || store.is_stuck().await,
            |stuck| !stuck,
        )
        .await;
        process.pause();
    }
}

/// Many processes; some are paused at random moments, some are killed.
pub(crate) async fn kills_and_pauses_at_random_moments_add_up(store: &mut dyn Store) {
    // No survivor may lose its lease.
    let renewals = store.contenders_ttl() / 4;
    unless_it_stands_still(renewals, async || random_kills_add_up(&mut *store).await).await;
}

async fn random_kills_add_up(store: &mut dyn Store) {
    let scene = Scene::around(store);
    const SURVIVORS: [&str; 3] = ["a", "b", "c"];
    const VICTIMS: [&str; 6] = ["u", "v", "w", "x", "y", "z"];
    let mut survivors: Vec<_> = SURVIVORS
        .map(|name| scene.worker("contend", name, 3, ENDLESS, false))
        .into();
    for (number, name) in VICTIMS.into_iter().enumerate() {
        let mut victim = scene.worker("contend", name, 3, ENDLESS, number % 2 == 0);
        scene.adds(name, 3).await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
        scene.resource.suspended(name);
        scene.pause(&victim).await;
        // If it was paused inside, the others continue when its ttl has passed.
        scene.others_add(name, 10).await;
        scene.resource.resumed(name);
        victim.resume();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..20_000))).await;
        scene.resource.suspended(name);
        victim.kill();
    }
    scene.others_add("nobody", 10).await;
    std::fs::write(scene.stop_sign(), "").expect("a file");
    all_end_well(&mut survivors).await;
    let history = scene.resource.history();
    history.check();
    for name in SURVIVORS {
        assert!(history.writes_of(name) > 0, "{name} was never let in");
        assert!(
            history.reports_of(name).is_empty(),
            "{name}: {:?}",
            history.reports_of(name)
        );
    }
    let judge = scene.judge().await;
    nothing_left(&judge).await;
}

/// Never more are inside than there are permits, and in the end all permits are in use again.
pub(crate) async fn permits_bear_kills_and_pauses(store: &mut dyn Store) {
    let judge = connect(store.config()).await;
    if judge.capabilities().permits {
        let renewals = store.contenders_ttl() / 4;
        let shares = async || sharers::bear_kills_and_pauses(&*store, &judge).await;
        unless_it_stands_still(renewals, shares).await;
    }
}

/// Every slot is done, and only a few are done twice: those at which a victim was working.
pub(crate) async fn what_is_done_bears_kills_and_pauses(store: &mut dyn Store) {
    let judge = connect(store.config()).await;
    if judge.capabilities().once {
        let renewals = store.contenders_ttl() / 4;
        let done = async || doers::bear_kills_and_pauses(&*store, &judge).await;
        unless_it_stands_still(renewals, done).await;
    }
}

/// The work is done again: nobody else knows that it was done.
pub(crate) async fn a_death_between_the_end_of_the_body_and_its_mark_runs_it_again(
    store: &mut dyn Store,
) {
    let judge = connect(store.config()).await;
    if judge.capabilities().once {
        let renewals = store.contenders_ttl() / 4;
        let dies = async || doers::die_before_the_mark(&*store, &judge).await;
        unless_it_stands_still(renewals, dies).await;
    }
}
