//! Contenders in processes of their own, some of them killed, some paused for
//! longer than their ttl. What they protect is a counter that sees everything;
//! its history must be one that a lock explains.
//!
//! Each store that processes can share runs all of it:
//! `contenders!(ItsStore)`.

use std::path::PathBuf;
use std::time::Duration;

use dlock::backend::TokenTier;
use dlock::{Config, LockError, LockManager};

use crate::conformance::Store;
use crate::support::dir::TempDir;
use crate::support::resource::Resource;
use crate::support::wait::{HANG, until, within};
use crate::support::worker::Worker;

pub(crate) mod contender;

/// Rounds of a worker that ends when it is told to, or dies.
pub(crate) const ENDLESS: usize = usize::MAX;

/// A store that several processes can share.
pub(crate) trait Shared: Store {
    /// Whether its grants have fencing tokens. The resource counts the grants of
    /// those that have none.
    const TOKENS: bool = true;

    /// Leads the other processes to it.
    fn url(&self) -> String;

    /// Whether a process that has been paused keeps all others from the store,
    /// for as long as it is. Only a store without a server has such moments.
    async fn is_stuck(&self) -> bool {
        false
    }

    /// Short enough that a dead holder's lock comes free within the test.
    fn ttl() -> Duration {
        Duration::from_millis(1_500)
    }
}

/// A test's view: a store, the resource, and the workers around them.
pub(crate) struct Scene<S> {
    pub(crate) store: S,
    pub(crate) resource: Resource,
    dir: TempDir,
}

impl<S: Shared> Scene<S> {
    async fn set() -> Self {
        Self::around(S::start().await)
    }

    pub(crate) fn around(store: S) -> Self {
        Self {
            store,
            resource: Resource::start(),
            dir: TempDir::new(),
        }
    }

    pub(crate) fn worker(
        &self,
        role: &str,
        name: &str,
        tasks: usize,
        rounds: usize,
        stubborn: bool,
    ) -> Worker {
        Worker::start(
            role,
            &[
                ("NAME", name),
                ("URL", &self.store.url()),
                ("RESOURCE", &self.resource.address().to_string()),
                ("TASKS", &tasks.to_string()),
                ("ROUNDS", &rounds.to_string()),
                ("STOP", self.stop_sign().to_str().expect("a path of text")),
                ("STUBBORN", if stubborn { "yes" } else { "no" }),
                ("TTL", &S::ttl().as_millis().to_string()),
                ("TOKENS", if S::TOKENS { "yes" } else { "no" }),
            ],
        )
    }

    /// Pauses a worker, at a moment when that is no matter to the store.
    pub(crate) async fn pause(&self, worker: &Worker) {
        worker.pause();
        while self.store.is_stuck().await {
            worker.resume();
            tokio::task::yield_now().await;
            worker.pause();
        }
    }

    /// Where the workers look whether to stop.
    pub(crate) fn stop_sign(&self) -> PathBuf {
        self.dir.path().join("stop")
    }

    pub(crate) async fn judge(&self) -> LockManager {
        let config = Config::from_url(&self.store.url()).expect("a valid URL");
        let judge = LockManager::connect(config).await.expect("a connection");
        assert_eq!(judge.capabilities().tokens > TokenTier::None, S::TOKENS);
        judge
    }

    /// Waits until so many processes wait for the lock.
    async fn waiting(&self, judge: &LockManager, count: usize) {
        let waiters = async || self.store.waiters(judge, "counter").await;
        until("they wait", waiters, |&waiting| waiting == count).await;
    }

    /// Waits until `worker` is in its critical section, where its read is not
    /// answered.
    pub(crate) async fn inside(&self, worker: &str) {
        let inside = async || self.resource.history().is_inside(worker);
        until(&format!("{worker} is inside"), inside, |&inside| inside).await;
    }

    /// Waits until `worker` has got in `count` more times.
    pub(crate) async fn adds(&self, worker: &str, count: usize) {
        let writes = async || self.resource.history().writes_of(worker);
        let before = writes().await;
        until("it goes on", writes, |&now| now >= before + count).await;
    }

    /// Waits until others have got in `count` more times.
    pub(crate) async fn others_add(&self, worker: &str, count: usize) {
        let others = async || {
            let history = self.resource.history();
            usize::try_from(history.value()).expect("a small number") - history.writes_of(worker)
        };
        let before = others().await;
        until("others go on", others, |&now| now >= before + count).await;
    }
}

pub(crate) async fn all_end_well(workers: &mut [Worker]) {
    for worker in workers {
        let status = worker.end().await;
        assert!(status.success(), "a worker failed: {status}");
    }
}

pub(crate) async fn processes_add_up<S: Shared>() {
    let scene = Scene::<S>::set().await;
    let mut workers: Vec<_> = ["a", "b", "c"]
        .map(|name| scene.worker("contend", name, 3, 20, false))
        .into();
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    history.check();
    assert_eq!(history.value(), 3 * 3 * 20);
}

/// Killed inside its critical section: the lock comes free within the ttl, and
/// nobody notices more than that.
pub(crate) async fn a_killed_holder_frees_its_lock<S: Shared>() {
    let scene = Scene::<S>::set().await;
    scene.resource.hold_back("victim");
    let mut victim = scene.worker("contend", "victim", 1, ENDLESS, false);
    scene.inside("victim").await;
    let mut workers: Vec<_> = ["a", "b"]
        .map(|name| scene.worker("contend", name, 2, 20, false))
        .into();
    let judge = scene.judge().await;
    scene.waiting(&judge, 2).await;
    victim.kill();
    scene.resource.suspended("victim");
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    history.check();
    assert_eq!(history.value(), 2 * 2 * 20);
    assert_eq!(history.writes_of("victim"), 0);
    until(
        "nothing is left",
        async || judge.list("").await.expect("list"),
        Vec::is_empty,
    )
    .await;
}

/// Killed while it waits, in front of the others.
pub(crate) async fn a_killed_waiter_delays_the_rest_for_a_bounded_time<S: Shared>() {
    let scene = Scene::<S>::set().await;
    let judge = scene.judge().await;
    let guard = judge.lock("counter").acquire().await.expect("the lock");
    let mut victim = scene.worker("contend", "victim", 2, 5, false);
    scene.waiting(&judge, 1).await;
    let mut workers = vec![scene.worker("contend", "a", 2, 5, false)];
    scene.waiting(&judge, 2).await;
    victim.kill();
    scene.resource.suspended("victim");
    guard.release().await.expect("the release");
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    history.check();
    assert_eq!(history.value(), 2 * 5);
    until(
        "nothing is left",
        async || judge.list("").await.expect("list"),
        Vec::is_empty,
    )
    .await;
}

/// Paused inside for longer than its ttl: others go on, and when it comes back
/// its body is dropped before it writes.
pub(crate) async fn a_paused_holder_stops_when_it_comes_back<S: Shared>() {
    let scene = Scene::<S>::set().await;
    scene.resource.hold_back("victim");
    let victim = scene.worker("contend", "victim", 1, 3, false);
    scene.inside("victim").await;
    let mut workers = vec![scene.worker("contend", "a", 2, 20, false)];

    scene.pause(&victim).await;
    scene.resource.suspended("victim");
    // The read is answered, but nobody is awake to hear it.
    scene.resource.answer("victim");
    scene.others_add("victim", 5).await;
    scene.resource.resumed("victim");
    victim.resume();

    workers.push(victim);
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    history.check();
    assert_eq!(history.value(), 2 * 20 + 3);
    assert_eq!(history.reports_of("victim"), ["lost"]);
}

/// The same with a body that goes on regardless: its late write is refused.
pub(crate) async fn a_paused_holder_that_writes_late_is_refused<S: Shared>() {
    if !S::TOKENS {
        return;
    }
    let scene = Scene::<S>::set().await;
    scene.resource.hold_back("victim");
    let victim = scene.worker("contend", "victim", 1, 3, true);
    scene.inside("victim").await;
    let mut workers = vec![scene.worker("contend", "a", 2, 20, false)];

    scene.pause(&victim).await;
    scene.resource.suspended("victim");
    scene.resource.answer("victim");
    scene.others_add("victim", 5).await;
    scene.resource.resumed("victim");
    victim.resume();

    workers.push(victim);
    all_end_well(&mut workers).await;
    let history = scene.resource.history();
    history.check();
    assert_eq!(history.value(), 2 * 20 + 3);
    assert_eq!(history.reports_of("victim"), ["outdated"]);
}

/// Many processes; some are paused at random moments, some are killed.
pub(crate) async fn kills_and_pauses_at_random_moments_add_up<S: Shared>() {
    const SURVIVORS: [&str; 3] = ["a", "b", "c"];
    const VICTIMS: [&str; 6] = ["u", "v", "w", "x", "y", "z"];
    let scene = Scene::<S>::set().await;
    let mut survivors: Vec<_> = SURVIVORS
        .map(|name| scene.worker("contend", name, 3, ENDLESS, false))
        .into();
    for (number, name) in VICTIMS.into_iter().enumerate() {
        let mut victim = scene.worker("contend", name, 3, ENDLESS, number % 2 == 0);
        scene.adds(name, 3).await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
        scene.pause(&victim).await;
        scene.resource.suspended(name);
        // If it was paused inside, the others go on when its ttl has passed.
        scene.others_add(name, 10).await;
        scene.resource.resumed(name);
        victim.resume();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..20_000))).await;
        victim.kill();
        scene.resource.suspended(name);
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
    until(
        "nothing is left",
        async || judge.list("").await.expect("list"),
        Vec::is_empty,
    )
    .await;
}

/// A holder in another process, seen from this one.
pub(crate) async fn another_processs_lock_is_busy_until_it_dies<S: Shared>() {
    let scene = Scene::<S>::set().await;
    let judge = scene.judge().await;
    let mut holder = scene.worker("hold", "holder", 0, 0, false);
    let reports = async || scene.resource.history().reports_of("holder").len();
    until("it holds", reports, |&reports| reports == 1).await;
    // Renewed from over there.
    tokio::time::sleep(2 * S::ttl()).await;
    let busy = judge.lock("counter").try_acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    holder.kill();
    within(HANG, judge.lock("counter").run(async {}))
        .await
        .expect("the lock");
}

/// Makes a test of each, for one store: a type that implements [`Shared`].
macro_rules! contenders {
    ($store:ty) => {
        $crate::contenders::contenders! { @cases $store;
            processes_add_up
            a_killed_holder_frees_its_lock
            a_killed_waiter_delays_the_rest_for_a_bounded_time
            a_paused_holder_stops_when_it_comes_back
            a_paused_holder_that_writes_late_is_refused
            kills_and_pauses_at_random_moments_add_up
            another_processs_lock_is_busy_until_it_dies
        }

        /// In a normal run this does nothing; see [`support::worker`].
        #[test]
        fn plays_a_role() {
            if let Some(role) = $crate::support::worker::role() {
                $crate::contenders::contender::play(&role);
            }
        }
    };
    (@cases $store:ty; $($case:ident)*) => {
        mod processes {
            $(
                #[tokio::test]
                async fn $case() {
                    $crate::contenders::$case::<$store>().await;
                }
            )*
        }
    };
}
pub(crate) use contenders;
