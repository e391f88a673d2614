//! Every argument of the attribute.

use std::time::Duration;

use dlock::{LockError, distributed_lock};

use crate::support::{alone, held};

#[distributed_lock(
    key = "all:<id>",
    ttl = "1m30s",
    timeout = "500ms",
    mode = "write",
    renew = true,
    max_hold = "10m",
    min_hold = "1ms",
    on_error = |error: LockError| panic!("{error}"),
    on_lost = "continue",
    fenced,
    crate = ::dlock,
)]
async fn all(id: u32) -> String {
    format!("{id} {}", held())
}

#[distributed_lock(key = "shortest", ttl = "10ms")]
async fn shortest() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = "one", wait)]
async fn wait() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "one", try, on_lost = "cancel")]
async fn give_up() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "one", timeout = "20ms", renew = false)]
async fn within() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "one", try, mode = "read")]
async fn read() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "one", try, permits = 2)]
async fn one_of_two() -> Result<String, LockError> {
    Ok(held())
}

/// More than an `i32` holds.
#[distributed_lock(key = "one", try, permits = 4_000_000_000)]
async fn one_of_very_many() -> Result<(), LockError> {
    Ok(())
}

struct Limits {
    at_once: usize,
}

/// An expression over the arguments, which the body has too.
#[distributed_lock(key = "api:<tenant>", try, permits = limits.at_once)]
async fn one_of_many(tenant: &str, limits: Limits) -> Result<usize, LockError> {
    Ok(limits.at_once)
}

#[distributed_lock(key = "api:<tenant>", try, permits = at_once, fenced)]
async fn fenced(tenant: &str, at_once: u8) -> Result<(), LockError> {
    Ok(())
}

/// A number behind a reference.
#[distributed_lock(key = "api:<tenant>", try, permits = *at_once)]
async fn one_of_those_lent(tenant: &str, at_once: &u32) -> Result<(), LockError> {
    Ok(())
}

/// An expression that leaves nothing of the argument to move into the body.
#[distributed_lock(key = "api:<tenant>", try, permits = per_node.into_iter().sum::<u32>())]
async fn one_of_a_sum(tenant: &str, per_node: Vec<u32>) -> Result<(), LockError> {
    Ok(())
}

/// The largest and the smallest of what may be given.
#[distributed_lock(
    key = "limits",
    timeout = "87600h",
    max_hold = "1s",
    min_hold = "1s",
    permits = 1,
    fenced
)]
async fn at_the_limits() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_is_just_within_a_limit_is_accepted() {
    alone(at_the_limits()).await.expect("free");
}

#[tokio::test]
async fn permits_reach_the_runtime() {
    alone(async {
        let first = dlock::lock("one").permits(2).acquire().await.expect("free");
        assert_eq!(one_of_two().await.expect("the second"), "one");
        let second = dlock::lock("one").read().acquire().await.expect("shared");
        assert!(matches!(one_of_two().await, Err(LockError::Busy { .. })));
        one_of_very_many().await.expect("the third");
        drop((first, second));

        let held = dlock::lock("api:acme")
            .permits(9)
            .acquire()
            .await
            .expect("free");
        for (at_once, fits) in [(1, false), (2, true)] {
            let had = one_of_many("acme", Limits { at_once }).await;
            assert_eq!(had.is_ok(), fits, "{had:?}");
        }
        for (at_once, fits) in [(1, false), (2, true)] {
            let had = one_of_those_lent("acme", &at_once).await;
            assert_eq!(had.is_ok(), fits, "{had:?}");
            let had = one_of_a_sum("acme", vec![1; at_once as usize]).await;
            assert_eq!(had.is_ok(), fits, "{had:?}");
        }
        drop(held);
        let none = one_of_many("acme", Limits { at_once: 0 }).await;
        let too_many = one_of_many(
            "acme",
            Limits {
                at_once: usize::MAX,
            },
        )
        .await;
        for refused in [none, too_many] {
            let error = refused.expect_err("no number of permits").to_string();
            assert!(
                error.contains("permits") && error.contains("from 1 to"),
                "{error}"
            );
        }
        fenced("acme", 1).await.expect("alone");
        let error = fenced("acme", 2)
            .await
            .expect_err("tokens tell nothing")
            .to_string();
        assert!(error.contains("fenced"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn all_at_once() {
    assert_eq!(alone(all(3)).await, "3 all:3");
}

#[tokio::test]
async fn the_shortest_ttl_is_one_that_the_runtime_keeps() {
    assert_eq!(alone(shortest()).await.expect("free"), "shortest");
}

#[tokio::test]
async fn patience_and_mode_reach_the_runtime() {
    alone(async {
        let writer = dlock::lock("one").acquire().await.expect("nobody else");
        assert!(matches!(give_up().await, Err(LockError::Busy { .. })));
        assert!(matches!(within().await, Err(LockError::Timeout { .. })));
        assert!(matches!(read().await, Err(LockError::Busy { .. })));
        let waits = tokio::time::timeout(Duration::from_millis(20), wait()).await;
        assert!(waits.is_err(), "a held lock was had: {waits:?}");
        writer.release().await.expect("memory takes it");

        let reader = dlock::lock("one")
            .read()
            .acquire()
            .await
            .expect("nobody else");
        read().await.expect("readers share");
        assert!(matches!(give_up().await, Err(LockError::Busy { .. })));
        reader.release().await.expect("memory takes it");
        wait().await.expect("it is free");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_with_its_ttl() {
    #[distributed_lock(key = "fixed", ttl = "1s", renew = false)]
    async fn fixed(work: Duration) -> Result<(), LockError> {
        tokio::time::sleep(work).await;
        Ok(())
    }

    #[distributed_lock(key = "renewed", ttl = "1s")]
    async fn renewed(work: Duration) -> Result<(), LockError> {
        tokio::time::sleep(work).await;
        Ok(())
    }

    #[distributed_lock(key = "limited", ttl = "1s", max_hold = "3s")]
    async fn limited(work: Duration) -> Result<(), LockError> {
        tokio::time::sleep(work).await;
        Ok(())
    }

    #[distributed_lock(key = "kept", ttl = "1s", renew = false, on_lost = "continue")]
    async fn kept(work: Duration) -> Result<bool, LockError> {
        tokio::time::sleep(work).await;
        Ok(dlock::current().is_some_and(|held| held.is_held()))
    }

    #[distributed_lock(key = "slow", min_hold = "5s")]
    async fn slow() -> Result<(), LockError> {
        Ok(())
    }

    alone(async {
        fixed(Duration::from_millis(500))
            .await
            .expect("within the ttl");
        assert!(matches!(
            fixed(Duration::from_secs(5)).await,
            Err(LockError::Lost { .. })
        ));
        renewed(Duration::from_secs(5)).await.expect("renewed");
        limited(Duration::from_secs(2))
            .await
            .expect("renewed so far");
        assert!(matches!(
            limited(Duration::from_secs(9)).await,
            Err(LockError::Lost { .. })
        ));
        assert!(!kept(Duration::from_secs(5)).await.expect("it goes on"));

        slow().await.expect("it is free");
        let again = dlock::lock("slow").try_acquire().await;
        assert!(
            matches!(again, Err(LockError::Busy { .. })),
            "released too soon: {again:?}"
        );
    })
    .await;
}
