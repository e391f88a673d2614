//! RESP, of all its types.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;

use super::{Protocol, Server, all_end_well, number, told_after, words};
use crate::property::SECRET;
use crate::support::resp::{command, honest};

struct Redis;
struct Cluster;
struct Sentinel;
struct Redlock;

/// Each grant has a number, and so has a release.
fn has_a_number(said: &[u8]) -> bool {
    let mut pairs = said.windows(2);
    pairs.any(|pair| pair[0] == b':' && (pair[1].is_ascii_digit() || pair[1] == b'+'))
}

async fn serve(stream: TcpStream, server: Arc<Server>) {
    let mut stream = BufStream::new(stream);
    while let Some(words) = command(&mut stream).await {
        if words.is_empty() {
            return;
        }
        // With these each connection begins: what comes behind them is of interest.
        let begins = matches!(words[0].as_str(), "HELLO" | "CLIENT") && server.script.honest > 0;
        let goes_on = match begins {
            true => stream.get_mut().write_all(&honest(&words)).await.is_ok(),
            false => {
                // With `EVAL` a connection begins too, with `EVALSHA` locks are asked for.
                let is_for_a_lock = matches!(words[0].as_str(), "SET" | "INCRBY" | "EVALSHA");
                let (stream, honest) = (stream.get_mut(), honest(&words));
                server.answer_to(stream, &honest, None, is_for_a_lock).await
            }
        };
        if !goes_on {
            return;
        }
    }
}

impl Protocol for Redis {
    fn url(port: u16) -> String {
        format!("redis://:{SECRET}@127.0.0.1:{port}")
    }

    fn serve(stream: TcpStream, server: Arc<Server>) -> impl Future<Output = ()> + Send {
        serve(stream, server)
    }

    fn may_grant(said: &[u8]) -> bool {
        has_a_number(said)
    }
}

impl Protocol for Cluster {
    fn url(port: u16) -> String {
        format!("redis+cluster://:{SECRET}@127.0.0.1:{port}")
    }

    fn serve(stream: TcpStream, server: Arc<Server>) -> impl Future<Output = ()> + Send {
        serve(stream, server)
    }

    fn may_grant(said: &[u8]) -> bool {
        has_a_number(said)
    }
}

impl Protocol for Sentinel {
    fn url(port: u16) -> String {
        format!("redis+sentinel://:{SECRET}@127.0.0.1:{port}/main?sentinel_password={SECRET}")
    }

    fn serve(stream: TcpStream, server: Arc<Server>) -> impl Future<Output = ()> + Send {
        serve(stream, server)
    }

    fn may_grant(said: &[u8]) -> bool {
        has_a_number(said)
    }
}

impl Protocol for Redlock {
    fn url(port: u16) -> String {
        format!("redis+redlock://:{SECRET}@127.0.0.1:{port},127.0.0.1:1,127.0.0.2:1")
    }

    fn serve(stream: TcpStream, server: Arc<Server>) -> impl Future<Output = ()> + Send {
        serve(stream, server)
    }

    /// The other two nodes are not there: it has no majority, whatever it says.
    fn may_grant(_: &[u8]) -> bool {
        false
    }
}

const CODES: &[&str] = &[
    // Redis repeats what it was sent.
    "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2'",
    "ERR",
    "NOSCRIPT",
    "WRONGTYPE",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "READONLY",
    "LOADING",
    "BUSY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "CROSSSLOT",
    "MASTERDOWN",
    "DLOCKFOREIGN",
    "DLOCKCOUNTER",
    "NOPROTO",
    "MOVED 1 127.0.0.1:1",
    "MOVED 1 127.0.0.1:0",
    "MOVED 99999 x",
    "MOVED",
    "MOVED 1 :6379",
    "ASK 1 127.0.0.1:1",
    "ASK 1",
    "",
    "EXECABORT",
    "UNBLOCKED",
];

fn one() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        3 => select(&[
            "OK", "PONG", "QUEUED", "w:1.1", "w:00000000000000ff.1?", "r:1.1", "master", "slave", "0", "127.0.0.1", "6379",
            "message", "subscribe", "", "-1", "9223372036854775808",
        ][..]).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
    ];
    prop_oneof![
        3 => number().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        3 => (select(CODES), words()).prop_map(|(code, words)| format!("-{code} {words}\r\n").into_bytes()),
        1 => (select(CODES), words()).prop_map(|(code, words)| {
            let said = format!("{code} {words}");
            format!("!{}\r\n{said}\r\n", said.len()).into_bytes()
        }),
        2 => text.clone().prop_map(|text| [b"$", text.len().to_string().as_bytes(), b"\r\n", &text, b"\r\n"].concat()),
        1 => text.clone().prop_map(|text| [b"+", &text[..], b"\r\n"].concat()),
        1 => text.prop_map(|text| [b"=", (text.len() + 4).to_string().as_bytes(), b"\r\ntxt:", &text, b"\r\n"].concat()),
        2 => select(&[
            "+OK\r\n", "_\r\n", "$-1\r\n", "*-1\r\n", "#t\r\n", "#x\r\n", ",1.5\r\n", ",nan\r\n", ",inf\r\n",
            "(3492890328409238509324850943850943825024385\r\n", ":\r\n", ":1.5\r\n", "$x\r\n", "$-2\r\n", "*-2\r\n",
            "$1\r\nab\r\n", "$536870913\r\n", "$9223372036854775807\r\nx\r\n", "$18446744073709551616\r\n", "*1000000000\r\n:1\r\n",
            "*9223372036854775807\r\n", "%1000000000\r\n", "%9223372036854775807\r\n", "~9999999999\r\n", ">9223372036854775807\r\n",
            "|1\r\n+a\r\n+b\r\n", "|9999999999\r\n", "=1\r\nx\r\n", "\r\n", "\n", "?\r\n", "$?\r\n;0\r\n", "*?\r\n.\r\n", ".\r\n",
        ][..]).prop_map(|text| text.as_bytes().to_vec()),
        1 => (select(&["*1\r\n", "%1\r\n+a\r\n", "~1\r\n", ">1\r\n", "|1\r\n+a\r\n"][..]), select(&[50_usize, 200, 100_000][..]))
            .prop_map(|(piece, times)| piece.repeat(times).into_bytes()),
    ]
}

fn said() -> impl Strategy<Value = Vec<u8>> {
    let value = one().prop_recursive(3, 24, 5, |inner| {
        (
            select(&[('*', 1_usize), ('%', 2), ('~', 1), ('>', 1)][..]),
            vec(inner, 0..5),
        )
            .prop_map(|((kind, each), values)| {
                let start = format!("{kind}{}\r\n", values.len() / each);
                let values = &values[..values.len() / each * each];
                [start.into_bytes(), values.concat()].concat()
            })
    });
    // Sometimes there are more answers than questions.
    prop_oneof![6 => value.clone(), 1 => vec(value, 2..4).prop_map(|values| values.concat())]
}

/// Where a cluster is said to be.
fn slots() -> impl Strategy<Value = Vec<u8>> {
    let host = select(
        &[
            "127.0.0.1",
            "",
            "?",
            "nowhere.invalid",
            "\u{1b}[31m",
            "::1",
            "a b",
        ][..],
    );
    let slots = vec((number(), number(), host, number()), 0..4).prop_map(|slots| {
        let nodes = slots.iter().map(|(from, to, host, port)| {
            format!(
                "*3\r\n:{from}\r\n:{to}\r\n*2\r\n${}\r\n{host}\r\n:{port}\r\n",
                host.len()
            )
        });
        format!("*{}\r\n{}", slots.len(), nodes.collect::<String>()).into_bytes()
    });
    prop_oneof![1 => slots, 1 => said()]
}

#[test]
fn a_server_that_talks_nonsense_is_told() {
    all_end_well::<Redis>(5, said(), 16);
}

#[test]
fn nodes_of_a_cluster_that_talk_nonsense_are_told() {
    all_end_well::<Cluster>(3, slots(), 8);
}

#[test]
fn sentinels_that_talk_nonsense_are_told() {
    all_end_well::<Sentinel>(2, said(), 8);
}

#[test]
fn nodes_of_a_quorum_that_talk_nonsense_are_told() {
    all_end_well::<Redlock>(2, said(), 8);
}

/// The first questions are those with which connections begin.
const CONNECTED: std::ops::RangeInclusive<usize> = 7..=12;

#[test]
fn a_scan_without_an_end_is_told() {
    for honest in CONNECTED {
        told_after::<Redis>(honest, b"*2\r\n$1\r\n5\r\n*0\r\n".to_vec());
    }
}

#[test]
fn a_counter_below_zero_grants_nothing() {
    for honest in CONNECTED {
        told_after::<Redis>(honest, b":-9223372036854775808\r\n".to_vec());
    }
}

/// Nodes are named in messages and logs.
#[test]
fn a_node_whose_name_does_something_to_a_terminal_is_not_shown() {
    let slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$5\r\n\x1b[31m\r\n:7\r\n";
    told_after::<Cluster>(0, slots.to_vec());
    told_after::<Sentinel>(0, b"*2\r\n$5\r\n\x1b[31m\r\n$1\r\n7\r\n".to_vec());
}
