//! What a client is answered for each lock error, and what it is not told.

use std::future::pending;
use std::time::Duration;

use axum_core::response::{IntoResponse, Response};
use dlock_conformance::support::alone::alone_with_its_log;
use dlock_conformance::support::log::Log;
use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{Config, LockError, LockManager};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http_body_util::BodyExt;

/// In every key, and so never to be in a response.
const SECRET: &str = "alice@example.org";

/// Status, `Retry-After` and body.
type Answer = (u16, Option<String>, String);

async fn answer(error: LockError) -> Answer {
    let told = error.to_string();
    let response: Response = error.into_response();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    let body = String::from_utf8(body.to_vec()).expect("text");
    assert_eq!(parts.headers[CONTENT_TYPE], "application/json");
    let public = format!("{:?} {body}", parts.headers);
    assert!(!public.contains(SECRET), "{public}");
    let inside = parts.extensions.get::<LockError>().map(ToString::to_string);
    assert_eq!(inside, Some(told), "a layer sees the whole error");
    let retry_after = parts.headers.get(RETRY_AFTER);
    let retry_after = retry_after.map(|value| value.to_str().expect("digits").to_owned());
    (parts.status.as_u16(), retry_after, body)
}

fn expected(status: u16, retry_after: Option<&str>, code: &str) -> Answer {
    let body = format!(r#"{{"error":"{code}"}}"#);
    (status, retry_after.map(str::to_owned), body)
}

async fn memory() -> (Memory, LockManager) {
    let memory = Memory::new();
    let manager = LockManager::connect(Config::with_backend(memory.clone()));
    (memory, manager.await.expect("memory connects"))
}

async fn error_of<T>(result: impl Future<Output = Result<T, LockError>>) -> LockError {
    result.await.err().expect("an error")
}

#[tokio::test(start_paused = true)]
async fn busy_is_locked_for_nobody_knows_how_long() {
    let (_, manager) = memory().await;
    let _guard = manager.lock(SECRET).acquire().await.expect("free");
    let busy = error_of(manager.lock(SECRET).try_acquire()).await;
    assert_eq!(answer(busy).await, expected(423, None, "lock_busy"));
}

#[tokio::test(start_paused = true)]
async fn after_a_timeout_the_client_waits_as_long_again() {
    let (_, manager) = memory().await;
    let _guard = manager.lock(SECRET).acquire().await.expect("free");
    for (milliseconds, seconds) in [(1, "1"), (200, "1"), (2_000, "2"), (2_001, "3")] {
        let limit = Duration::from_millis(milliseconds);
        let timeout = error_of(manager.lock(SECRET).acquire_within(limit)).await;
        assert_eq!(
            answer(timeout).await,
            expected(503, Some(seconds), "lock_timeout"),
            "{limit:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_and_a_shutdown_are_over_soon() {
    let (memory, manager) = memory().await;
    memory.faults().set_unavailable(true);
    let unavailable = error_of(manager.lock(SECRET).acquire()).await;
    assert_eq!(
        answer(unavailable).await,
        expected(503, Some("5"), "lock_unavailable")
    );
    memory.faults().set_unavailable(false);
    manager.shutdown().await;
    let shut_down = error_of(manager.lock(SECRET).acquire()).await;
    assert_eq!(
        answer(shut_down).await,
        expected(503, Some("1"), "lock_shut_down")
    );
}

/// A client that repeats it would hear the same, or go against an operator.
#[tokio::test(start_paused = true)]
async fn what_was_done_or_taken_out_is_not_to_be_repeated() {
    let (memory, manager) = memory().await;
    let once = || manager.lock(SECRET).once(Duration::from_secs(60));
    let done = once().run(async { Ok::<_, LockError>(()) }).await;
    done.expect("free").expect("it ends well");
    let done = error_of(once().acquire()).await;
    assert!(matches!(done, LockError::Done { .. }), "{done:?}");
    assert_eq!(answer(done).await, expected(409, None, "lock_done"));
    manager.forget(SECRET).await.expect("answers");

    let elsewhere = LockManager::connect(Config::with_backend(memory));
    let elsewhere = elsewhere.await.expect("memory connects");
    let _guard = elsewhere.lock(SECRET).acquire().await.expect("free");
    let breaks = async {
        loop {
            let lock = manager.inspect(SECRET).await.expect("answers");
            if let Some(waiter) = lock.expect("held").queue.first() {
                let broken = manager.break_waiter(SECRET, &waiter.owner).await;
                return broken.expect("memory has a queue");
            }
            tokio::task::yield_now().await;
        }
    };
    let (taken_out, _) = tokio::join!(error_of(manager.lock(SECRET).acquire()), breaks);
    assert!(
        matches!(taken_out, LockError::TakenOut { .. }),
        "{taken_out:?}"
    );
    assert_eq!(
        answer(taken_out).await,
        expected(503, None, "lock_taken_out")
    );
}

/// Nobody is invited to repeat what may be done already.
#[tokio::test(start_paused = true)]
async fn a_loss_is_no_invitation_to_repeat() {
    let (memory, manager) = memory().await;
    let body = async {
        memory.faults().take_away(SECRET);
        pending::<()>().await;
    };
    let lost = error_of(manager.lock(SECRET).run(body)).await;
    assert!(matches!(lost, LockError::Lost { .. }), "{lost:?}");
    assert_eq!(answer(lost).await, expected(500, None, "lock_lost"));
}

/// Alone: whether an event is wanted is asked where it is first come to, and another test
/// may come there just before the log begins.
#[test]
fn mistakes_are_told_to_the_log_and_not_to_the_client() {
    let name = "axum::mistakes_are_told_to_the_log_and_not_to_the_client";
    alone_with_its_log(name, async |log| {
        let (_, manager) = memory().await;
        let write = error_of(manager.lock(SECRET).acquire());
        let nested = manager.lock(SECRET).read().run(write);
        let mistakes = [
            nested.await.expect("free"),
            error_of(manager.lock(SECRET.repeat(100)).acquire()).await,
            error_of(dlock_runtime::lock(SECRET).acquire()).await,
            Config::from_url(&format!("nowhere://{SECRET}")).expect_err("no such store"),
            LockError::AlreadyInitialized,
        ];
        for mistake in mistakes {
            let told = mistake.to_string();
            assert_eq!(
                answer(mistake).await,
                expected(500, None, "lock_failed"),
                "{told}"
            );
            let logged = log.text();
            let line = logged.lines().rfind(|line| line.starts_with("ERROR"));
            assert!(line.is_some_and(|line| line.contains(&told)), "{logged}");
        }
    });
}

/// In an outage, each request is refused for the same reason.
#[test]
fn a_hundred_requests_in_an_outage_are_few_lines() {
    let name = "axum::a_hundred_requests_in_an_outage_are_few_lines";
    alone_with_its_log(name, async |log| {
        let (memory, manager) = memory().await;
        memory.faults().set_unavailable(true);
        let refused = async || {
            let unavailable = error_of(manager.lock(SECRET).try_acquire()).await;
            assert_eq!(answer(unavailable).await.0, 503);
        };
        are_few_lines(&log, "WARN dlock::axum", refused).await;
    });
}

/// A client chose the key.
#[test]
fn a_hundred_requests_with_an_invalid_key_are_few_lines() {
    let name = "axum::a_hundred_requests_with_an_invalid_key_are_few_lines";
    alone_with_its_log(name, async |log| {
        let (_, manager) = memory().await;
        let refused = async || {
            let invalid = error_of(manager.lock("order:a\nb").try_acquire()).await;
            assert_eq!(answer(invalid).await.0, 500);
        };
        are_few_lines(&log, "ERROR dlock::axum", refused).await;
    });
}

async fn are_few_lines(log: &Log, begin: &str, refused: impl AsyncFn()) {
    for _ in 0..100 {
        refused().await;
    }
    let told = || log.lines_with(begin);
    let lines = told().len();
    assert!((1..50).contains(&lines), "{lines}: {:?}", told().last());
    let untold = |lines: &[String]| -> u64 {
        let numbers = lines.iter().filter_map(|line| {
            let (_, number) = line.split_once("untold=")?;
            number.split(' ').next()?.parse::<u64>().ok()
        });
        numbers.sum()
    };
    // The next line has the number of the others.
    let mut asked = 100;
    while told().len() == lines {
        tokio::time::sleep(Duration::from_millis(100)).await;
        refused().await;
        asked += 1;
    }
    let told = told();
    let lines = u64::try_from(told.len()).expect("a few");
    assert_eq!(untold(&told) + lines, asked, "{told:?}");
}
