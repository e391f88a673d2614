//! Faults that the suite of all stores does not make.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dlock::{Config, LockManager};
use dlock_conformance::support::calm::unless_it_stands_still;
use dlock_conformance::support::dir::TempDir;
use dlock_conformance::support::locks::{had, is_misconfigured, says};
use dlock_conformance::support::wait::{HANG, within};
use tokio::runtime::Builder;

use crate::files;

const TTL: Duration = Duration::from_secs(600);

async fn manager(directory: &Path) -> LockManager {
    let config = Config::with_backend(crate::directory(directory)).ttl(TTL);
    LockManager::connect(config).await.expect("the directory")
}

/// Otherwise the lease of a thread that stands still just then ends too late for its holder.
#[test]
fn a_lease_counts_from_before_the_question() {
    const STANDS_STILL: Duration = Duration::from_millis(300);
    let mut runtime = Builder::new_current_thread();
    runtime.enable_all().thread_name_fn(|| {
        // The caller asks for a new thread here.
        thread::sleep(STANDS_STILL);
        "worker".into()
    });
    runtime.build().expect("a runtime").block_on(async {
        let dir = TempDir::default();
        let manager = manager(dir.path()).await;
        let asked = Instant::now();
        let guard = manager.lock("key").ttl(10 * STANDS_STILL).renew(false);
        let guard = guard.acquire().await;
        let guard = guard.expect("the lock");
        let ends = guard.deadline().expect("its lease ends");
        assert!(ends.into_std() < asked + 10 * STANDS_STILL + STANDS_STILL / 2);
    });
}

#[tokio::test]
async fn a_take_that_was_done_finds_itself() {
    let dir = TempDir::default();
    let manager = manager(dir.path()).await;
    let before = within(HANG, manager.lock("key").acquire()).await;
    let before = before.expect("the lock");
    let token = before.token();
    before.release().await.expect("the release");
    files::fault::is_next_after_rename(dir.path().join("key"));
    let guard = within(HANG / 6, manager.lock("key").acquire()).await;
    let guard = guard.expect("its own lock");
    assert!(guard.token() > token);
    guard.release().await.expect("the release");
    files::fault::is_next_after_rename(dir.path().join("key"));
    let guard = within(HANG / 6, manager.lock("key").try_acquire()).await;
    let guard = guard.expect("its own lock");
    files::fault::is_next_after_rename(dir.path().join("key"));
    guard.release().await.expect("the release was done");
}

/// The question of the dropped call has no thread yet, and the release overtakes it.
#[test]
fn a_shutdown_leaves_nothing_of_a_dropped_call() {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build();
    runtime.expect("a runtime").block_on(async {
        let dir = TempDir::default();
        let manager = manager(dir.path()).await;
        let busy = tokio::task::spawn_blocking(|| thread::sleep(Duration::from_secs(3)));
        let call = manager.lock("key").try_acquire();
        let dropped = tokio::time::timeout(Duration::from_millis(50), call).await;
        dropped.map(drop).expect_err("it has no thread");
        tokio::time::sleep(Duration::from_millis(500)).await;
        within(HANG, manager.shutdown()).await;
        drop(manager);
        busy.await.expect("no panic");
        // Behind the question.
        let ended = tokio::task::spawn_blocking(|| ());
        ended.await.expect("no panic");
        let (lock, _) = files::look(dir.path(), "key").expect("the file");
        assert_eq!(lock.holder, None);
    });
}

const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// A call that failed before it changed anything has left nothing to give back.
#[tokio::test]
async fn a_call_in_an_outage_leaves_no_cleanup() {
    unless_it_stands_still(REQUEST_TIMEOUT / 4, async || {
        let dir = TempDir::default();
        let locks = dir.path().join("locks");
        std::fs::create_dir(&locks).expect("a new directory");
        let config = Config::with_backend(crate::directory(&locks)).ttl(TTL);
        let config = config.request_timeout(REQUEST_TIMEOUT);
        let manager = LockManager::connect(config).await.expect("the directory");
        std::fs::rename(&locks, dir.path().join("away")).expect("the test's own directory");
        let answer = within(HANG, manager.lock("key").try_acquire()).await;
        let error = answer.expect_err("an outage");
        assert!(error.to_string().contains("/key.lock`"), "{error}");
        within(HANG, manager.shutdown()).await;
    })
    .await;
}

/// As on a network file system, where each machine has a clock of its own.
#[tokio::test]
async fn the_lock_of_another_machine_is_refused() {
    let dir = TempDir::default();
    let manager = manager(dir.path()).await;
    had(&manager, "key").await;
    let file = dir.path().join("key");
    let text = std::fs::read_to_string(&file).expect("the file");
    let (_, rest) = text.split_once(' ').expect("the machine");
    std::fs::write(&file, format!("another {rest}")).expect("the file");
    let answer = within(HANG, manager.lock("key").acquire()).await;
    says(&is_misconfigured(answer), &["/key`", "another machine"]);
}

/// The clock has begun anew, so no time in the file counts; the tokens go on.
#[tokio::test]
async fn a_restart_of_the_machine_ends_what_was_held() {
    let dir = TempDir::default();
    let before = manager(dir.path()).await.lock("key").acquire().await;
    let before = before.expect("the lock");
    let file = dir.path().join("key");
    let text = std::fs::read_to_string(&file).expect("the file");
    let (start, lock) = text.split_once('\n').expect("the start");
    assert!(lock.contains("held"), "{lock}");
    std::fs::write(&file, format!("{start}-the-next\n{lock}")).expect("the file");
    let after = manager(dir.path()).await.lock("key").try_acquire().await;
    assert!(after.expect("nobody holds it").token() > before.token());
}

#[tokio::test]
async fn what_is_no_lock_is_refused_and_not_listed() {
    let dir = TempDir::default();
    let manager = manager(dir.path()).await;
    std::fs::write(dir.path().join("notes"), "not a lock").expect("the file");
    // A list of so many is made in parts.
    for number in 0..1500 {
        let note = dir.path().join(format!("note-{number}"));
        std::fs::write(note, "not a lock").expect("the file");
    }
    let guard = manager.lock("key").acquire().await.expect("the lock");
    let listed = within(HANG, manager.list("")).await.expect("the list");
    assert_eq!(listed.len(), 1);
    let answer = within(HANG, manager.lock("notes").acquire()).await;
    says(&is_misconfigured(answer), &["/notes`", "no lock"]);
    guard.release().await.expect("the release");
}

/// It would otherwise be told only by the first lock.
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_told_at_once() {
    let config = Config::with_backend(crate::directory("/proc/self/task"));
    let answer = within(HANG, LockManager::connect(config)).await;
    let error = answer.expect_err("nobody can make a file there");
    says(&error, &["/proc/self/task/.check`"]);
}
