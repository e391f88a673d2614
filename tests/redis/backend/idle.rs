//! What waiting costs, and what is left when it is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::Backend;
use tokio::task::JoinSet;

use super::{release, started, take, until, wait, write};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

const WAITERS: usize = 1000;

/// How many commands the server runs each second, those inside of scripts
/// included, while so many wait for so many keys.
async fn commands_while_waiting(keys: usize) -> f64 {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    let holders: Vec<_> = (0..keys).map(|key| write(&key.to_string())).collect();
    for holder in &holders {
        take(&redis, holder).await;
    }
    let requests: Vec<_> = (0..WAITERS)
        .map(|waiter| write(&(waiter % keys).to_string()))
        .collect();
    let waiters: Vec<_> = requests
        .iter()
        .map(|request| wait(&redis, request))
        .collect();
    until("all of them to wait", || async {
        let queued: usize = (0..keys)
            .map(|key| server.run::<usize>(&["LLEN", &format!("dlock:{{{key}}}:queue")]))
            .sum();
        queued == WAITERS
    })
    .await;
    // Who is on the way to the queue when its lock is looked at asks once more.
    for _ in 0..10 {
        let before = server.commands_so_far().await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if server.commands_so_far().await - before <= 4 {
            break;
        }
    }
    // Whole beats of the heart, so that it is not a matter of luck how many.
    let (before, start) = (server.commands_so_far().await, Instant::now());
    tokio::time::sleep(Duration::from_secs(9)).await;
    let commands = server.commands_so_far().await - before;
    let rate = commands as f64 / start.elapsed().as_secs_f64();

    // Nobody was forgotten meanwhile. Whoever asks before the server has the
    // script asks twice, and may be behind others then.
    for holder in &holders {
        release(&redis, holder).await;
    }
    let mut served = JoinSet::new();
    for (waiter, request) in waiters.into_iter().zip(requests) {
        let redis = Arc::clone(&redis);
        served.spawn(async move {
            within(HANG, waiter).await.unwrap();
            release(&redis, &request).await;
        });
    }
    served.join_all().await;
    redis.stop().await;
    assert_eq!(server.keys().await, ["dlock:token"]);
    rate
}

#[tokio::test]
async fn a_thousand_waiters_on_one_key_are_two_commands_a_second() {
    let rate = commands_while_waiting(1).await;
    eprintln!("one key: {rate:.2} commands a second");
    assert!(rate <= 2.0, "{rate} commands a second");
}

/// A backend for which nobody waits says nothing, and keeps nothing alive.
#[tokio::test]
async fn nobody_waiting_costs_nothing() {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    let (holder, request) = (write("a"), write("a"));
    take(&redis, &holder).await;
    let waiter = wait(&redis, &request);
    until("a sign of life", || async {
        let keys = server.keys().await;
        keys.iter().any(|key| key.starts_with("dlock:alive:"))
    })
    .await;
    release(&redis, &holder).await;
    within(HANG, waiter).await.unwrap();
    release(&redis, &request).await;
    // Not by its own end, which would take longer.
    let start = Instant::now();
    until("the sign of life to go", || async {
        server.keys().await == ["dlock:token"]
    })
    .await;
    assert!(
        start.elapsed() < Duration::from_secs(7),
        "{:?}",
        start.elapsed()
    );
    let before = server.commands_so_far().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(server.commands_so_far().await, before);
}
