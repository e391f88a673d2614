//! From one process to the next, while others write.

use std::time::{Duration, Instant};

use dlock::backend::etcd_client::{Client, WatchOptions};

use crate::EtcdStore;
use crate::harness::{connect, direct, queued};
use crate::support::wait::{HANG, within};

/// The server tells of what is behind in a loop, every 100 ms. A waiter's watch
/// must not be one that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_told_by_the_loop_for_those_behind() {
    let store = EtcdStore::start().await;
    let host = format!("127.0.0.1:{}", store.server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    let judge = connect(&direct(&store)).await;
    let (one, other) = (connect(&store.url()).await, connect(&store.url()).await);
    let (noise, probe) = (
        format!("{}-noise", store.prefix),
        format!("{}-probe", store.prefix),
    );
    let mut writer = client.clone();
    let writing = {
        let noise = noise.clone();
        tokio::spawn(async move {
            loop {
                writer.put(&*noise, "", None).await.expect("an answer");
            }
        })
    };

    // A busy machine costs more than the loop does, and not always.
    let mut taken = Vec::new();
    while taken.len() < 5 && !taken.last().is_some_and(are_apart) {
        let (mut ours, mut behind) = (Vec::new(), Vec::new());
        for _ in 0..21 {
            let guard = one.lock("key").acquire().await.expect("the lock");
            let request = other.lock("key");
            let waiting = tokio::spawn(async move {
                let guard = request.acquire().await.expect("the lock");
                (guard, Instant::now())
            });
            queued(&judge, "key", 1).await;
            let start = Instant::now();
            guard.release().await.expect("the release");
            let (guard, had) = within(HANG, waiting).await.expect("no panic");
            ours.push(had - start);
            guard.release().await.expect("the release");

            // A watch that begins with what was read.
            let put = client.put(&*probe, "", None).await.expect("an answer");
            let read_at = put.header().expect("a header").revision();
            client.put(&*noise, "", None).await.expect("an answer");
            let from = WatchOptions::new().with_start_revision(read_at + 1);
            let mut watch = client.watch(&*probe, Some(from)).await.expect("a watch");
            let start = Instant::now();
            client.delete(&*probe, None).await.expect("an answer");
            loop {
                let message = within(HANG, watch.message()).await.expect("a stream");
                if !message.expect("a stream that goes on").events().is_empty() {
                    break;
                }
            }
            behind.push(start.elapsed());
        }
        taken.push((middle(ours), middle(behind)));
    }
    writing.abort();
    assert!(
        taken.iter().any(are_apart),
        "for a hand-over, and with a watch that is behind: {taken:?}"
    );
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The loop costs half of its 100 ms.
fn are_apart((ours, behind): &(Duration, Duration)) -> bool {
    *ours + Duration::from_millis(30) < *behind
}
