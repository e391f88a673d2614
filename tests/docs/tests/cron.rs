//! The recipe for `tokio-cron-scheduler`, run: copies of a service on one schedule do what
//! a slot is for once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use dlock::backend::memory::Memory;
use dlock::{Config, LockError, LockManager, distributed_lock};
use dlock_conformance::support::wait::until;
use tokio_cron_scheduler::{Job, JobScheduler};

#[derive(Clone, Default)]
struct Seen {
    /// How often each slot was done.
    done: Arc<Mutex<BTreeMap<u64, u32>>>,
    /// How often a copy was told so.
    told: Arc<Mutex<u32>>,
}

#[distributed_lock(key = "report:<slot>", once = "1h")]
async fn report(slot: u64, seen: &Seen) -> Result<(), LockError> {
    *seen
        .done
        .lock()
        .expect("the slots")
        .entry(slot)
        .or_default() += 1;
    Ok(())
}

async fn schedule(manager: LockManager, seen: Seen) -> JobScheduler {
    let scheduler = JobScheduler::new().await.expect("a scheduler");
    let every_second = Job::new_async("* * * * * *", move |_, _| {
        let (manager, seen) = (manager.clone(), seen.clone());
        Box::pin(async move {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let slot = now.expect("it is after 1970").as_secs();
            match manager.scope(report(slot, &seen)).await {
                Ok(()) => {}
                Err(LockError::Done { .. }) => *seen.told.lock().expect("the count") += 1,
                Err(error) => panic!("{error:?}"),
            }
        })
    });
    let every_second = every_second.expect("a schedule");
    scheduler.add(every_second).await.expect("a job");
    scheduler.start().await.expect("it starts");
    scheduler
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_do_a_slot_once() {
    let (store, seen) = (Memory::new(), Seen::default());
    let mut copies = Vec::new();
    for _ in 0..2 {
        let manager = LockManager::connect(Config::with_backend(store.clone())).await;
        copies.push(schedule(manager.expect("a connection"), seen.clone()).await);
    }
    // In a second one copy does it, and the other is told.
    let told = async || *seen.told.lock().expect("the count");
    until("three seconds were done", told, |told| *told >= 3).await;
    for mut copy in copies {
        copy.shutdown().await.expect("it ends");
    }
    let done = seen.done.lock().expect("the slots");
    assert!(
        done.len() >= 3 && done.values().all(|times| *times == 1),
        "{done:?}"
    );
}
