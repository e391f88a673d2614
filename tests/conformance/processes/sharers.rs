//! Processes that share a lock by permits. Some are paused for longer than their ttl and then
//! killed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlock::{LockError, LockManager, distributed_lock};

use crate::Store;
use crate::release::ROUNDED_UP;
use crate::support::dir::TempDir;
use crate::support::locks::nothing_left;
use crate::support::process::Process;
use crate::support::room::{Room, inside};
use crate::support::wait::{eventually, until};
use crate::support::worker::{self, setting};

use super::{all_end_well, pause};

const PERMITS: u32 = 3;

/// More than there are permits.
const TASKS: usize = 4;

pub(super) async fn bear_kills_and_pauses(store: &dyn Store, judge: &LockManager) {
    let (room, dir) = (Room::open(), TempDir::default());
    let stop = dir.path().join("stop");
    let ttl = store.contenders_ttl();
    let start = |name: &str| {
        worker::start(
            "share",
            &[
                ("NAME", name),
                ("URL", &store.url()),
                ("ROOM", &room.address().to_string()),
                ("STOP", stop.to_str().expect("a path of text")),
                ("TTL", &ttl.as_millis().to_string()),
            ],
        )
    };
    let comes_in = async |name: &str, count: usize| {
        let before = room.entries_of(name);
        let entries = async || room.entries_of(name);
        until("it comes in", entries, |&now| now >= before + count).await;
    };
    let others_come_in = async |name: &str, count: usize| {
        let before = room.entries_of_others(name);
        let entries = async || room.entries_of_others(name);
        until("others come in", entries, |&now| now >= before + count).await;
    };

    let mut survivors: Vec<Process> = ["a", "b"].map(start).into();
    for name in ["u", "v"] {
        let mut victim = start(name);
        comes_in(name, 5).await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
        room.suspended(name, Instant::now());
        pause(store, &victim).await;
        // Its bodies inside keep their permits until the ttl has passed.
        room.suspended(name, leases_end(judge, ttl).await);
        others_come_in(name, 20).await;
        room.resumed(name);
        victim.resume();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..20_000))).await;
        victim.kill();
        // The leases that the dead process has left end with the ttl.
        leases_end(judge, ttl).await;
    }
    others_come_in("nobody", 20).await;
    // The permits of the dead processes are used again.
    let used = async || room.inside();
    until("all permits are in use", used, |&used| used == 3).await;
    std::fs::write(&stop, "").expect("a file");
    all_end_well(&mut survivors).await;
    assert!(room.most() <= 3, "{} were inside", room.most());
    nothing_left(judge).await;
}

/// When the first lease ends, as the store shows it; checks that none is longer than the ttl. If
/// leases belong to a session, the store does not report it, and this is now.
async fn leases_end(judge: &LockManager, ttl: Duration) -> Instant {
    let (asked, lock) = eventually("the store answers", async || {
        let asked = Instant::now();
        Some((asked, judge.inspect("room").await.ok()?))
    })
    .await;
    let holders = lock.map(|lock| lock.holders).unwrap_or_default();
    let left: Option<Vec<_>> = holders.iter().map(|holder| holder.expires_in).collect();
    let left = left.unwrap_or_default();
    let is_too_long = |left: &&Duration| **left > ttl + ROUNDED_UP;
    assert_eq!(left.iter().find(is_too_long), None, "of {ttl:?}: {left:?}");
    asked + left.into_iter().min().unwrap_or_default()
}

#[distributed_lock(key = "room", permits = PERMITS)]
async fn visit(room: std::net::SocketAddr, name: &str) -> Result<(), LockError> {
    // Long compared with a grant, or there would rarely be three inside.
    let pause = Duration::from_micros(fastrand::u64(..30_000));
    let stays = tokio::time::sleep(pause);
    inside(room, name, stays).await.expect("the room");
    Ok(())
}

/// Runs a worker in this process.
pub(super) async fn share() {
    let (name, room) = (setting("NAME"), setting("ROOM"));
    let room = room.parse().expect("an address");
    let stop = PathBuf::from(setting("STOP"));
    let mut visitors = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (name, stop) = (name.clone(), stop.clone());
        visitors.spawn(async move {
            while !stop.exists() {
                match visit(room, &name).await {
                    // The lease is lost on a machine that stands still, or after a pause.
                    Ok(()) | Err(LockError::Lost { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    visitors.join_all().await;
}
