//! Who waits for permits waits for several, and no one in particular.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;

use crate::harness::{Scene, connect};
use crate::messages::{Counter, read_by};
use crate::support::locks::{held, queued, served};
use crate::support::wait::{HANG, until, within};
use crate::support::zookeeper::Setup;

const PERMITS: u32 = 5;
const WAITERS: usize = 100;
const RELEASES: usize = 20;

/// A hundred wait, in so many processes. What they ask for each permit that others give
/// back, without signs of life and the looks that come every few seconds.
async fn asked_for_a_release(processes: usize) -> f64 {
    let server = Setup::default().start().await;
    let counter = Arc::<Counter>::default();
    let port = read_by(Arc::clone(&counter), server.port()).await;
    let options = "session_timeout=40s";
    let url = format!("zookeeper://127.0.0.1:{port}/?{options}");
    let holder = connect(&format!(
        "zookeeper://127.0.0.1:{}/?{options}",
        server.port()
    ))
    .await;
    let mut held_by = Vec::new();
    for _ in 0..PERMITS {
        held_by.push(held(holder.lock("key").permits(PERMITS)).await);
    }
    let mut managers = Vec::new();
    for _ in 0..processes {
        managers.push(connect(&url).await);
    }
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        let request = managers[number % processes].lock("key").permits(PERMITS);
        waiting.spawn(request.acquire());
    }
    queued(&holder, "key", WAITERS).await;
    loop {
        counter.since_last();
        tokio::time::sleep(Duration::from_millis(300)).await;
        if counter.since_last().values().sum::<u64>() < WAITERS as u64 / 4 {
            break;
        }
    }
    let began = Instant::now();
    for _ in 0..RELEASES {
        let first = held_by.remove(0);
        first.release().await.expect("the release");
        let next = within(HANG, waiting.join_next()).await.expect("a waiter");
        held_by.push(next.expect("no panic").expect("the lock"));
    }
    let asked: u64 = counter.since_last().values().sum();
    let looks = (began.elapsed().as_secs_f64() / 3.0).ceil() * 5.0 * processes as f64;
    held_by.clear();
    drop(managers);
    waiting.shutdown().await;
    (asked as f64 - looks) / RELEASES as f64
}

/// The folder is listed, and watched; who holds the lock then asks, makes sure of its
/// session, and deletes its node in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_a_hundred() {
    let asked = asked_for_a_release(1).await;
    assert!(asked <= 5.0, "{asked} requests");
}

/// Each lists once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_costs_each_process_a_list() {
    let asked = asked_for_a_release(10).await;
    assert!(asked <= 4.0 + 2.0 * 10.0, "{asked} requests");
}

/// Its node is gone, and nothing of what it waits for: it takes another place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_was_deleted_behind_others_is_taken_again() {
    let scene = Scene::set().await;
    let (holder, manager) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let held_by = [
        held(holder.lock("key").permits(2)).await,
        held(holder.lock("key").permits(2)).await,
    ];
    let wants = |manager: &LockManager| tokio::spawn(manager.lock("key").permits(2).acquire());
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(wants(&manager));
        queued(&holder, "key", number).await;
    }
    let before = scene.nodes("key").await;
    assert!(before[3].contains("-permit-2-read-lock-"), "{}", before[3]);
    scene.delete("key", &before[3]).await;
    let again = async || scene.nodes("key").await;
    let is_back = |now: &Vec<String>| now.len() == 5 && now[3] == before[4];
    until("it queues again, behind the others", again, is_back).await;
    drop(held_by);
    let middle = waiting.remove(1);
    for one in waiting {
        served(one).await.release().await.expect("the release");
    }
    served(middle).await.release().await.expect("the release");
}
