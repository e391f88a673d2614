//! From one process to the next, while others write.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::etcd_client::{Client, WatchOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::EtcdStore;
use crate::harness::{connect, direct, queued};
use crate::support::etcd::EtcdServer;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};

/// How many watches the server has that are behind. It tells them of what they
/// have missed in a loop, every 100 ms. (The metric is of `mvcc/metrics.go` in
/// etcd's source.)
const BEHIND: &str = "etcd_debugging_mvcc_slow_watcher_total ";

const HAND_OVERS: u32 = 30;

/// The way between a waiter and the server takes many times as long as the others
/// take to write again: a revision that was read is old when the watch arrives.
const WAY: Duration = Duration::from_millis(20);
const BETWEEN_WRITES: Duration = Duration::from_millis(2);

/// The server tells of what is behind in a loop. A waiter's watch must not be one
/// that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_told_by_the_loop_for_those_behind() {
    // A server of its own: watches of the Lock service are behind by design.
    let server = Arc::new(EtcdServer::start().await);
    let store = EtcdStore {
        proxy: Proxy::to(server.port()),
        server,
        prefix: "dlock".to_owned(),
    };
    let port = store.server.port();
    let host = format!("127.0.0.1:{port}");
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
                sleep(BETWEEN_WRITES).await;
            }
        })
    };

    // Between the server's look at its revision and the watch, somebody may write:
    // so one that begins now is behind, seldom.
    store.proxy.delay(Some(WAY));
    let mut were_behind = 0;
    for _ in 0..HAND_OVERS {
        let hand_over = async {
            let guard = one.lock("key").acquire().await.expect("the lock");
            let waiting = tokio::spawn(other.lock("key").acquire());
            queued(&judge, "key", 1).await;
            guard.release().await.expect("the release");
            let next = within(HANG, waiting).await.expect("no panic");
            next.expect("the lock").release().await.expect("held");
        };
        were_behind += u32::from(is_one_behind(port, hand_over).await);
    }
    assert!(
        were_behind < HAND_OVERS / 2,
        "{were_behind} of {HAND_OVERS}"
    );

    // Those that begin with what was read are seen to be.
    let mut were_behind = 0;
    for _ in 0..HAND_OVERS {
        let from_the_past = async {
            let put = client.put(&*probe, "", None).await.expect("an answer");
            let read_at = put.header().expect("a header").revision();
            client.put(&*noise, "", None).await.expect("an answer");
            let from = WatchOptions::new().with_start_revision(read_at + 1);
            let mut watch = client.watch(&*probe, Some(from)).await.expect("a watch");
            client.delete(&*probe, None).await.expect("an answer");
            loop {
                let message = within(HANG, watch.message()).await.expect("a stream");
                if !message.expect("a stream that goes on").events().is_empty() {
                    break;
                }
            }
        };
        were_behind += u32::from(is_one_behind(port, from_the_past).await);
    }
    assert!(
        were_behind > HAND_OVERS / 2,
        "{were_behind} of {HAND_OVERS}"
    );
    writing.abort();
}

/// Whether a watch was seen to be behind while this went on.
async fn is_one_behind(port: u16, work: impl Future<Output = ()>) -> bool {
    let mut seen = false;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            () = &mut work => return seen,
            behind = behind(port) => seen |= behind > 0,
        }
    }
}

async fn behind(port: u16) -> u64 {
    let mut connection = TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("a connection");
    let asked = b"GET /metrics HTTP/1.0\r\n\r\n";
    connection.write_all(asked).await.expect("a request");
    let mut metrics = String::new();
    let answer = connection.read_to_string(&mut metrics);
    within(HANG, answer).await.expect("an answer");
    let behind = metrics.lines().find_map(|line| line.strip_prefix(BEHIND));
    let behind = behind.expect("etcd counts them").trim();
    behind.parse().expect("a number")
}
