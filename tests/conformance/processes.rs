//! Contenders in processes of their own, some of them killed, some paused for
//! longer than their ttl. What they protect is a counter that sees everything;
//! its history must be one that a lock explains.
//!
//! Each store that processes can share runs all of it:
//! [`contenders!(crate::ItsStore)`](crate::contenders!).

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use dlock::backend::TokenTier;
use dlock::{Config, LockManager};

use crate::support::dir::TempDir;
use crate::support::locks::{connect, had, held, is_busy, nothing_left};
use crate::support::resource::Resource;
use crate::support::wait::until;
use crate::support::worker::Worker;
use crate::{Running, Store, block_on};

#[doc(hidden)]
pub mod contender;

/// Rounds of a worker that ends when it is told to, or dies.
pub const ENDLESS: usize = usize::MAX;

/// A store that several processes can share.
#[async_trait(?Send)]
pub trait Shared: Store {
    /// Whether its grants have fencing tokens. The resource counts the grants of
    /// those that have none.
    fn tokens(&self) -> bool {
        true
    }

    /// Leads the other processes to it.
    fn url(&self) -> String;

    /// What they connect with. A store of one's own has no URL that dlock knows.
    fn config_at(url: &str) -> Config
    where
        Self: Sized,
    {
        Config::from_url(url).expect("a valid URL")
    }

    /// Whether a process that has been paused keeps all others from the store,
    /// for as long as it is. Only a store without a server has such moments.
    async fn is_stuck(&self) -> bool {
        false
    }

    /// Short enough that a dead holder's lock comes free within the test.
    fn ttl(&self) -> Duration {
        Duration::from_millis(1_500)
    }
}

/// A test's view: a store, the resource, and the workers around them.
#[derive(Debug)]
pub struct Scene<S: ?Sized> {
    /// What the workers contend on.
    pub store: Box<S>,
    /// What the workers take the lock for.
    pub resource: Resource,
    dir: TempDir,
}

impl<S: Shared + ?Sized> Scene<S> {
    /// Around a store, with nobody there yet.
    pub fn around(store: Box<S>) -> Self {
        Self {
            store,
            resource: Resource::start(),
            dir: TempDir::default(),
        }
    }

    /// Starts one more process, which plays `role` as `name`: so many tasks take the
    /// lock so many times. A stubborn one goes on when it has lost it.
    pub fn worker(
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
                ("TTL", &self.store.ttl().as_millis().to_string()),
                ("TOKENS", if self.store.tokens() { "yes" } else { "no" }),
            ],
        )
    }

    /// Pauses a worker, at a moment when that is no matter to the store.
    pub async fn pause(&self, worker: &Worker) {
        worker.pause();
        while self.store.is_stuck().await {
            worker.resume();
            tokio::task::yield_now().await;
            worker.pause();
        }
    }

    /// Where the workers look whether to stop.
    pub fn stop_sign(&self) -> PathBuf {
        self.dir.path().join("stop")
    }

    /// One more process, as far as the store can tell: this one.
    pub async fn judge(&self) -> LockManager {
        let judge = connect(self.store.config()).await;
        assert_eq!(
            judge.capabilities().tokens > TokenTier::None,
            self.store.tokens()
        );
        judge
    }

    /// Waits until so many processes wait for the lock.
    async fn waiting(&self, judge: &LockManager, count: usize) {
        let waiters = async || self.store.waiters(judge, "counter").await;
        until("they wait", waiters, |&waiting| waiting == count).await;
    }

    /// Waits until `worker` is in its critical section, where its read is not
    /// answered.
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
        let others = async || {
            let history = self.resource.history();
            usize::try_from(history.value()).expect("a small number") - history.writes_of(worker)
        };
        let before = others().await;
        until("others go on", others, |&now| now >= before + count).await;
    }
}

/// Waits until all of them have done what they were started for.
pub async fn all_end_well(workers: &mut [Worker]) {
    for worker in workers {
        let status = worker.end().await;
        assert!(status.success(), "a worker failed: {status}");
    }
}

async fn processes_add_up(scene: Scene<dyn Shared>) {
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
async fn a_killed_holder_frees_its_lock(scene: Scene<dyn Shared>) {
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
    nothing_left(&judge).await;
}

/// Killed while it waits, in front of the others.
async fn a_killed_waiter_delays_the_rest_for_a_bounded_time(scene: Scene<dyn Shared>) {
    let judge = scene.judge().await;
    let guard = held(judge.lock("counter")).await;
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
    nothing_left(&judge).await;
}

/// Paused inside for longer than its ttl: others go on, and when it comes back
/// its body is dropped before it writes.
async fn a_paused_holder_stops_when_it_comes_back(scene: Scene<dyn Shared>) {
    comes_back_late(scene, false, "lost").await;
}

/// The same with a body that goes on regardless: its late write is refused.
async fn a_paused_holder_that_writes_late_is_refused(scene: Scene<dyn Shared>) {
    if scene.store.tokens() {
        comes_back_late(scene, true, "outdated").await;
    }
}

async fn comes_back_late(scene: Scene<dyn Shared>, stubborn: bool, reports: &str) {
    scene.resource.hold_back("victim");
    let victim = scene.worker("contend", "victim", 1, 3, stubborn);
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
    assert_eq!(history.reports_of("victim"), [reports]);
}

/// Many processes; some are paused at random moments, some are killed.
async fn kills_and_pauses_at_random_moments_add_up(scene: Scene<dyn Shared>) {
    const SURVIVORS: [&str; 3] = ["a", "b", "c"];
    const VICTIMS: [&str; 6] = ["u", "v", "w", "x", "y", "z"];
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
    nothing_left(&judge).await;
}

/// A holder in another process, seen from this one.
async fn another_processs_lock_is_busy_until_it_dies(scene: Scene<dyn Shared>) {
    let judge = scene.judge().await;
    let mut holder = scene.worker("hold", "holder", 0, 0, false);
    let reports = async || scene.resource.history().reports_of("holder").len();
    until("it holds", reports, |&reports| reports == 1).await;
    // Renewed from over there.
    tokio::time::sleep(2 * scene.store.ttl()).await;
    is_busy(judge.lock("counter").try_acquire().await);
    holder.kill();
    had(&judge, "counter").await;
}

/// Runs one case around a store of its own.
#[doc(hidden)]
pub fn run<S: Shared + 'static>(case: fn(Scene<dyn Shared>) -> Running<'static>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    block_on(
        &mut runtime,
        Box::pin(async move { case(Scene::around(Box::new(S::start().await))).await }),
    );
}

/// All cases, for a macro that makes something of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __contenders {
    ([$($then:tt)*] $($with:tt)*) => {
        $($then)*! { $($with)*
            processes_add_up
            a_killed_holder_frees_its_lock
            a_killed_waiter_delays_the_rest_for_a_bounded_time
            a_paused_holder_stops_when_it_comes_back
            a_paused_holder_that_writes_late_is_refused
            kills_and_pauses_at_random_moments_add_up
            another_processs_lock_is_busy_until_it_dies
        }
    };
}

macro_rules! cases {
    ($($case:ident)*) => {
        #[doc(hidden)]
        pub mod cases {$(
            pub fn $case(scene: super::Scene<dyn super::Shared>) -> super::Running<'static> {
                Box::pin(super::$case(scene))
            }
        )*}
    };
}
__contenders! { [cases] }

/// Makes a test of each, for one store: the path, from the crate's root, of a type
/// that implements [`Shared`]. With names of cases behind it, of those only, in a
/// test program that has the rest for another store.
///
/// The workers are the test program itself, as its test `plays_a_role`.
#[macro_export]
macro_rules! contenders {
    ($store:ty) => {
        $crate::__contenders! { [$crate::contenders] $store: }

        /// In a normal run this does nothing.
        #[test]
        fn plays_a_role() {
            if let Some(role) = $crate::support::worker::role() {
                $crate::processes::contender::play(&role, <$store as $crate::processes::Shared>::config_at);
            }
        }
    };
    ($store:ty: $($case:ident)*) => {
        mod processes {$(
            #[test]
            fn $case() {
                $crate::processes::run::<$store>($crate::processes::cases::$case);
            }
        )*}
    };
}
