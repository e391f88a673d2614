//! Messages that are not what they seem, as after a failover. (Waiters who
//! were served long ago and are in the queue all the same: `tests/support/ghosts.rs`.)

use super::{is_granted, queue_of, queued, read, release, scene, take, until, wait, write};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

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
    let (server, redis) = scene().await;
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
    let value: String = server.run(&["GET", "dlock:{a}"]);
    assert_eq!(value, format!("w:{}+", requests[0].owner));
    assert_eq!(queue_of(&server, "a"), entries[1..]);
    // Nor when it has given the lock back.
    release(&redis, &requests[0]).await;
    within(HANG, waiters.remove(0)).await.unwrap();
    is_heard(&server, &entries[0], "lrange").await;
    is_granted(&server, &requests[1]);
    assert_eq!(queue_of(&server, "a"), entries[2..]);
    release(&redis, &requests[1]).await;
    within(HANG, waiters.remove(0)).await.unwrap();
    release(&redis, &requests[2]).await;

    // Nor for readers.
    let readers = [read("a"), read("a")];
    for reader in &readers {
        take(&redis, reader).await;
        let entry = format!("r:{}:60000:{process}", reader.owner);
        is_heard(&server, &entry, "lrange").await;
    }
    for reader in &readers {
        release(&redis, reader).await;
    }
}
