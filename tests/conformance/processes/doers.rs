//! Processes that do the work of many slots, each of which must be done once. Some are paused for
//! longer than their ttl and then killed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dlock::{LockError, LockManager, distributed_lock};
use tokio::sync::oneshot;

use crate::Store;
use crate::support::dir::TempDir;
use crate::support::locks::{connect, is_done};
use crate::support::process::Process;
use crate::support::room::{Room, inside};
use crate::support::wait::{HANG, eventually, until, within};
use crate::support::worker::{self, setting};

use super::{all_end_well, pause};

const SLOTS: usize = 60;

/// The tasks of a worker; each walks through all slots.
const TASKS: usize = 3;

const VICTIMS: [&str; 2] = ["u", "v"];

pub(super) async fn bear_kills_and_pauses(store: &dyn Store, judge: &LockManager) {
    let room = Room::open();
    for slot in 0..SLOTS {
        // An earlier attempt may have left a mark.
        judge.forget(slot_name(slot)).await.expect("forget");
    }
    let start = |_: &str| {
        worker::start(
            "do",
            &[
                ("URL", &store.url()),
                ("ROOM", &room.address().to_string()),
                ("TTL", &store.contenders_ttl().as_millis().to_string()),
            ],
        )
    };
    let entries = || (0..SLOTS).map(|slot| room.entries_of(&slot_name(slot)));
    let goes_on = async |count: usize| {
        let begun = async || entries().filter(|&entries| entries > 0).count();
        let before = begun().await;
        let enough = |&now: &usize| now >= (before + count).min(SLOTS);
        until("more slots are begun", begun, enough).await;
    };

    let mut survivors: Vec<Process> = Vec::new();
    for name in VICTIMS {
        let mut victim = start(name);
        goes_on(8).await;
        if survivors.is_empty() {
            survivors = ["a", "b"].map(start).into();
        }
        pause(store, &victim).await;
        // When the ttl has passed, another process does the slots at which it was working.
        goes_on(10).await;
        victim.resume();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..20_000))).await;
        victim.kill();
    }
    all_end_well(&mut survivors).await;

    let entries: Vec<_> = entries().collect();
    assert!(entries.iter().all(|&entries| entries > 0), "{entries:?}");
    // Once for each slot, and once more for each slot at which a victim was working when it was
    // paused or killed.
    let most = SLOTS + VICTIMS.len() * TASKS * 2;
    assert!(entries.iter().sum::<usize>() <= most, "{entries:?}");
    for slot in 0..SLOTS {
        let forgotten = judge.forget(slot_name(slot)).await.expect("forget");
        assert!(forgotten, "slot {slot} was done");
    }
}

/// What a worker visits when its body has returned.
const RETURNED: &str = "returned";

/// A body has returned `Ok`, and its process dies before the store hears of it.
pub(super) async fn die_before_the_mark(store: &dyn Store, judge: &LockManager) {
    // An earlier attempt may have left the store silent, or a mark in it.
    store.set_silence(false).await;
    judge.forget(slot_name(0)).await.expect("forget");
    let (room, dir) = (Room::open(), TempDir::default());
    let may_return = dir.path().join("may return");
    let start = || {
        worker::start(
            "do one",
            &[
                ("URL", &store.url()),
                ("ROOM", &room.address().to_string()),
                ("TTL", &store.contenders_ttl().as_millis().to_string()),
                ("RETURN", may_return.to_str().expect("a path of text")),
            ],
        )
    };
    let visits = async |name: &str, count: usize| {
        let entries = async || room.entries_of(name);
        until(&format!("{name} {count}"), entries, |&now| now == count).await;
    };

    let mut victim = start();
    visits(&slot_name(0), 1).await;
    store.set_silence(true).await;
    std::fs::write(&may_return, "").expect("a file");
    visits(RETURNED, 1).await;
    victim.kill();
    // What it has sent is lost with its connections, and not only late.
    for proxy in store.proxies() {
        proxy.shut(true);
    }
    store.set_silence(false).await;
    for proxy in store.proxies() {
        proxy.shut(false);
    }

    let mut other = start();
    all_end_well(std::slice::from_mut(&mut other)).await;
    for name in [&*slot_name(0), RETURNED] {
        assert_eq!(room.entries_of(name), 2, "{name}");
    }
    let judge = connect(store.config()).await;
    is_done(within(HANG, judge.lock(slot_name(0)).acquire()).await);
    let forgotten = judge.forget(slot_name(0)).await.expect("forget");
    assert!(forgotten, "it was done");
}

/// Runs in this process a worker that does one slot as soon as it may.
pub(super) async fn play_one() {
    let room = setting("ROOM").parse().expect("an address");
    let may_return = PathBuf::from(setting("RETURN"));
    let (returns, returned) = oneshot::channel();
    let body = async {
        let may_return = eventually("it may return", async || may_return.exists().then_some(()));
        inside(room, &slot_name(0), may_return)
            .await
            .expect("the room");
        // In the same task, the visit is polled when the body has returned.
        returns.send(()).expect("the visit");
        Ok::<_, ()>(())
    };
    let visit = async {
        if returned.await.is_ok() {
            inside(room, RETURNED, async {}).await.expect("the room");
        }
    };
    let once = dlock::lock(slot_name(0)).once(Duration::from_secs(3600));
    let (done, ()) = tokio::join!(once.run(body), visit);
    done.expect("the lock").expect("done");
}

fn slot_name(slot: usize) -> String {
    format!("slot:{slot}")
}

#[distributed_lock(key = "slot:<slot>", once = "1h")]
async fn work(room: SocketAddr, slot: usize) -> Result<(), LockError> {
    let pause = Duration::from_micros(fastrand::u64(..20_000));
    let works = tokio::time::sleep(pause);
    inside(room, &slot_name(slot), works)
        .await
        .expect("the room");
    Ok(())
}

/// Runs a worker in this process.
pub(super) async fn play() {
    let room = setting("ROOM").parse().expect("an address");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(async move {
            for slot in 0..SLOTS {
                loop {
                    match work(room, slot).await {
                        Ok(()) | Err(LockError::Done { .. }) => break,
                        // The lease is lost on a machine that stands still, or after a pause.
                        Err(LockError::Lost { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
    tasks.join_all().await;
}
