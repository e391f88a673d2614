//! Waiters who were served long ago and are in the queue all the same, as in that
//! of a replica that was promoted and had not heard of it.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, Renewed, Request};
use tokio::task::JoinSet;

use super::{LONG, lock_value, queue_of, queued, read, release, started, take, until, wait, write};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// So many that a test would hang if each were waited for.
const GHOSTS: usize = 24;

/// The queue of a lock at a moment, to be had again later.
struct Replica(Vec<String>);

impl Replica {
    fn of(server: &RedisServer, key: &str) -> Self {
        Self(queue_of(server, key))
    }

    /// Whoever waits now came later.
    fn is_promoted(&self, server: &RedisServer, key: &str) {
        let queue = format!("dlock:{{{key}}}:queue");
        for entry in self.0.iter().rev() {
            server.run::<u64>(&["LPUSH", &queue, entry]);
        }
    }

    /// It has heard of their processes a moment ago.
    fn has_alive(&self, server: &RedisServer) {
        for entry in &self.0 {
            let process = entry.rsplit(':').next().expect("a process");
            let alive = format!("dlock:alive:{process}");
            server.run::<()>(&["SET", &alive, "1", "PX", "60000"]);
        }
    }
}

/// Lets them all wait in the queue, in turn, notes the queue, and lets them all
/// have the lock and give it back.
async fn served_long_ago(
    server: &RedisServer,
    backends: &[Arc<Redis>],
    ask: fn(usize) -> Request,
) -> Replica {
    let holder = write("a");
    take(&backends[0], &holder).await;
    let mut served = JoinSet::new();
    for (ghost, redis) in (1..=GHOSTS).zip(backends.iter().cycle()) {
        let request = ask(ghost);
        let waiter = wait(redis, &request);
        let redis = Arc::clone(redis);
        served.spawn(async move {
            waiter.await.expect("no panic");
            release(&redis, &request).await;
        });
        queued(server, "a", ghost).await;
    }
    let replica = Replica::of(server, "a");
    release(&backends[0], &holder).await;
    within(HANG, served.join_all()).await;
    replica
}

async fn two(server: &RedisServer) -> [Arc<Redis>; 2] {
    [
        Arc::new(started(&server.url()).await),
        Arc::new(started(&server.url()).await),
    ]
}

/// Ghosts of two living processes stand before their waiters.
async fn are_not_waited_for(ask: fn(usize) -> Request) {
    let server = RedisServer::start().await;
    let backends = two(&server).await;
    let replica = served_long_ago(&server, &backends, ask).await;
    let holder = write("a");
    take(&backends[0], &holder).await;
    let requests = [write("a"), read("a")];
    let waiters: Vec<_> = backends
        .iter()
        .zip(&requests)
        .map(|(redis, request)| wait(redis, request))
        .collect();
    queued(&server, "a", 2).await;
    replica.is_promoted(&server, "a");
    release(&backends[0], &holder).await;
    let mut served = JoinSet::new();
    for ((waiter, request), redis) in waiters.into_iter().zip(requests).zip(&backends) {
        let redis = Arc::clone(redis);
        served.spawn(async move {
            waiter.await.expect("no panic");
            release(&redis, &request).await;
        });
    }
    within(HANG, served.join_all()).await;
    for redis in &backends {
        redis.stop().await;
    }
    until("nothing to be left", || async {
        server.keys().await == ["dlock:token"]
    })
    .await;
}

#[tokio::test]
async fn writers_who_were_served_long_ago_are_not_waited_for() {
    are_not_waited_for(|_| write("a")).await;
}

#[tokio::test]
async fn readers_who_were_served_long_ago_are_not_waited_for() {
    // Those who stand together would be let in together.
    are_not_waited_for(|ghost| match ghost % 2 {
        0 => write("a"),
        _ => read("a"),
    })
    .await;
}

/// They are taken out of the queue together, whatever their number.
#[tokio::test]
async fn ghosts_are_told_at_once() {
    let server = RedisServer::start().await;
    let [redis, _] = two(&server).await;
    let replica = served_long_ago(&server, &[Arc::clone(&redis)], |_| write("a")).await;
    let holder = write("a");
    take(&redis, &holder).await;
    let request = write("a");
    let waiter = wait(&redis, &request);
    queued(&server, "a", 1).await;
    replica.is_promoted(&server, "a");
    let before = server.calls("evalsha") + server.calls("eval");
    release(&redis, &holder).await;
    within(HANG, waiter).await.unwrap();
    let scripts = server.calls("evalsha") + server.calls("eval") - before;
    // The release, what is asked and told of the ghosts, twice as the scripts are
    // new to the server, and the waiter's claim. It may look meanwhile.
    assert!(scripts < GHOSTS as u64 / 2, "{scripts} scripts");
    release(&redis, &request).await;
}

/// Nobody in its process waits for anything, and nobody else does.
#[tokio::test]
async fn a_lock_is_free_behind_a_ghost() {
    let server = RedisServer::start().await;
    let [redis, _] = two(&server).await;
    let replica = served_long_ago(&server, &[Arc::clone(&redis)], |_| write("a")).await;
    replica.is_promoted(&server, "a");
    replica.has_alive(&server);
    let holder = write("a");
    take(&redis, &holder).await;
    server.run::<()>(&[
        "SET",
        "dlock:{a}",
        &format!("w:{}+", holder.owner),
        "KEEPTTL",
    ]);
    release(&redis, &holder).await;
    until("it to be free", || async {
        server.run::<u64>(&["EXISTS", "dlock:{a}", "dlock:{a}:queue"]) == 0
    })
    .await;
}

/// Its place is still in the queue of the new master, which knows nothing of its
/// lease: it is given the lock there, while it holds it by the old one's word.
async fn keeps_what_it_holds(ask: fn() -> Request) {
    let server = RedisServer::start().await;
    let [ours, theirs] = two(&server).await;
    let ghosts = served_long_ago(&server, &[Arc::clone(&ours)], |_| write("a")).await;
    let before = write("a");
    take(&ours, &before).await;
    let holder = ask();
    let held = wait(&ours, &holder);
    queued(&server, "a", 1).await;
    let request = write("a");
    let waiter = wait(&theirs, &request);
    queued(&server, "a", 2).await;
    let replica = Replica::of(&server, "a");
    release(&ours, &before).await;
    within(HANG, held).await.unwrap();

    replica.has_alive(&server);
    server.run::<u64>(&["DEL", "dlock:{a}", "dlock:{a}:readers", "dlock:{a}:queue"]);
    replica.is_promoted(&server, "a");
    ghosts.is_promoted(&server, "a");
    until("a grant to be answered", || async {
        let readers: Vec<String> = server.run(&["ZRANGE", "dlock:{a}:readers", "0", "-1"]);
        match server.run::<Option<String>>(&["GET", "dlock:{a}"]) {
            None => false,
            Some(value) if value.starts_with('r') => readers == [holder.owner.to_string()],
            Some(value) => value.ends_with('+'),
        }
    })
    .await;
    let renewed = ours.renew(std::slice::from_ref(&holder)).await;
    assert!(
        matches!(renewed[..], [Ok(Renewed::Extended { .. })]),
        "{renewed:?}"
    );
    assert!(!waiter.is_finished());
    release(&ours, &holder).await;
    within(HANG, waiter).await.unwrap();
    release(&theirs, &request).await;
}

#[tokio::test]
async fn a_holder_who_is_granted_its_own_lock_keeps_it() {
    keeps_what_it_holds(|| write("a")).await;
}

#[tokio::test]
async fn a_reader_who_is_let_in_again_stays() {
    keeps_what_it_holds(|| read("a")).await;
}

/// Says to a process that this entry was granted the lock.
fn says_it_is_granted(server: &RedisServer, entry: &str) {
    let process = entry.rsplit(':').next().expect("a process");
    let channel = format!("dlock:wake:{process}");
    let message = format!("{entry} dlock:{{a}}");
    assert_eq!(server.run::<u64>(&["PUBLISH", &channel, &message]), 1);
}

/// Waits until a process has done what such a message made it do: it asks for
/// its places, or extends the lease of one who holds the lock.
async fn is_heard(server: &RedisServer, entry: &str, does: &str) {
    // When it asks again, it has the answer to the first, and so to all before it.
    for _ in 0..2 {
        let before = server.calls(does);
        says_it_is_granted(server, entry);
        until("the process to ask", || async {
            server.calls(does) > before
        })
        .await;
    }
}

/// A message may come late, twice, or from somebody else.
#[tokio::test]
async fn a_message_changes_nothing_for_those_who_hold_or_wait() {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    let first = write("a");
    take(&redis, &first).await;
    let requests = [write("a"), write("a"), write("a")];
    let mut waiters = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        waiters.push(wait(&redis, request));
        queued(&server, "a", index + 1).await;
    }
    let entries = queue_of(&server, "a");
    release(&redis, &first).await;
    within(HANG, waiters.remove(0)).await.unwrap();
    // Late and twice: it holds the lock by now.
    is_heard(&server, &entries[0], "pexpire").await;
    // To those who wait, and for an owner of another process.
    says_it_is_granted(&server, &entries[1]);
    let process = entries[0].rsplit(':').next().expect("a process");
    is_heard(&server, &format!("w:abc.1:60000:{process}"), "lrange").await;
    assert_eq!(
        server.run::<String>(&["GET", "dlock:{a}"]),
        format!("w:{}+", requests[0].owner)
    );
    assert_eq!(queue_of(&server, "a"), entries[1..]);
    // Nor when it has given the lock back.
    release(&redis, &requests[0]).await;
    within(HANG, waiters.remove(0)).await.unwrap();
    is_heard(&server, &entries[0], "lrange").await;
    assert_eq!(
        lock_value(&server, "a"),
        format!("w:{}+", requests[1].owner)
    );
    assert_eq!(queue_of(&server, "a"), entries[2..]);
    release(&redis, &requests[1]).await;
    within(HANG, waiters.remove(0)).await.unwrap();
    release(&redis, &requests[2]).await;

    // Nor for readers.
    let readers = [read("a"), read("a")];
    for reader in &readers {
        take(&redis, reader).await;
        is_heard(
            &server,
            &format!("r:{}:60000:{process}", reader.owner),
            "lrange",
        )
        .await;
    }
    for reader in &readers {
        release(&redis, reader).await;
    }
}

/// Whoever holds the lock has claimed it: if its new master does not know, it
/// learns of it by the next renewal, and keeps the lease.
#[tokio::test]
async fn a_claim_that_was_lost_is_made_by_the_renewal() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    let writer = write("a");
    take(&redis, &writer).await;
    let unclaimed = format!("w:{}?", writer.owner);
    server.run::<()>(&["SET", "dlock:{a}", &unclaimed, "PX", "3000"]);
    let is_extended = async |request: &Request| {
        let renewed = redis.renew(std::slice::from_ref(request)).await;
        assert!(
            matches!(renewed[..], [Ok(Renewed::Extended { .. })]),
            "{renewed:?}"
        );
        let ttl = server.run::<u64>(&["PTTL", "dlock:{a}"]);
        assert!(ttl > 3000, "{ttl} of {LONG:?}");
    };
    is_extended(&writer).await;
    assert_eq!(lock_value(&server, "a"), format!("w:{}+", writer.owner));
    release(&redis, &writer).await;

    let reader = read("a");
    take(&redis, &reader).await;
    let claimed = reader.owner.to_string();
    let unclaimed = format!("{claimed}?");
    let readers = "dlock:{a}:readers";
    let end: String = server.run(&["ZSCORE", readers, &claimed]);
    server.run::<u64>(&["ZREM", readers, &claimed]);
    server.run::<u64>(&["ZADD", readers, &end, &unclaimed]);
    let seen = redis.inspect("a").await.unwrap().expect("held");
    assert_eq!(seen.holders[0].owner, claimed);
    is_extended(&reader).await;
    assert_eq!(
        server.run::<Vec<String>>(&["ZRANGE", readers, "0", "-1"]),
        [claimed]
    );
    release(&redis, &reader).await;
    assert_eq!(server.keys().await, ["dlock:token"]);
}

/// One who had given the lock back, as a promoted replica has not heard: nobody
/// renews that, and it ends with its ttl.
#[tokio::test]
async fn a_ghost_that_holds_is_waited_for_until_its_ttl() {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    let mut gone = write("a");
    gone.ttl = Duration::from_millis(500);
    take(&redis, &gone).await;
    let value = lock_value(&server, "a");
    release(&redis, &gone).await;
    server.run::<()>(&["SET", "dlock:{a}", &value, "PX", "500"]);
    let request = write("a");
    within(HANG, wait(&redis, &request)).await.unwrap();
    release(&redis, &request).await;
}
