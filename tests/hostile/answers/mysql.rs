//! Packets of MySQL: a length of three bytes, a number, and what belongs to it.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Protocol, Server, all_end_well, number, told_at_connecting, words};
use crate::property::SECRET;

struct MySql;

const PROTOCOL_41: u32 = 0x200;
const SECURE_CONNECTION: u32 = 0x8000;
const PLUGIN_AUTH: u32 = 0x8_0000;
const MULTI_RESULTS: u32 = 0x2_0000;
const CONNECT_WITH_DB: u32 = 8;
const MORE_RESULTS: u8 = 8;

fn packet(number: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short").to_le_bytes();
    [&length[..3], &[number], body].concat()
}

fn greeting() -> Vec<u8> {
    let can = PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH | MULTI_RESULTS | CONNECT_WITH_DB;
    let can = can.to_le_bytes();
    let body = [
        &b"\x0a8.0.30\0"[..],
        &[1, 0, 0, 0],
        b"12345678\0",
        &can[..2],
        &[45, 2, 0],
        &can[2..],
        &[21],
        &[0; 10],
        b"123456789012\0",
        b"mysql_native_password\0",
    ];
    packet(0, &body.concat())
}

fn ok(number: u8) -> Vec<u8> {
    packet(number, &[0, 0, 0, 2, 0, 0, 0])
}

fn short(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(250)];
    [&[u8::try_from(text.len()).expect("short")], text].concat()
}

fn column() -> Vec<u8> {
    [
        &b"\x03def\0\0\0\x01c\0\x0c"[..],
        &[45, 0],
        &[255; 4],
        &[0xfd],
        &[0; 2],
        &[0],
        &[0; 2],
    ]
    .concat()
}

/// A row for each script that dlock has: it takes the one that has as many columns as it
/// asks for.
fn rows(value: impl Fn() -> Option<Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = 0_u8;
    let mut push = |body: &[u8]| {
        number = number.wrapping_add(1);
        out.extend(packet(number, body));
    };
    for count in 1..=5_u8 {
        push(&[count]);
        for _ in 0..count {
            push(&column());
        }
        push(&[0xfe, 0, 0, 2, 0]);
        let row = (0..count).map(|_| value().map_or(vec![0xfb], |value| short(&value)));
        push(&row.collect::<Vec<_>>().concat());
        let more = if count < 5 { MORE_RESULTS } else { 0 };
        push(&[0xfe, 0, 0, 2 | more, 0]);
    }
    out
}

async fn next(stream: &mut TcpStream) -> Option<u8> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, _] = head;
    let mut body = vec![0; u32::from_le_bytes([a, b, c, 0]) as usize];
    stream.read_exact(&mut body).await.ok()?;
    Some(body.first().copied().unwrap_or(0))
}

impl Protocol for MySql {
    fn url(port: u16) -> String {
        format!("mysql://alice:{SECRET}@127.0.0.1:{port}/db")
    }

    async fn serve(mut stream: TcpStream, server: Arc<Server>) {
        let greets = server.script.honest > 1 || server.is_honest();
        let greeted = match greets {
            true => stream.write_all(&greeting()).await.is_ok(),
            false => server.answer(&mut stream, &greeting()).await,
        };
        if !greeted || next(&mut stream).await.is_none() {
            return;
        }
        let welcomed = match server.script.honest > 1 {
            true => stream.write_all(&ok(2)).await.is_ok(),
            false => server.answer(&mut stream, &ok(2)).await,
        };
        if !welcomed {
            return;
        }
        let one = rows(|| Some(b"1".to_vec()));
        while let Some(command) = next(&mut stream).await {
            // It sets its session up first.
            let goes_on = match command {
                3 => server.answer(&mut stream, &one).await,
                _ => stream.write_all(&ok(1)).await.is_ok(),
            };
            if !goes_on {
                return;
            }
        }
    }
}

/// Counts of columns of several bytes, and what else stands in their place.
const LENGTHS: &[&[u8]] = &[
    b"\xfc",
    b"\xfc\xff\xff",
    b"\xfd\x01",
    b"\xfe",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xfb/etc/passwd",
];

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        1 => Just(None),
        3 => number().prop_map(|number| Some(number.to_string().into_bytes())),
        1 => vec(any::<u8>(), 0..20).prop_map(Some),
        1 => words().prop_map(|words| Some(words.into_bytes())),
    ]
}

fn one() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(value(), 5).prop_map(|values| {
            let next = std::cell::Cell::new(0);
            rows(|| values[next.replace(next.get() + 1) % values.len()].clone())
        }),
        2 => Just(ok(1)),
        3 => (select(&[1045_u16, 1146, 1213, 1205, 1290, 1040, 1690, 0, 9999, 3024][..]), words()).prop_map(|(code, words)| {
            let body = [&[0xff], &code.to_le_bytes()[..], b"#HY000", words.as_bytes()].concat();
            packet(1, &body)
        }),
        2 => (0..4_u8, vec(any::<u8>(), 0..40)).prop_map(|(number, body)| packet(number, &body)),
        2 => (any::<u32>(), any::<u8>()).prop_map(|(length, number)| {
            [&length.to_le_bytes()[..3], &[number], b"hello"].concat()
        }),
        1 => vec(any::<u8>(), 1..9).prop_map(|count| packet(1, &count)),
        1 => Just(packet(1, &[])),
        1 => select(LENGTHS).prop_map(|body| packet(1, body)),
    ]
}

#[test]
fn a_server_that_talks_nonsense_is_told() {
    let said = prop_oneof![3 => one(), 1 => vec(one(), 2..4).prop_map(|all| all.concat())];
    all_end_well::<MySql>(4, said, 8);
}

/// The driver panics at a packet that ends too soon. It does so in a task of its own, and
/// the call is told what it was.
#[test]
fn a_packet_that_breaks_the_driver_is_told() {
    for body in [&b"\xfc\xff"[..], b"\xff\x01", b"\xfe", b"\x01"] {
        told_at_connecting::<MySql>(packet(1, body).repeat(4));
    }
}
