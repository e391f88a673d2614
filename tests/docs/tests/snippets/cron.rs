//! The recipe for `tokio-cron-scheduler` as it stands on the page, run: copies of a service
//! on one schedule do what a slot is for once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use dlock::Config;
use dlock::backend::memory::Memory;
use dlock_conformance::support::wait::until;

include!(concat!(env!("OUT_DIR"), "/cron.rs"));

/// One of each copy of the service: they call in turn.
static COPIES: OnceLock<[LockManager; 2]> = OnceLock::new();
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// How often each slot was done.
static DONE: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

/// How often a copy was told so.
static TOLD: AtomicUsize = AtomicUsize::new(0);

/// A night lasts a second.
fn tonight() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_secs().to_string()
}

async fn nightly(night: &str) -> Result<(), JobError> {
    let copies = COPIES.get().expect("two");
    let copy = &copies[CALLS.fetch_add(1, Relaxed) % copies.len()];
    let done = copy.scope(write_invoices(night)).await;
    if let Err(JobError::Lock(LockError::Done { .. })) = done {
        TOLD.fetch_add(1, Relaxed);
    }
    done
}

#[distributed_lock(key = "nightly:<night>", once = "1h")]
async fn write_invoices(night: &str) -> Result<(), JobError> {
    let mut done = DONE.lock().expect("the slots");
    *done.entry(night.to_owned()).or_default() += 1;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_do_a_slot_once() {
    let store = Memory::new();
    let copy = || async {
        let connected = LockManager::connect(Config::with_backend(store.clone())).await;
        connected.expect("a connection")
    };
    let copies = [copy().await, copy().await];
    assert!(COPIES.set(copies).is_ok());
    let every_second = "* * * * * *";
    let mut schedulers = Vec::new();
    for _ in 0..2 {
        schedulers.push(schedule(every_second).await.expect("a schedule"));
    }
    // In a second one copy does it, and the other is told. Two seconds that come late, in one, are
    // four calls: three of them are told.
    let told = async || {
        let done = DONE.lock().expect("the slots").len();
        TOLD.load(Relaxed).min(done)
    };
    until("three seconds were done", told, |told| *told >= 3).await;
    for mut scheduler in schedulers {
        scheduler.shutdown().await.expect("it ends");
    }
    let done = DONE.lock().expect("the slots");
    assert!(
        done.len() >= 3 && done.values().all(|times| *times == 1),
        "{done:?}"
    );
}
