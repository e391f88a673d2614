//! What somebody else has put under dlock's prefix: keys of any name, with any value.
//! What stands in a queue has its place there, as one of `etcdctl lock` would; all else is
//! passed over, but what stands where a mark or the floor would; and everything stays as it was.

use std::time::Instant;

use dlock::LockError;
use etcd_client::Client;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Runtime;

use dlock_conformance::Store as _;

use crate::EtcdStore;
use crate::harness::{PATIENCE, connect};
use crate::property::{SECRET, holds_within, is_of_others, told_of};
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{had, is_misconfigured, says};
use crate::support::wait::{HANG, until, within};

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
    let drawn = (
        select(&["", "dlock/", "dlock/key/", "dlock/key/", "dlock/key/read-"][..]),
        vec(piece, 1..4),
    )
        .prop_map(|(start, pieces)| [start.as_bytes(), &pieces.concat()].concat());
    let others = [
        "dlock/key/permit-2-1",
        "dlock/key/permit-x-1",
        "dlock//else",
        "dlock//key/out-1.1",
        "dlock//",
        "dlock///",
    ];
    prop_oneof![
        6 => drawn,
        2 => Just(MARK.to_vec()),
        2 => Just(FLOOR.to_vec()),
        2 => select(others.map(|name| name.as_bytes().to_vec()).to_vec()),
    ]
}

/// What stands where the mark of `key` would.
const MARK: &[u8] = b"dlock//key";
/// What is added to all tokens.
const FLOOR: &[u8] = b"dlock///token-floor";

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => select(vec![vec![], b"1.1".to_vec(), b"1.1.\x1b[31m".to_vec(), [b"1.1.", SECRET.as_bytes()].concat(), b"hello".to_vec(), SECRET.as_bytes().to_vec(), b"\x1b[31m".to_vec()]),
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
    let is_mark = name == MARK;
    let is_number = std::str::from_utf8(value).is_ok_and(|value| value.parse::<u64>().is_ok());
    let spoils = is_mark || (name == FLOOR && !is_number);
    let names_it = |error: &LockError| {
        let name = String::from_utf8_lossy(name);
        error.to_string().contains(&*name)
    };
    if !name.starts_with(b"dlock/key/") {
        let asked = Instant::now();
        let tried = within(HANG, manager.lock("key").try_acquire()).await;
        // It is known at once, and not asked again until the request timeout.
        prop_assert!(!spoils || asked.elapsed() < PATIENCE / 2);
        let passes = match &tried {
            Ok(_) => !spoils,
            Err(error @ LockError::Config { .. }) => spoils && names_it(error),
            Err(LockError::Done { .. }) => is_mark,
            Err(_) => false,
        };
        prop_assert!(passes, "{:?}", tried);
    }
    let mut told = told_of(&manager, "other").await?;
    if !spoils {
        told.extend(told_of(&manager, "key").await?);
    }
    for error in told {
        let is_told = is_of_others(&error) || (spoils && names_it(&error));
        prop_assert!(is_told, "{}", error);
    }
    if spoils {
        // Who was told so has left no place in the queue.
        let left = async || server.keys("dlock/key/").await.len();
        until("nobody has a place", left, |&left| left == 0).await;
    }
    // What it gives back in the background must not meet the next case.
    within(HANG, manager.shutdown()).await;
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
    // Of its own: with a floor that is none nobody gets a lock.
    let server = runtime.block_on(EtcdServer::start());
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
