//! A lock of the doctor's own: taken, waited for, and given back.

use std::time::{Duration, Instant, SystemTime};

use dlock::backend::{Finding, HolderInfo};
use dlock::{Config, LockError, LockManager, LockRequest};
use tokio::task::JoinSet;

use super::report::Report;
use crate::exit::Exit;
use crate::store;

pub(super) const PREFIX: &str = "dlock-doctor:";

/// Left behind by a tool that was killed, it is gone soon. If requests may take long, it lasts for
/// three of them, as dlock warns of less.
const TTL: Duration = Duration::from_secs(15);
const REQUESTS: u32 = 3;

/// Who waits is told, or looks after a second.
const TOLD: Duration = Duration::from_millis(900);
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes the lock, lets another process's worth of connections wait for it, and gives it back.
pub(super) async fn take(manager: &LockManager, config: Config, report: &mut Report) {
    let key = key();
    let ttl = TTL.max(config.configured_request_timeout().saturating_mul(REQUESTS));
    let asked = SystemTime::now();
    let guard = match lock(manager, (&key, ttl)).try_acquire().await {
        Ok(guard) => guard,
        Err(error) => return report.failed("lock", &error),
    };
    let had = SystemTime::now();
    // A look that fails is told below, where the next one fails.
    if let Ok(Some(held)) = manager.inspect(&*key).await {
        clock(held.holders.first(), [asked, had], report);
    }
    let taken = "a lock of the doctor's own was taken, waited for and given back".to_owned();
    match hand_over(manager, config, (&key, ttl), guard, report).await {
        Ok(()) => report.ok("lock", taken),
        Err(error) => report.failed("lock", &error),
    }
}

/// No service makes a key like it: it has the time and the number of this process.
fn key() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    format!("{PREFIX}{}:{now}", std::process::id())
}

fn lock(manager: &LockManager, (key, ttl): (&str, Duration)) -> LockRequest {
    manager.lock(key).ttl(ttl)
}

async fn hand_over(
    manager: &LockManager,
    config: Config,
    of: (&str, Duration),
    guard: dlock::LockGuard,
    report: &mut Report,
) -> Result<(), LockError> {
    // As another process: the tasks of one give the lock to each other without the store.
    let other = LockManager::connect(config).await?;
    let handed_over = between(manager, &other, of, guard, report).await;
    store::close(&other).await;
    handed_over
}

async fn between(
    manager: &LockManager,
    other: &LockManager,
    of: (&str, Duration),
    guard: dlock::LockGuard,
    report: &mut Report,
) -> Result<(), LockError> {
    let mut waiting = JoinSet::new();
    waiting.spawn(lock(other, of).acquire_within(PATIENCE));
    let (key, _) = of;
    let has_come = waits(manager, key).await?;
    let given_back = (Instant::now(), SystemTime::now());
    guard.release().await?;
    let next = match waiting.join_next().await {
        Some(Ok(next)) => next,
        _ => {
            report.fails("notify", "the waiter has ended".to_owned(), Exit::INTERNAL);
            return Ok(());
        }
    };
    let (took, now) = (given_back.0.elapsed(), SystemTime::now());
    let next = next?;
    notified(has_come, took, report);
    if let Some(lock) = manager.inspect(key).await? {
        clock(lock.holders.first(), [given_back.1, now], report);
    }
    if !report.has("clock") {
        let unknown = "not compared: this store does not say what its clock shows";
        report.ok("clock", unknown.to_owned());
    }
    next.release().await
}

/// So long it was until the next had the lock, who was seen to wait or not.
fn notified(was_seen: bool, took: Duration, report: &mut Report) {
    let late = "it was not told, and looked; see that messages of the store reach this machine";
    match (took < TOLD, was_seen) {
        (true, true) => report.ok(
            "notify",
            format!("who waits has the lock {took:.1?} after it was given back"),
        ),
        (true, false) => report.ok(
            "notify",
            format!("the next had the lock after {took:.1?}; who waits is not shown"),
        ),
        (false, true) => report.warn(
            "notify",
            format!("who waits had the lock only {took:.1?} after it was given back: {late}"),
        ),
        (false, false) => report.warn(
            "notify",
            format!(
                "the next had the lock only {took:.1?} after it was given back. Who waits is not \
                 shown; if it waited already, {late}"
            ),
        ),
    }
}

/// Whether the store shows that somebody waits, before long.
async fn waits(manager: &LockManager, key: &str) -> Result<bool, LockError> {
    let until = Instant::now() + TOLD;
    while Instant::now() < until {
        let lock = manager.inspect(key).await?;
        if lock.is_some_and(|lock| lock.waiters > Some(0)) {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// The lock went to this holder between these two moments, by our clock. That tells nothing new
/// where each server was asked for its clock.
fn clock(holder: Option<&HolderInfo>, seen: [SystemTime; 2], report: &mut Report) {
    if report.has("clock") {
        return;
    }
    let by_store = holder.filter(|holder| !holder.since_by_holder);
    let Some(since) = by_store.and_then(|holder| holder.since) else {
        return;
    };
    report.found(vec![Finding::of_clock(
        "the store's",
        since,
        seen,
        "ages are shown wrong",
    )]);
}

#[cfg(test)]
mod tests {
    use dlock::backend::Level;

    use super::*;

    #[test]
    fn who_had_to_look_was_not_told() {
        for (was_seen, millis, level, says) in [
            (true, 2, Level::Ok, "2.0ms after"),
            (true, 1003, Level::Warn, "was not told"),
            (false, 2, Level::Ok, "who waits is not shown"),
            (
                false,
                1003,
                Level::Warn,
                "if it waited already, it was not told",
            ),
        ] {
            let mut report = Report::default();
            notified(was_seen, Duration::from_millis(millis), &mut report);
            let [finding] = report.findings() else {
                panic!("one line");
            };
            assert_eq!((finding.level, finding.check), (level, "notify"));
            assert!(finding.message.contains(says), "{}", finding.message);
        }
    }
}
