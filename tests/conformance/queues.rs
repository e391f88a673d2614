//! Guarantees 6 and 7: nobody keeps waiting for a free lock, and waiters are served in order.

use std::future::{Future as _, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock::{LockError, LockManager, LockRequest};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{PASSED_OVER, Store, connect, nothing_left, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::critical::Section;
use crate::support::locks::{all_served, held};
use crate::support::polls::{drive_until, join_all, poll_once};
use crate::support::wait::{HANG, within};

/// Two processes hand the lock to each other, over and over. With a store that misses wake-ups,
/// or only looks from time to time, this would not end in time.
pub(crate) async fn a_released_lock_wakes_its_waiter(store: &mut dyn Store) {
    let hand_overs = store.hand_overs();
    let section = Arc::new(Section::default());
    let mut players = JoinSet::new();
    for _ in 0..2 {
        let manager = process(store).await;
        let section = Arc::clone(&section);
        players.spawn(async move {
            for _ in 0..hand_overs / 2 {
                manager.lock("ball").run(section.visit()).await?;
            }
            Ok::<_, LockError>(())
        });
    }
    all_served(players).await;
    assert_eq!((section.entries(), section.most()), (hand_overs, 1));
}

pub(crate) async fn processes_are_served_in_order(store: &mut dyn Store) {
    let in_order = async || are_served_in_order(store, 6, Duration::ZERO).await;
    unless_it_stands_still(PASSED_OVER / 3, in_order).await;
}

/// Longer than a place lasts, of which nobody says that its process is alive.
const LONG: Duration = Duration::from_secs(10);

/// A place that was lost is taken again, behind the one that came later and is not as old yet.
pub(crate) async fn who_waits_long_keeps_its_place(store: &mut dyn Store) {
    let in_order = async || are_served_in_order(store, 2, LONG / 2).await;
    unless_it_stands_still(PASSED_OVER / 3, in_order).await;
}

/// So many processes wait, each of which comes so long after the one before.
async fn are_served_in_order(store: &dyn Store, processes: usize, apart: Duration) {
    let holder = process(store).await;
    if !holder.capabilities().fair {
        return;
    }
    let served = Arc::new(Mutex::new(Vec::new()));
    let guard = held(holder.lock("key")).await;
    let mut waiters = JoinSet::new();
    for number in 0..processes {
        let served = Arc::clone(&served);
        let body = async move { served.lock().expect("the order").push(number) };
        waiters.spawn(process(store).await.lock("key").run(body));
        // The next one comes when this one is in the queue.
        queued(store, &holder, "key", number + 1).await;
        sleep(apart).await;
    }
    guard.release().await.expect("the release");
    all_served(waiters).await;
    assert_eq!(
        *served.lock().expect("the order"),
        Vec::from_iter(0..processes)
    );
}

pub(crate) async fn tasks_of_one_process_are_served_in_order(store: &mut dyn Store) {
    let (manager, holder) = (process(store).await, process(store).await);
    let served = Mutex::new(Vec::new());
    let mut waiting = Vec::new();
    let guard = held(holder.lock("key")).await;
    for number in 0..5 {
        let served = &served;
        let body = async move {
            served.lock().expect("the order").push(number);
            tokio::task::yield_now().await;
        };
        let mut task = Box::pin(manager.lock("key").run(body));
        // A task has its place after its first poll.
        poll_once(&mut task).await;
        waiting.push(task);
    }
    let serve = async {
        // The last task is polled first; only the places count.
        for answer in join_all(waiting.into_iter().rev()).await {
            answer.expect("the lock");
        }
    };
    let release = async {
        queued(store, &holder, "key", 1).await;
        guard.release().await.expect("the release");
    };
    within(HANG, async { tokio::join!(serve, release) }).await;
    assert_eq!(*served.lock().expect("the order"), [0, 1, 2, 3, 4]);
}

/// A process whose tasks never stop wanting the lock lets another one in.
pub(crate) async fn a_handing_over_process_lets_others_in(store: &mut dyn Store) {
    let (greedy, other) = (process(store).await, process(store).await);
    if greedy.capabilities().fair {
        lets_others_in(greedy, other, |manager| manager.lock("key")).await;
    }
}

/// While eight tasks of one process want the lock again and again, another process gets it five
/// times.
pub(super) async fn lets_others_in(
    greedy: LockManager,
    other: LockManager,
    wants: impl Fn(&LockManager) -> LockRequest + Clone + Send + 'static,
) {
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (greedy, wants) = (greedy.clone(), wants.clone());
        tasks.spawn(async move {
            loop {
                let body = tokio::time::sleep(Duration::from_millis(1));
                wants(&greedy).run(body).await.expect("the lock");
            }
        });
    }
    for _ in 0..5 {
        held(wants(&other))
            .await
            .release()
            .await
            .expect("the release");
    }
    tasks.shutdown().await;
    nothing_left(&other).await;
}

/// With `handoff(0)`, the store alone decides: a process that waits in its queue gets the lock
/// before the second task of the process in front of it.
pub(crate) async fn strict_order_hands_nothing_over(store: &mut dyn Store) {
    let mut attempt = 0;
    unless_it_stands_still(PASSED_OVER / 3, async || {
        attempt += 1;
        hands_nothing_over(store, &format!("key:{attempt}")).await;
    })
    .await;
}

async fn hands_nothing_over(store: &dyn Store, key: &str) {
    let holder = process(store).await;
    if !holder.capabilities().fair {
        return;
    }
    let here = connect(super::config(store).handoff(0)).await;
    let there = connect(super::config(store).handoff(0)).await;
    let served = Mutex::new(Vec::new());
    let guard = held(holder.lock(key)).await;
    let wait = |manager: &LockManager, name: &'static str| {
        let served = &served;
        let body = async move { served.lock().expect("the order").push(name) };
        Box::pin(manager.lock(key).run(body))
    };
    let mut first = wait(&here, "first here");
    drive_until(&mut first, queued(store, &holder, key, 1)).await;
    let mut second = wait(&there, "there");
    // Who is not polled for two seconds loses its place.
    let both_wait = drive_until(&mut second, queued(store, &holder, key, 2));
    drive_until(&mut first, both_wait).await;
    let mut third = wait(&here, "second here");
    poll_once(&mut third).await;

    guard.release().await.expect("the release");
    let all = within(HANG, async { tokio::join!(third, second, first) }).await;
    assert!(matches!(all, (Ok(()), Ok(()), Ok(()))), "{all:?}");
    assert_eq!(
        *served.lock().expect("the order"),
        ["first here", "there", "second here"]
    );
}

/// How often it is counted who is woken: on a busy machine, a look may fail, and then all waiters
/// ask.
const TRIES: usize = 5;

const WAITERS: usize = 4;

/// For how long it is counted.
const WHILE: Duration = Duration::from_millis(800);

/// Each time that a waiter is woken, it is polled: to ask, and to see the answer. Otherwise each
/// waiter would make each of the others ask.
pub(crate) async fn who_has_no_cause_to_ask_is_not_woken(store: &mut dyn Store) {
    let mut woken = Vec::new();
    for attempt in 0..TRIES {
        let polls = polls_of_waiters(store, &format!("key:{attempt}")).await;
        if polls.iter().all(|&(polls, _)| polls <= WAITERS) {
            return;
        }
        woken.push(polls);
    }
    panic!(
        "{WAITERS} waiters were polled so often, each time in so long, while it was held and while it was another's turn: {woken:?}"
    );
}

/// How often those are polled who have to wait: while the lock is held, and then while it is the
/// turn of one that does not come for it.
async fn polls_of_waiters(store: &dyn Store, key: &str) -> Vec<(usize, Duration)> {
    let holder = process(store).await;
    let is_fair = holder.capabilities().fair;
    let queued = async |count| {
        if is_fair {
            queued(store, &holder, key, count).await;
        }
    };
    let guard = held(holder.lock(key)).await;
    let sleeper = process(store).await;
    let mut sleeper = Box::pin(sleeper.lock(key).acquire());
    drive_until(&mut sleeper, queued(1)).await;
    let polls = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    let in_a_while = async |begun: Instant| {
        let before = polls.load(Relaxed);
        sleep(WHILE).await;
        (polls.load(Relaxed) - before, begun.elapsed())
    };
    let mut counted = Vec::new();
    let while_held = async {
        for number in 0..WAITERS {
            let mut waiter = Box::pin(process(store).await.lock(key).run(async {}));
            let polls = Arc::clone(&polls);
            waiters.spawn(poll_fn(move |context| {
                polls.fetch_add(1, Relaxed);
                waiter.as_mut().poll(context)
            }));
            queued(number + 2).await;
        }
        // Those who have just come still ask.
        in_a_while(Instant::now()).await;
        counted.push(in_a_while(Instant::now()).await);
    };
    // A call that is woken, and not polled for two seconds, loses its place.
    drive_until(&mut sleeper, while_held).await;
    let begun = Instant::now();
    guard.release().await.expect("the release");
    if is_fair {
        counted.push(in_a_while(begun).await);
    }
    drop(sleeper);
    all_served(waiters).await;
    counted
}
