//! Since when a lock is held that was waited for: its node says so once it was renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use dlock::backend::HolderInfo;
use dlock::{LockError, LockGuard, LockManager};
use tokio::time::sleep;
use zookeeper_client::{Acls, Stat};

use crate::harness::{Scene, connect};
use crate::messages::{Asked, Counter, Reader, operation, read_by};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{held, is_taken_out, nothing_left, queued, served, shown};
use crate::support::wait::{HANG, eventually, until, within};

// `ZooDefs.OpCode`.
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const PING: i32 = 11;
const MULTI: i32 = 14;
const MULTI_READ: i32 = 22;

/// Of a lock that is renewed more than a second after its grant.
const TTL: Duration = Duration::from_secs(4);
/// A machine that stands still for so long may do so several times within one lease.
const STANDSTILL: Duration = Duration::from_millis(250);

async fn holder(manager: &LockManager) -> HolderInfo {
    shown(manager, "key").await.holders.remove(0)
}

async fn says_since(manager: &LockManager) -> HolderInfo {
    let seen = async || holder(manager).await;
    until("it says since when", seen, |holder| holder.since.is_some()).await
}

/// The content of the first node, and what the server says of it.
async fn first(scene: &Scene) -> (String, Stat) {
    let client = scene.server.client().await;
    let node = scene.nodes("key").await.remove(0);
    let path = format!("{}/key/{node}", scene.root);
    let (data, stat) = client.get_data(&path).await.expect("the node");
    (String::from_utf8(data).expect("text"), stat)
}

/// One who has waited for the lock behind another of this manager.
async fn waited(scene: &Scene, other: &LockManager, manager: &LockManager) -> LockGuard {
    let guard = held(other.lock("key")).await;
    let waiting = tokio::spawn(manager.lock("key").ttl(TTL).acquire());
    scene.has_nodes("key", 2).await;
    guard.release().await.expect("the release");
    served(waiting).await
}

fn at(scene: &Scene, port: u16) -> String {
    format!("zookeeper://127.0.0.1:{port}{}", scene.root)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waited_says_since_when_it_holds_the_lock() {
    unless_it_stands_still(STANDSTILL, who_waited_says_since_when).await;
}

async fn who_waited_says_since_when() {
    let scene = Scene::set().await;
    let (one, next) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let operator = connect(&scene.url()).await;
    let guard = held(one.lock("key").ttl(Duration::from_secs(3))).await;
    let waiting = tokio::spawn(next.lock("key").ttl(TTL).acquire());
    queued(&operator, "key", 1).await;
    // It is renewed within a second, and has not waited.
    sleep(Duration::from_millis(1_500)).await;
    assert!(holder(&operator).await.since.is_none());
    assert_eq!(first(&scene).await.1.version, 0);
    let given_back = SystemTime::now();
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    let had = SystemTime::now();

    let seen = says_since(&operator).await;
    let since = seen.since.expect("it says so");
    // To the millisecond.
    let granted = given_back - Duration::from_millis(1)..=had;
    assert!(granted.contains(&since), "{since:?} not in {granted:?}");
    assert!(seen.since_by_holder && seen.process.is_some());
    assert_eq!(seen.token, Some(guard.token()));
    let ms = since.duration_since(SystemTime::UNIX_EPOCH).expect("now");
    let (said, stat) = first(&scene).await;
    assert!(said.ends_with(&format!(";{}", ms.as_millis())), "{said}");
    assert_eq!(stat.version, 1);
    // Once.
    sleep(TTL / 2).await;
    assert!(guard.is_held());
    assert_eq!(first(&scene).await, (said, stat));

    // It is broken by its owner, as that was shown before too.
    let broken = within(HANG, operator.break_holder("key", &seen.owner)).await;
    assert!(broken.expect("an answer").is_some());
    within(HANG, guard.lost()).await;
    let lost = guard.release().await.expect_err("it is lost");
    assert!(matches!(lost, LockError::Lost { .. }), "{lost:?}");
    nothing_left(&operator).await;
    assert!(scene.nodes("key").await.is_empty(), "it was made again");
}

/// Its node was made when it got the lock, by the leader's clock. That nobody was ahead of it can be
/// seen until somebody else comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_did_not_wait_is_shown_by_the_leaders_clock_while_it_is_alone() {
    let scene = Scene::set().await;
    let (one, next) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let operator = connect(&scene.url()).await;
    let guard = held(one.lock("key")).await;
    let made_at = first(&scene).await.1.ctime;
    let seen = holder(&operator).await;
    let since = seen.since.expect("it says so");
    let ms = since.duration_since(SystemTime::UNIX_EPOCH).expect("now");
    assert_eq!(i64::try_from(ms.as_millis()), Ok(made_at));
    assert!(!seen.since_by_holder);
    let listed = operator.list("key").await.expect("a list").remove(0);
    assert_eq!(listed.holders[0].since, seen.since);

    // Nobody can tell whether this one came before or after it.
    let waiting = tokio::spawn(next.lock("key").acquire());
    queued(&operator, "key", 1).await;
    assert_eq!(holder(&operator).await.since, None);
    // The next has not renewed, and its node is older than its grant.
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    assert_eq!(holder(&operator).await.since, None);
    // Nor is it shown of one of two readers who came first.
    guard.release().await.expect("the release");
    let _first = held(one.lock("key").read()).await;
    let _second = held(next.lock("key").read()).await;
    let readers = shown(&operator, "key").await.holders;
    let since: Vec<_> = readers.iter().map(|one| one.since.is_some()).collect();
    assert_eq!(since, [false, true]);
}

/// What a process asks, and how often it lists a folder to find out whose turn it is.
#[derive(Default)]
struct Asks {
    counter: Counter,
    lists: AtomicU64,
}

impl Asks {
    /// What is asked until this operation is.
    async fn up_to(&self, last: i32) -> Asked {
        let mut all = Asked::new();
        eventually("it is asked for", async || {
            for (operation, count) in self.counter.since_last() {
                *all.entry(operation).or_default() += count;
            }
            all.contains_key(&last).then(|| all.clone())
        })
        .await
    }
}

impl Reader for Asks {
    fn asked(&self, request: Vec<u8>) -> Vec<u8> {
        // It is read together with the folder.
        let floor = b"/%token-floor";
        let lists = request.windows(floor.len()).any(|part| part == floor);
        self.lists.fetch_add(lists.into(), Relaxed);
        self.counter.asked(request)
    }
}

/// It is in the transaction that renews the lease. The waiter behind it watches again, and does
/// not list the folder; it is still taken out when it is told to leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_costs_one_round_trip_of_the_next_in_the_queue() {
    unless_it_stands_still(STANDSTILL, async || {
        let scene = Scene::set().await;
        let [holds, waits] = [Arc::<Asks>::default(), Arc::default()];
        let over = async |asks: &Arc<Asks>| {
            let port = read_by(Arc::clone(asks), scene.server.port()).await;
            connect(&at(&scene, port)).await
        };
        let (manager, next) = (over(&holds).await, over(&waits).await);
        let operator = connect(&scene.url()).await;
        let guard = held(operator.lock("key")).await;
        // It is renewed seconds after its grant.
        let ttl = Duration::from_secs(10);
        let waiting = tokio::spawn(manager.lock("key").ttl(ttl).acquire());
        queued(&operator, "key", 1).await;
        let behind = tokio::spawn(next.lock("key").acquire());
        // The second question of a watch.
        waits.up_to(EXISTS).await;
        guard.release().await.expect("the release");
        let guard = served(waiting).await;
        holds.counter.since_last();
        waits.lists.store(0, Relaxed);
        says_since(&operator).await;
        let mut again = waits.up_to(EXISTS).await;
        // Looks at what is waited for come every few seconds.
        again.retain(|operation, _| ![PING, MULTI_READ].contains(operation));
        assert_eq!(again, Asked::from([(GET_DATA, 1), (EXISTS, 1)]));
        assert_eq!(waits.lists.load(Relaxed), 0);
        let mut renewed = holds.counter.since_last();
        renewed.remove(&PING);
        assert_eq!(renewed, Asked::from([(MULTI, 1)]));
        assert!(guard.is_held() && !behind.is_finished());

        let owner = shown(&operator, "key").await.queue[0].owner.clone();
        let out = within(HANG, operator.break_waiter("key", &owner)).await;
        assert!(out.expect("an answer").is_some());
        is_taken_out(within(HANG, behind).await.expect("no panic"));
        assert!(holder(&operator).await.since.is_some(), "it stays");
        guard.release().await.expect("the release");
        nothing_left(&operator).await;
    })
    .await;
}

/// Not even the wake-up of the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_renewed_says_nothing() {
    unless_it_stands_still(STANDSTILL, async || {
        let scene = Scene::set().await;
        let url = format!("{}?session_timeout=40s", scene.url());
        let (one, next) = (connect(&url).await, connect(&url).await);
        let guard = held(one.lock("key")).await;
        let waiting = tokio::spawn(next.lock("key").ttl(Duration::from_secs(20)).acquire());
        scene.has_nodes("key", 2).await;
        guard.release().await.expect("the release");
        let guard = served(waiting).await;
        let before = scene.server.transactions();
        // Its renewals look at the other lock too.
        let beside = held(next.lock("beside").ttl(Duration::from_secs(1))).await;
        let renewals = async || scene.server.transactions();
        until("it is renewed", renewals, |now| *now > before + 4).await;
        assert_eq!(first(&scene).await.1.version, 0);
        drop(beside);
        guard.release().await.expect("the release");
    })
    .await;
}

/// Writes get there, and the answers to the first ones do not come back.
#[derive(Default)]
struct Unanswered {
    loses: AtomicBool,
    lost: AtomicU64,
    /// The connections over which they were asked for are over.
    number: std::sync::Mutex<Option<i32>>,
}

impl Reader for Unanswered {
    fn asked(&self, request: Vec<u8>) -> Vec<u8> {
        if operation(&request) == Some(MULTI) && self.loses.swap(false, Relaxed) {
            *self.number.lock().expect("no panic") = crate::messages::number(&request, 4);
        }
        request
    }

    fn answered(&self, answer: Vec<u8>) -> Vec<u8> {
        let mut number = self.number.lock().expect("no panic");
        if number.is_some() && *number == crate::messages::number(&answer, 4) {
            *number = None;
            self.lost.fetch_add(1, Relaxed);
            return Vec::new();
        }
        answer
    }
}

/// It is written again, with the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_changes_nothing() {
    unless_it_stands_still(STANDSTILL, async || {
        let scene = Scene::set().await;
        let reader = Arc::<Unanswered>::default();
        let port = read_by(Arc::clone(&reader), scene.server.port()).await;
        let hasty = crate::harness::config(&at(&scene, port));
        let hasty = hasty.request_timeout(Duration::from_secs(1));
        let manager = crate::support::locks::connect(hasty).await;
        let other = connect(&scene.url()).await;
        let guard = waited(&scene, &other, &manager).await;
        reader.loses.store(true, Relaxed);
        let seen = says_since(&other).await;
        let version = async || first(&scene).await.1.version;
        until("it is written again", version, |version| *version == 2).await;
        assert_eq!(reader.lost.load(Relaxed), 1);
        assert_eq!(holder(&other).await.since, seen.since);
        sleep(TTL / 2).await;
        assert_eq!(version().await, 2);
        assert!(guard.is_held());
        guard.release().await.expect("the release");
        nothing_left(&other).await;
    })
    .await;
}

/// Its lease goes on all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_may_not_be_written_says_nothing() {
    unless_it_stands_still(STANDSTILL, async || {
        let scene = Scene::set().await;
        let (other, manager) = (connect(&scene.url()).await, connect(&scene.url()).await);
        let guard = waited(&scene, &other, &manager).await;
        let node = scene.nodes("key").await.remove(0);
        let path = format!("{}/key/{node}", scene.root);
        let client = scene.server.client().await;
        let read_only = client.set_acl(&path, &Acls::anyone_read(), None).await;
        read_only.expect("its rights");
        sleep(TTL * 3 / 2).await;
        assert!(guard.is_held());
        assert!(holder(&other).await.since.is_none());
        guard.release().await.expect("the release");
        nothing_left(&other).await;
    })
    .await;
}

/// The next one takes its turn, and nothing is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_gone_is_not_made_again() {
    unless_it_stands_still(STANDSTILL, async || {
        let scene = Scene::set().await;
        let (other, manager) = (connect(&scene.url()).await, connect(&scene.url()).await);
        let guard = waited(&scene, &other, &manager).await;
        let node = scene.nodes("key").await.remove(0);
        scene.delete("key", &node).await;
        within(HANG, guard.lost()).await;
        let next = held(other.lock("key")).await;
        sleep(TTL / 2).await;
        assert_eq!(scene.nodes("key").await.len(), 1);
        assert!(next.is_held());
        next.release().await.expect("the release");
        let lost = guard.release().await.expect_err("it is lost");
        assert!(matches!(lost, LockError::Lost { .. }), "{lost:?}");
        nothing_left(&other).await;
    })
    .await;
}
