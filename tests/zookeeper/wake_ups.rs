//! Who waits for permits waits for several, and no one in particular.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::harness::{Scene, connect};
use crate::messages::{Counter, read_by};
use crate::support::calm::unless_it_stands_still;
use crate::support::crowd;
use crate::support::zookeeper::Setup;

/// In so many processes. What they ask, without signs of life and the looks that come
/// every few seconds.
async fn asked_for_a_release(processes: usize) -> f64 {
    let server = Setup::default().start().await;
    let counter = Arc::<Counter>::default();
    let port = read_by(Arc::clone(&counter), server.port()).await;
    let at = async |port: u16| {
        connect(&format!(
            "zookeeper://127.0.0.1:{port}/?session_timeout=40s"
        ))
        .await
    };
    let holder = at(server.port()).await;
    let mut managers = Vec::new();
    for _ in 0..processes {
        managers.push(at(port).await);
    }
    let total = AtomicU64::new(0);
    let asked = async || {
        let more = counter.since_last().values().sum::<u64>();
        total.fetch_add(more, Relaxed) + more
    };
    let looks = |time: Duration| (time.as_secs_f64() / 3.0).ceil() * 5.0 * processes as f64;
    crowd::asked_for_a_release(&holder, managers, asked, looks).await
}

/// The folder is listed, and watched; who holds the lock then asks, makes sure of its
/// session, and deletes its node in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_a_hundred() {
    let few = async || {
        let asked = asked_for_a_release(1).await;
        assert!(asked <= 5.0, "{asked} requests");
    };
    unless_it_stands_still(crowd::QUIET / 3, few).await;
}

/// Each lists once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_costs_each_process_a_list() {
    let few = async || {
        let asked = asked_for_a_release(10).await;
        assert!(asked <= 4.0 + 2.0 * 10.0, "{asked} requests");
    };
    unless_it_stands_still(crowd::QUIET / 3, few).await;
}

/// Its node is gone, and nothing of what it waits for: it takes another place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_was_deleted_behind_others_is_taken_again() {
    let scene = Scene::set().await;
    let (holder, manager) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let all = async || scene.nodes("key").await;
    let delete = async |node: &str| {
        assert!(node.contains("-permit-2-read-lock-"), "{node}");
        scene.delete("key", node).await;
    };
    crowd::a_deleted_place_is_taken_again(&holder, &manager, all, delete).await;
}
