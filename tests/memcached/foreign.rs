//! What somebody else has put where dlock's items belong: of any size, with any flags. It
//! is told by the name of its item, and stays as it was.

use std::time::SystemTime;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Runtime;

use crate::harness::{config, connect};
use crate::property::{holds_within, is_of_others, told_of};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks;
use crate::support::memcached::MemcachedServer;
use crate::support::wait::{HANG, until, within};
use crate::{TTL, lock_name};

/// By which one start of the server is told from another.
const SERVER: &str = "dlock-server";

fn value() -> impl Strategy<Value = Vec<u8>> {
    let like_ours = [
        "",
        ".",
        "1.1",
        "1.",
        "ff.1",
        "g.1",
        "1.1.1",
        "0123456789abcdef",
        "hello",
        "-1",
        "\u{1b}[31m",
        "END\r\n",
    ];
    prop_oneof![
        3 => select(like_ours.map(str::as_bytes).map(<[u8]>::to_vec).to_vec()),
        2 => vec(any::<u8>(), 0..60),
        1 => (1..900_usize).prop_map(|size| vec![b'x'; size << 10]),
    ]
}

/// What the item is, as the server says it: flags and value.
fn item(server: &MemcachedServer, name: &str) -> Vec<u8> {
    server.talk(format!("get {name}\r\n").as_bytes())
}

fn put(server: &MemcachedServer, name: &str, flags: u32, value: &[u8]) {
    let head = format!("set {name} {flags} 0 {}\r\n", value.len());
    let answer = server.talk(&[head.as_bytes(), value, b"\r\n"].concat());
    assert_eq!(answer, b"STORED\r\n");
}

async fn is_told_and_kept(
    server: &MemcachedServer,
    name: &str,
    flags: u32,
    value: &[u8],
) -> TestCaseResult {
    server.ask("flush_all", &["OK"]);
    put(server, name, flags, value);
    let before = item(server, name);
    let manager = connect(&server.url()).await;
    let tried = within(HANG, manager.lock("key").try_acquire()).await;
    prop_assert_eq!(tried.is_err(), name != SERVER, "{:?}", tried);
    drop(tried);
    for error in told_of(&manager, "key").await? {
        let of_others = is_of_others(&error);
        prop_assert!(of_others || error.to_string().contains(name), "{}", error);
    }
    prop_assert!(item(server, name) == before, "it was changed");
    Ok(())
}

#[test]
fn what_is_not_ours_is_told_by_its_name_and_kept() {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(MemcachedServer::start());
    let name = select(vec![lock_name("key"), SERVER.to_owned()]);
    holds_within(
        HANG,
        20,
        (name, any::<u32>(), value()),
        async |(name, flags, value)| is_told_and_kept(&server, &name, flags, &value).await,
    );
}

/// Who holds a lock, and since when, as an operator reads it. A renewal writes the same, and
/// so does one of a process that knows nothing of the item.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_a_lock_is_seen_by_a_get() {
    unless_it_stands_still(TTL / 4, is_seen_by_a_get).await;
}

async fn is_seen_by_a_get() {
    let server = MemcachedServer::start().await;
    let called = config(&server.url()).label("orders").ttl(TTL);
    let manager = locks::connect(called).await;
    let guard = locks::held(manager.lock("key")).await;
    let get = || {
        let name = lock_name("key");
        let answer = server.ask(&format!("get {name}"), &["END"]);
        let [_, value, _] = &answer[..] else {
            panic!("an item: {answer:?}")
        };
        value.clone()
    };
    let value = get();
    let seen = locks::shown(&manager, "key").await;
    let process = seen.holders[0].process.as_ref().expect("a process");
    let said = format!("@{},{},orders,", process.host, std::process::id());
    assert!(value.contains(&said), "{value}");
    let owner = &*seen.holders[0].owner;
    let since = seen.holders[0].since.expect("since when");
    let since = since.duration_since(SystemTime::UNIX_EPOCH).expect("now");
    assert_eq!(value, format!("{owner};{}", since.as_millis()));
    let renewals = server.stat("cas_hits");
    let renewed = async || {
        assert!(guard.is_held());
        server.stat("cas_hits")
    };
    until("it is renewed", renewed, |&hits| hits > renewals + 1).await;
    assert_eq!(get(), value);
    assert!(guard.is_held());
    let broken = manager.break_holder("key", owner).await;
    assert!(broken.expect("an answer").is_some());
    let _ = guard.release().await;
}

/// The owner that a version before wrote, which says nothing of since when.
#[tokio::test]
async fn an_owner_without_a_time_is_shown() {
    let server = MemcachedServer::start().await;
    let manager = connect(&server.url()).await;
    let owner = "0123456789abcdef.1@web-3,4711,orders,1767225600000";
    put(&server, &lock_name("key"), 0, owner.as_bytes());
    let seen = locks::shown(&manager, "key").await;
    let holder = &seen.holders[0];
    assert_eq!((&*holder.owner, holder.since), (owner, None));
    assert!(holder.process.is_some());
    let broken = manager.break_lock("key", None).await;
    assert!(broken.expect("an answer").is_some());
    assert!(manager.inspect("key").await.expect("an answer").is_none());
}
