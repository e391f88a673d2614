//! What somebody else has put where dlock's items belong: of any size, with any flags. It
//! is told by the name of its item, and stays as it was.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Runtime;

use crate::harness::connect;
use crate::lock_name;
use crate::property::{holds_within, is_of_others, is_plain};
use crate::support::memcached::MemcachedServer;
use crate::support::wait::{HANG, within};

const SHORT: Duration = Duration::from_millis(100);

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
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("our own");
    (&stream)
        .write_all(format!("get {name}\r\nquit\r\n").as_bytes())
        .expect("our own");
    let mut item = Vec::new();
    (&stream).read_to_end(&mut item).expect("our own");
    item
}

fn put(server: &MemcachedServer, name: &str, flags: u32, value: &[u8]) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("our own");
    let head = format!("set {name} {flags} 0 {}\r\n", value.len());
    let line = [head.as_bytes(), value, b"\r\n"].concat();
    stream.write_all(&line).expect("our own");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("our own");
    assert_eq!(&answer, b"STORED\r\n");
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
    let lock = || manager.lock("key");
    let answers = [
        within(HANG, lock().try_acquire()).await.map(drop),
        within(HANG, lock().acquire_within(SHORT)).await.map(drop),
        within(HANG, manager.inspect("key")).await.map(drop),
        within(HANG, manager.list("")).await.map(drop),
    ];
    let is_lock = name != SERVER;
    prop_assert_eq!(answers[0].is_err(), is_lock, "{:?}", answers[0]);
    for error in answers.into_iter().filter_map(Result::err) {
        is_plain(&error)?;
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
