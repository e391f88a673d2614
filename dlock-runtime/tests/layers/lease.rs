use std::future::Future;
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockError, LockManager, LossReason, OnLost, current};

use crate::{connect, manager, seconds, settle};

#[tokio::test(start_paused = true)]
async fn a_living_holder_is_renewed_far_beyond_its_ttl() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let body = async {
        tokio::time::sleep(seconds(1000)).await;
        assert!(there.lock("k").try_acquire().await.is_err());
        current().expect("inside").is_held()
    };
    assert!(
        here.lock("k")
            .ttl(seconds(3))
            .run(body)
            .await
            .expect("no loss")
    );
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_with_its_ttl() {
    let (_, manager) = manager().await;
    let body = std::future::pending::<()>();
    let lost = manager
        .lock("k")
        .ttl(seconds(3))
        .renew(false)
        .run(body)
        .await;
    assert!(
        matches!(
            lost,
            Err(LockError::Lost {
                reason: LossReason::Overran,
                ..
            })
        ),
        "{lost:?}"
    );
    drop(manager.lock("k").try_acquire().await.expect("free again"));
}

/// Clocks may drift apart by 1% during a ttl, and the holder's may be the slow
/// one.
#[tokio::test(start_paused = true)]
async fn a_lease_ends_here_before_it_ends_in_the_store() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    for ttl in [seconds(1), seconds(100)] {
        let guard = here.lock("k").ttl(ttl).renew(false).acquire().await;
        let guard = guard.expect("free");
        guard.lost().await;
        let left = there.inspect("k").await.expect("answers").expect("held");
        let left = left.holders[0].expires_in.expect("memory says so");
        assert!(left >= ttl / 100, "{left:?} before the end of {ttl:?}");
        drop(there.lock("k").acquire().await.expect("expires"));
    }
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_body_that_hangs() {
    let (_, manager) = manager().await;
    let start = tokio::time::Instant::now();
    let body = std::future::pending::<()>();
    let lost = manager
        .lock("k")
        .ttl(seconds(3))
        .max_hold(seconds(60))
        .run(body)
        .await;
    let reason = match lost {
        Err(LockError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, LossReason::MaxHold);
    let held = start.elapsed();
    assert!(held > seconds(57) && held < seconds(63), "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_lock_after_the_body() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let start = tokio::time::Instant::now();
    here.lock("k")
        .ttl(seconds(3))
        .min_hold(seconds(60))
        .run(async {})
        .await
        .expect("free");
    assert!(
        start.elapsed() < seconds(1),
        "the caller does not wait for it"
    );
    let guard = there
        .lock("k")
        .acquire()
        .await
        .expect("released in the end");
    assert!(start.elapsed() >= seconds(60), "{:?}", start.elapsed());
    guard.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_min_hold_to_the_store() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let start = tokio::time::Instant::now();
    here.lock("k")
        .ttl(seconds(3))
        .min_hold(seconds(60))
        .run(async {})
        .await
        .expect("free");
    here.shutdown().await;
    assert!(
        start.elapsed() < seconds(1),
        "a shutdown does not wait for it"
    );
    drop(there.lock("k").acquire().await.expect("expires in the end"));
    let held = start.elapsed();
    assert!(held >= seconds(59) && held < seconds(62), "{held:?}");
    let refused = here.lock("k").try_acquire().await;
    assert!(
        matches!(refused, Err(LockError::ShutDown { .. })),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_away_ends_the_body_at_its_next_await() {
    let (memory, manager) = manager().await;
    let faults = memory.faults();
    let body = async {
        assert!(faults.take_away("k"));
        // Not yet: the body is told at an await that waits.
        settle().await;
        std::future::pending::<()>().await;
    };
    let start = tokio::time::Instant::now();
    let lost = manager.lock("k").run(body).await;
    assert!(
        matches!(
            lost,
            Err(LockError::Lost {
                reason: LossReason::Gone,
                ..
            })
        ),
        "{lost:?}"
    );
    assert!(start.elapsed() < seconds(1), "the store says so at once");
}

#[tokio::test(start_paused = true)]
async fn on_lost_continue_only_shows_the_loss() {
    let (memory, manager) = manager().await;
    let body = async {
        memory.faults().take_away("k");
        let held = current().expect("inside");
        held.lost().await;
        assert!(!held.is_held());
        "finished"
    };
    let answer = manager.lock("k").on_lost(OnLost::Continue).run(body).await;
    assert_eq!(answer.expect("the body's own result"), "finished");
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_ttl_loses_the_lease_and_heals() {
    let (memory, manager) = manager().await;
    let faults = memory.faults();
    let body = async {
        faults.set_unavailable(true);
        std::future::pending::<()>().await;
    };
    let lost = manager.lock("k").ttl(seconds(3)).run(body).await;
    assert!(
        matches!(
            lost,
            Err(LockError::Lost {
                reason: LossReason::Expired,
                ..
            })
        ),
        "{lost:?}"
    );
    faults.set_unavailable(false);
    manager
        .lock("k")
        .acquire()
        .await
        .expect("healed")
        .release()
        .await
        .expect("held");
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_ttl_goes_unnoticed() {
    let (memory, manager) = manager().await;
    let faults = memory.faults();
    let body = async {
        tokio::time::sleep(seconds(10)).await;
        faults.set_unavailable(true);
        tokio::time::sleep(seconds(1)).await;
        faults.set_unavailable(false);
        tokio::time::sleep(seconds(10)).await;
        "unharmed"
    };
    assert_eq!(
        manager
            .lock("k")
            .ttl(seconds(3))
            .run(body)
            .await
            .expect("no loss"),
        "unharmed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_during_an_outage_is_tried_again() {
    let (memory, manager) = manager().await;
    let guard = manager
        .lock("k")
        .ttl(seconds(60))
        .acquire()
        .await
        .expect("free");
    memory.faults().set_unavailable(true);
    let answer = guard.release().await;
    assert!(
        matches!(answer, Err(LockError::Unavailable { .. })),
        "{answer:?}"
    );
    tokio::time::sleep(seconds(1)).await;
    memory.faults().set_unavailable(false);
    let start = tokio::time::Instant::now();
    manager
        .lock("k")
        .acquire()
        .await
        .expect("given back")
        .release()
        .await
        .expect("held");
    assert!(
        start.elapsed() < seconds(5),
        "long before the ttl: {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_says_so_when_it_is_released() {
    let (memory, manager) = manager().await;
    let guard = manager.lock("k").acquire().await.expect("free");
    memory.faults().take_away("k");
    let other = manager
        .lock("k")
        .ttl(seconds(7))
        .try_acquire()
        .await
        .expect("free");
    let answer = guard.release().await;
    assert!(matches!(answer, Err(LockError::Lost { .. })), "{answer:?}");
    assert!(other.is_held(), "a foreign release changes nothing");
    other.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_are_kept_by_one_keeper() {
    let (_, manager) = manager().await;
    let mut guards = Vec::new();
    for number in 0..10_000 {
        let request = manager.lock(format!("k{number}")).ttl(seconds(3));
        guards.push(request.try_acquire().await.expect("free"));
    }
    tokio::time::sleep(seconds(60)).await;
    assert!(guards.iter().all(dlock_runtime::LockGuard::is_held));
    for guard in guards {
        guard.release().await.expect("held");
    }
    assert!(manager.list("").await.expect("answers").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_cannot_be_kept_is_refused() {
    let (_, manager) = manager().await;
    for ttl in [
        std::time::Duration::ZERO,
        std::time::Duration::from_millis(1),
        std::time::Duration::MAX,
    ] {
        let refused = manager.lock("k").ttl(ttl).try_acquire().await;
        let Err(LockError::Config { setting, .. }) = refused else {
            panic!("expected Config for {ttl:?}, got {refused:?}")
        };
        assert_eq!(setting, "ttl");
    }
    let refused = dlock_runtime::LockManager::connect(Config::default().ttl(seconds(0))).await;
    assert!(
        matches!(refused, Err(LockError::Config { .. })),
        "{refused:?}"
    );
}

/// On a thread that nobody waits for, since it may hang.
fn on_one_thread<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        done.send(runtime.block_on(test))
    });
    let done = is_done.recv_timeout(seconds(60));
    done.expect("the keeper hangs, and the process with it")
}

/// The keeper comes after `max_hold` has ended, to a renewal that fell due before
/// it did, and before the lease ends.
#[test]
fn a_keeper_that_comes_after_max_hold_goes_on() {
    let ended = on_one_thread(async {
        let (_, manager) = manager().await;
        let body = async {
            std::thread::sleep(Duration::from_millis(600));
            settle().await;
            current().expect("inside").lost().await;
        };
        let limited = manager.lock("k").ttl(seconds(1));
        let limited = limited.max_hold(Duration::from_millis(400));
        let ended = limited.run(body).await;
        manager.lock("other").run(settle()).await.unwrap();
        ended
    });
    assert!(
        matches!(
            ended,
            Err(LockError::Lost {
                reason: LossReason::MaxHold,
                ..
            })
        ),
        "{ended:?}"
    );
}

/// Says again and again that no lease has ended.
#[derive(Debug, Default)]
struct Talkative(Memory);

#[async_trait::async_trait]
impl Backend for Talkative {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.0.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.0.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.0.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.0.release(r).await
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.0.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.list(p).await
    }
    async fn next_losses(&self) -> Vec<Owner> {
        Vec::new()
    }
}

#[test]
fn a_store_that_tells_of_no_losses_keeps_nobody_from_renewal() {
    on_one_thread(async {
        let config = Config::with_backend(Talkative::default());
        let here = LockManager::connect(config).await.unwrap();
        // On a busy machine the keeper may come a second late.
        let ttl = seconds(2);
        let body = tokio::time::sleep(2 * ttl);
        here.lock("k").ttl(ttl).run(body).await.unwrap();
    });
}
