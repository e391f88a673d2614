//! Guarantee 1: whether the lock is had, and how it shows if it is not.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlock::{LockError, LockManager, distributed_lock};

use super::{Store, connect, free, process};
use crate::support::wait::{HANG, eventually, until, within};

/// Long enough for a store on a busy machine to have answered: else it is an
/// outage that ends the wait.
const PATIENCE: Duration = Duration::from_millis(600);

pub(crate) async fn a_free_lock_is_had_at_once<S: Store>(store: &mut S) {
    let manager = process(store).await;
    let guard = manager
        .lock("key")
        .try_acquire()
        .await
        .expect("a free lock");
    assert!(guard.is_held());
    assert_eq!(guard.key().to_string(), "key");
    guard.release().await.expect("the release");

    let guard = manager
        .lock("key")
        .acquire_within(HANG)
        .await
        .expect("a free lock");
    guard.release().await.expect("the release");
    let value = manager
        .lock("key")
        .run(async { 7 })
        .await
        .expect("a free lock");
    assert_eq!(value, 7);
    free(&manager, "key").await;
}

pub(crate) async fn a_held_lock_is_busy_for_who_does_not_wait<S: Store>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = holder.lock("key").acquire().await.expect("the lock");
    for manager in [&holder, &other] {
        let busy = manager
            .lock("key")
            .try_acquire()
            .await
            .expect_err("a held lock");
        assert!(matches!(busy, LockError::Busy { .. }), "{busy:?}");
        assert!(busy.to_string().contains("`key`"), "{busy}");
    }
    guard.release().await.expect("the release");
    drop(other.lock("key").try_acquire().await.expect("a free lock"));
}

pub(crate) async fn a_wait_ends_at_its_timeout<S: Store>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = holder.lock("key").acquire().await.expect("the lock");
    for manager in [&holder, &other] {
        let start = Instant::now();
        let error = within(HANG, manager.lock("key").acquire_within(PATIENCE))
            .await
            .expect_err("a held lock");
        assert!(matches!(error, LockError::Timeout { .. }), "{error:?}");
        assert!(error.to_string().contains("`key`"), "{error}");
        assert!(
            start.elapsed() >= PATIENCE,
            "gave up after {:?}",
            start.elapsed()
        );
    }
    assert!(guard.is_held());
}

pub(crate) async fn the_configured_timeout_applies<S: Store>(store: &mut S) {
    let holder = process(store).await;
    let other = connect(super::config(store).timeout(PATIENCE)).await;
    let _guard = holder.lock("key").acquire().await.expect("the lock");
    let ran = AtomicBool::new(false);
    let body = async { ran.store(true, Relaxed) };
    let error = within(HANG, other.lock("key").run(body))
        .await
        .expect_err("a held lock");
    assert!(matches!(error, LockError::Timeout { .. }), "{error:?}");
    assert!(!ran.load(Relaxed), "the body ran without the lock");
    let error = within(HANG, other.lock("key").acquire())
        .await
        .expect_err("a held lock");
    assert!(matches!(error, LockError::Timeout { .. }), "{error:?}");
}

pub(crate) async fn keys_do_not_wait_for_each_other<S: Store>(store: &mut S) {
    let manager = process(store).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let key = format!("key:{number}");
        guards.push(manager.lock(key).try_acquire().await.expect("a free lock"));
    }
    let list = async || manager.list("key:").await.expect("list").len();
    assert_eq!(list().await, 20);
    drop(guards);
    until("all are free", list, |&left| left == 0).await;
}

pub(crate) async fn namespaces_keep_the_same_key_apart<S: Store>(store: &mut S) {
    let red = connect(super::config(store).namespace("red")).await;
    let blue = connect(super::config(store).namespace("blue")).await;
    let guard = red.lock("key").try_acquire().await.expect("a free lock");
    let other = blue
        .lock("key")
        .try_acquire()
        .await
        .expect("another namespace's lock");
    assert_eq!(red.list("").await.expect("list").len(), 1);
    // Shown as the caller knows it.
    let shown = blue
        .inspect("key")
        .await
        .expect("inspect")
        .expect("a holder");
    assert_eq!(shown.key, "key");
    other.release().await.expect("the release");
    assert!(blue.list("").await.expect("list").is_empty());
    assert!(guard.is_held());
    let busy = red.lock("key").try_acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
}

pub(crate) async fn any_text_can_be_a_key<S: Store>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let longest = "k".repeat(holder.capabilities().max_key_bytes);
    for key in [
        "a key",
        "ключ/鍵",
        "a*b?[c]{d}\\e",
        "{",
        "}",
        "{}",
        "%2a:%",
        longest.as_str(),
    ] {
        let guard = holder
            .lock(key)
            .try_acquire()
            .await
            .unwrap_or_else(|e| panic!("{key}: {e}"));
        let busy = other.lock(key).try_acquire().await;
        assert!(
            matches!(busy, Err(LockError::Busy { .. })),
            "{key}: {busy:?}"
        );
        let listed: Vec<_> = other
            .list(key)
            .await
            .expect("list")
            .into_iter()
            .map(|lock| lock.key)
            .collect();
        assert_eq!(listed, [key]);
        guard.release().await.expect("the release");
        assert!(
            other.inspect(key).await.expect("inspect").is_none(),
            "{key}"
        );
    }
    // What looks like a pattern is text.
    let _guard = holder.lock("abc").try_acquire().await.expect("a free lock");
    for prefix in ["*", "a*", "?", "[a]", "b"] {
        assert!(
            other.list(prefix).await.expect("list").is_empty(),
            "{prefix}"
        );
    }
}

pub(crate) async fn what_cannot_be_a_key_is_refused<S: Store>(store: &mut S) {
    let manager = process(store).await;
    let too_long = "k".repeat(manager.capabilities().max_key_bytes + 1);
    for key in [
        "",
        "line\nbreak",
        "nul\0",
        "bell\u{7}",
        "\u{85}",
        too_long.as_str(),
    ] {
        for error in [
            manager.lock(key).acquire().await.expect_err("not a key"),
            manager
                .lock(key)
                .try_acquire()
                .await
                .expect_err("not a key"),
            manager
                .lock(["fine", key])
                .acquire()
                .await
                .expect_err("not a key"),
            manager
                .lock(key)
                .run(async {})
                .await
                .expect_err("not a key"),
        ] {
            assert!(
                matches!(error, LockError::InvalidKey { .. }),
                "{key:?}: {error:?}"
            );
            let message = error.to_string();
            assert!(
                message.len() < 600 && !message.contains(['\n', '\0', '\u{7}']),
                "{message:?}"
            );
        }
    }
    let nothing = manager
        .lock(Vec::<String>::new())
        .acquire()
        .await
        .expect_err("no key at all");
    assert!(
        matches!(nothing, LockError::InvalidKey { .. }),
        "{nothing:?}"
    );
    assert!(manager.list("").await.expect("list").is_empty());
}

pub(crate) async fn a_ttl_that_the_store_cannot_keep_is_refused<S: Store>(store: &mut S) {
    let manager = process(store).await;
    let below = manager
        .capabilities()
        .min_ttl
        .saturating_sub(Duration::from_micros(1));
    for ttl in [Duration::ZERO, below, Duration::MAX] {
        let error = manager
            .lock("key")
            .ttl(ttl)
            .acquire()
            .await
            .expect_err("not a ttl");
        assert!(
            matches!(error, LockError::Config { .. }),
            "{ttl:?}: {error:?}"
        );
        assert!(error.to_string().contains("ttl"), "{error}");
    }
    for ttl in [Duration::ZERO, below, Duration::MAX] {
        let error = LockManager::connect(super::config(store).ttl(ttl))
            .await
            .expect_err("not a ttl");
        assert!(
            matches!(error, LockError::Config { .. }),
            "{ttl:?}: {error:?}"
        );
        assert!(error.to_string().contains("ttl"), "{error}");
    }
    let shortest = manager.capabilities().min_ttl;
    // On a busy machine the answer may come later than so short a ttl.
    eventually("the shortest ttl works", async || {
        let guard = manager.lock("key").ttl(shortest).try_acquire().await;
        guard.map(drop).ok()
    })
    .await;
}

pub(crate) async fn inspect_and_list_show_what_is_held<S: Store>(store: &mut S) {
    let (manager, other) = (process(store).await, process(store).await);
    assert!(manager.inspect("job:1").await.expect("inspect").is_none());
    let ttl = Duration::from_secs(20);
    let guard = manager
        .lock("job:1")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    let _other = manager.lock("task:1").acquire().await.expect("the lock");

    let shown = other
        .inspect("job:1")
        .await
        .expect("inspect")
        .expect("a holder");
    assert_eq!((shown.key.as_str(), shown.waiters), ("job:1", 0));
    assert_eq!(shown.mode.to_string(), "write");
    let [holder] = shown.holders.as_slice() else {
        panic!("one holder, not {shown:?}")
    };
    assert!(!holder.owner.is_empty());
    assert!(
        holder
            .expires_in
            .is_none_or(|left| left <= ttl && !left.is_zero()),
        "{holder:?}"
    );

    let keys = async |prefix: &str| {
        let listed = other.list(prefix).await.expect("list");
        let mut keys: Vec<_> = listed.into_iter().map(|lock| lock.key).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys("").await, ["job:1", "task:1"]);
    assert_eq!(keys("job").await, ["job:1"]);
    assert!(keys("jobs").await.is_empty());
    guard.release().await.expect("the release");
    assert_eq!(keys("").await, ["task:1"]);
    assert!(other.inspect("job:1").await.expect("inspect").is_none());
}

#[distributed_lock(key = "stock:<sku>")]
async fn holders_of(manager: &LockManager, sku: &str) -> Result<usize, LockError> {
    Ok(manager
        .inspect(format!("stock:{sku}"))
        .await?
        .map_or(0, |lock| lock.holders.len()))
}

pub(crate) async fn the_attribute_runs_its_body_under_the_lock<S: Store>(store: &mut S) {
    let (manager, other) = (process(store).await, process(store).await);
    let holders = manager
        .scope(holders_of(&other, "42"))
        .await
        .expect("the lock");
    assert_eq!(holders, 1);
    free(&other, "stock:42").await;
}

#[distributed_lock(key = "job", try)]
async fn try_job(ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Relaxed);
    Ok(())
}

#[distributed_lock(key = "job", timeout = "600ms")]
async fn wait_for_job(ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Relaxed);
    Ok(())
}

pub(crate) async fn the_attribute_gives_up_as_it_is_told<S: Store>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = holder.lock("job").acquire().await.expect("the lock");
    let ran = AtomicBool::new(false);
    let error = within(HANG, other.scope(try_job(&ran)))
        .await
        .expect_err("a held lock");
    assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
    let error = within(HANG, other.scope(wait_for_job(&ran)))
        .await
        .expect_err("a held lock");
    assert!(matches!(error, LockError::Timeout { .. }), "{error:?}");
    assert!(!ran.load(Relaxed), "the body ran without the lock");

    guard.release().await.expect("the release");
    within(HANG, other.scope(try_job(&ran)))
        .await
        .expect("a free lock");
    assert!(ran.load(Relaxed));
}

#[distributed_lock(key = "job", try, on_error = |error: LockError| error.to_string())]
async fn report() -> String {
    "ran".to_owned()
}

pub(crate) async fn on_error_makes_the_value<S: Store>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = holder.lock("job").acquire().await.expect("the lock");
    let message = other.scope(report()).await;
    assert!(message.contains("`job`"), "{message}");
    guard.release().await.expect("the release");
    assert_eq!(other.scope(report()).await, "ran");
}

#[distributed_lock(key = "job", fenced)]
async fn guarded() -> Result<u64, LockError> {
    Ok(dlock::current().map_or(0, |held| held.token().into()))
}

pub(crate) async fn fenced_is_refused_where_tokens_may_go_back<S: Store>(store: &mut S) {
    let manager = process(store).await;
    let answer = manager.scope(guarded()).await;
    if manager.capabilities().tokens == dlock::backend::TokenTier::Strict {
        assert!(answer.expect("the lock") > 0);
    } else {
        let error = answer.expect_err("tokens that may go back");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("fenced"), "{error}");
    }
}
