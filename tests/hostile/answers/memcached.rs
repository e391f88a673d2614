//! Lines of memcached's text protocol.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::{Protocol, Server, all_end_well, number, words};

struct Memcached;

/// As a server with nothing in it answers.
fn honest(asked: &[u8]) -> &'static [u8] {
    let starts = |start: &str| asked.starts_with(start.as_bytes());
    match () {
        () if starts("mg dlock-server") => b"VA 16 c5\r\n0123456789abcdef\r\n",
        () if starts("mg") && asked.ends_with(b"mn\r\n") => b"MN\r\n",
        () if starts("mg") => b"EN\r\n",
        () if starts("ms") => b"HD c7\r\n",
        () if starts("md") => b"HD\r\n",
        () if starts("stats") => b"STAT evictions 0\r\nEND\r\n",
        () if starts("version") => b"VERSION 1.6.40\r\n",
        () => b"END\r\n",
    }
}

impl Protocol for Memcached {
    const TTL: Duration = Duration::from_secs(3);

    fn url(port: u16) -> String {
        format!("memcached://127.0.0.1:{port}")
    }

    async fn serve(mut stream: TcpStream, server: Arc<Server>) {
        let mut asked = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut asked).await {
            let asked = &asked[..length];
            let is_for_a_lock = asked.starts_with(b"ms");
            let answer = server.answer_to(&mut stream, honest(asked), None, is_for_a_lock);
            if !answer.await {
                return;
            }
        }
    }

    /// What is set is answered by this.
    fn may_grant(said: &[u8]) -> bool {
        said.windows(2).any(|two| two == b"HD")
    }
}

fn said() -> impl Strategy<Value = Vec<u8>> {
    let flag = || {
        let flag = (
            select(&["c", "t", "k", "s", "f", "O", "b", "W", "X", ""][..]),
            number(),
        );
        flag.prop_map(|(flag, number)| format!(" {flag}{number}"))
    };
    let flags = || vec(flag(), 0..4).prop_map(|flags| flags.concat());
    let line = prop_oneof![
        3 => (select(&["HD", "EN", "NF", "NS", "EX", "MN", "OK", "VA", "ME", ""][..]), flags())
            .prop_map(|(status, flags)| format!("{status}{flags}\r\n").into_bytes()),
        4 => (vec(any::<u8>(), 0..20), flags()).prop_map(|(data, flags)| {
            [format!("VA {}{flags}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat()
        }),
        2 => (number(), flags()).prop_map(|(length, flags)| format!("VA {length}{flags}\r\nhello\r\n").into_bytes()),
        3 => (select(&["CLIENT_ERROR", "SERVER_ERROR", "ERROR", "BUSY", "BADCLASS"][..]), words())
            .prop_map(|(kind, words)| format!("{kind} {words}\r\n").into_bytes()),
        2 => (words(), number()).prop_map(|(name, number)| format!("STAT {name} {number}\r\nEND\r\n").into_bytes()),
        2 => (words(), number(), number()).prop_map(|(name, expires, cas)| {
            format!("key={name} exp={expires} la=1 cas={cas} fetch=no cls=1 size=5\nEND\r\n").into_bytes()
        }),
        1 => select(&["END\r\n", "STORED\r\n", "ERROR\r\n", "VALUE x 0 5\r\nhello\r\nEND\r\n", "VALUE x 0 99999999999\r\n", "42\r\n"][..])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    vec(line, 1..3).prop_map(|lines| lines.concat())
}

#[test]
fn a_server_that_talks_nonsense_is_told() {
    all_end_well::<Memcached>(4, said(), 8);
}
