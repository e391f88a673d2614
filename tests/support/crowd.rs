//! Many who wait for permits, in some processes: what it costs that one is given back.

use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::locks::{held, queued, served};
use super::wait::{HANG, until, within};

const PERMITS: u32 = 5;
const WAITERS: usize = 100;
const RELEASES: usize = 20;

/// What is still to be asked is asked within this time, unless it stands still.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

/// A hundred wait, in these processes. What is asked for each permit that `holder` and then
/// others give back, by what was `asked` in all so far, and less what the looks of that
/// time cost.
pub(crate) async fn asked_for_a_release(
    holder: &LockManager,
    managers: Vec<LockManager>,
    asked: impl AsyncFn() -> u64,
    looks: impl Fn(Duration) -> f64,
) -> f64 {
    let mut held_by = Vec::new();
    for _ in 0..PERMITS {
        held_by.push(held(holder.lock("key").permits(PERMITS)).await);
    }
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        let manager = &managers[number % managers.len()];
        // Of one ttl, they would queue in their process.
        let ttl = Duration::from_millis(30_000 - number as u64);
        waiting.spawn(manager.lock("key").permits(PERMITS).ttl(ttl).acquire());
    }
    queued(holder, "key", WAITERS).await;
    // The watches have been made when nothing is asked any more.
    let meanwhile = async || {
        let before = asked().await;
        sleep(QUIET).await;
        asked().await - before
    };
    until("all is quiet", meanwhile, |&more| more < WAITERS as u64 / 4).await;
    let (began, before) = (Instant::now(), asked().await);
    for _ in 0..RELEASES {
        let first = held_by.remove(0);
        first.release().await.expect("the release");
        let next = within(HANG, waiting.join_next()).await.expect("a waiter");
        held_by.push(next.expect("no panic").expect("the lock"));
    }
    let more = asked().await - before;
    let looks = looks(began.elapsed());
    held_by.clear();
    drop(managers);
    waiting.shutdown().await;
    (more as f64 - looks) / RELEASES as f64
}

/// The place of a waiter is deleted, which is not the first of its process: it queues again, behind
/// the others. `places` are those for `key`, in their order.
pub(crate) async fn a_deleted_place_is_taken_again(
    holder: &LockManager,
    manager: &LockManager,
    places: impl AsyncFn() -> Vec<String>,
    delete: impl AsyncFn(&str),
) {
    let held_by = [
        held(holder.lock("key").permits(2)).await,
        held(holder.lock("key").permits(2)).await,
    ];
    let mut waiting = Vec::new();
    for number in 1..=3 {
        // Of one ttl, they would queue in their process.
        let ttl = Duration::from_secs(30 - number);
        let waits = manager.lock("key").permits(2).ttl(ttl).acquire();
        waiting.push(tokio::spawn(waits));
        queued(holder, "key", waiting.len()).await;
    }
    let before = places().await;
    delete(&before[3]).await;
    let is_back = |now: &Vec<String>| now.len() == 5 && now[3] == before[4];
    until("it queues again, behind the others", &places, is_back).await;
    drop(held_by);
    let middle = waiting.remove(1);
    for one in waiting {
        served(one).await.release().await.expect("the release");
    }
    served(middle).await.release().await.expect("the release");
}
