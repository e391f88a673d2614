//! What somebody else has put under dlock's prefix: keys of any name, with any value.
//! What stands in a queue has its place there, as one of `etcdctl lock` would; all else is
//! passed over, but what stands where a mark would; and everything stays as it was.

use dlock::LockError;
use etcd_client::Client;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Runtime;

use dlock_conformance::Store as _;

use crate::EtcdStore;
use crate::harness::connect;
use crate::property::{SECRET, holds_within, is_of_others, told_of};
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{had, is_misconfigured, says};
use crate::support::wait::{HANG, within};

fn name() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "dlock/",
        "dlock",
        "key",
        "key/",
        "/",
        "read-",
        "694d8c2e5f",
        "token",
        "%",
        "%2F",
        "%ff",
        "x",
        " ",
        "\u{1b}[31m",
        "\u{202e}",
        "é",
        "\n",
        "\0",
    ];
    let piece = prop_oneof![
        8 => select(pieces.map(|piece| piece.as_bytes().to_vec()).to_vec()),
        1 => vec(any::<u8>(), 1..4),
    ];
    (
        select(&["", "dlock/", "dlock/key/", "dlock/key/", "dlock/key/read-"][..]),
        vec(piece, 1..4),
    )
        .prop_map(|(start, pieces)| [start.as_bytes(), &pieces.concat()].concat())
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => select(vec![vec![], b"1.1".to_vec(), b"hello".to_vec(), SECRET.as_bytes().to_vec(), b"\x1b[31m".to_vec()]),
        2 => vec(any::<u8>(), 0..40),
        1 => (1..1_000_usize).prop_map(|size| vec![b'x'; size << 10]),
    ]
}

async fn is_told_and_kept(server: &EtcdServer, name: &[u8], value: &[u8]) -> TestCaseResult {
    let host = format!("127.0.0.1:{}", server.port());
    let mut client = Client::connect([host], None).await.expect("our own server");
    client.delete(name, None).await.expect("our own server");
    client.put(name, value, None).await.expect("our own server");
    let manager = connect(&etcd_url(&[server.port()])).await;
    let is_mark = name == b"dlock//key";
    if !name.starts_with(b"dlock/key/") {
        let tried = within(HANG, manager.lock("key").try_acquire()).await;
        let passes = match tried {
            Ok(_) => !is_mark,
            Err(LockError::Config { .. } | LockError::Done { .. }) => is_mark,
            Err(_) => false,
        };
        prop_assert!(passes, "{:?}", tried);
    }
    let mut told = told_of(&manager, "other").await?;
    if !is_mark {
        told.extend(told_of(&manager, "key").await?);
    }
    for error in told {
        let of_others = is_of_others(&error);
        prop_assert!(of_others, "{}", error);
    }
    let kept = client.get(name, None).await.expect("our own server");
    let kept = kept
        .kvs()
        .first()
        .map(|kept| (kept.value(), kept.version()));
    prop_assert!(kept == Some((value, 1)), "it was changed");
    client.delete(name, None).await.expect("our own server");
    Ok(())
}

#[test]
fn what_is_not_ours_is_passed_over_and_kept() {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(EtcdServer::shared());
    holds_within(HANG, 15, (name(), value()), async |(name, value)| {
        is_told_and_kept(&server, &name, &value).await
    });
}

/// Without the floor, nobody knows which tokens are high enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_in_the_place_of_the_floor_is_named() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let name = format!("{}///token-floor", store.prefix);
    store.server.control(&["put", &name, "high"]).await;
    for refused in [
        within(HANG, manager.lock("key").try_acquire()).await,
        within(HANG, manager.lock("key").acquire()).await,
    ] {
        says(
            &is_misconfigured(refused.map(drop)),
            &[&name, "did not write"],
        );
    }
    store.server.control(&["del", &name]).await;
    had(&manager, "key").await;
}
