//! Frames of HTTP/2, and in them messages of gRPC.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Protocol, Server, all_end_well, number, told_at_connecting, words};
use crate::property::SECRET;

struct Etcd;

const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// What stands in place of the stream of the question.
const STREAM: [u8; 4] = *b"STRM";

fn frame(kind: u8, flags: u8, stream: [u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream, body].concat()
}

/// Headers, each as a literal that is short.
fn headers(flags: u8, status: Option<u8>, all: &[(&str, &str)]) -> Vec<u8> {
    let mut body: Vec<u8> = status.into_iter().collect();
    for (name, value) in all {
        body.push(0);
        for text in [name, value] {
            let text = &text.as_bytes()[..text.len().min(100)];
            body.push(u8::try_from(text.len()).expect("short"));
            body.extend(text);
        }
    }
    frame(HEADERS, flags, STREAM, &body)
}

const STATUS_200: u8 = 0x88;
const STATUS_404: u8 = 0x8d;
const STATUS_500: u8 = 0x8e;

fn begins() -> Vec<u8> {
    headers(
        END_HEADERS,
        Some(STATUS_200),
        &[("content-type", "application/grpc")],
    )
}

fn ends(status: &str, said: &str) -> Vec<u8> {
    let said: String = said
        .chars()
        .filter(|c| c.is_ascii() && !c.is_control())
        .collect();
    headers(
        END_HEADERS | END_STREAM,
        None,
        &[("grpc-status", status), ("grpc-message", &said)],
    )
}

fn grpc(length: usize, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    frame(DATA, 0, STREAM, &[&[0], &length[..], body].concat())
}

/// As etcd puts it in front of each answer: who it is, and at which revision.
const HEADER: [u8; 8] = [10, 6, 8, 1, 16, 1, 24, 7];

/// That, and nothing else.
fn honest() -> Vec<u8> {
    [begins(), grpc(HEADER.len(), &HEADER), ends("0", "")].concat()
}

async fn next(stream: &mut TcpStream) -> Option<(u8, u8, [u8; 4], Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut body).await.ok()?;
    let id = [head[5], head[6], head[7], head[8]];
    Some((head[3], head[4], id, body))
}

impl Protocol for Etcd {
    fn url(port: u16) -> String {
        format!("etcd://alice:{SECRET}@127.0.0.1:{port}")
    }

    async fn serve(mut stream: TcpStream, server: Arc<Server>) {
        let mut preface = [0; PREFACE];
        if stream.read_exact(&mut preface).await.is_err() {
            return;
        }
        let greeting = frame(SETTINGS, 0, [0; 4], &[]);
        let greeted = match server.script.honest > 0 {
            true => stream.write_all(&greeting).await.is_ok(),
            false => server.answer(&mut stream, &greeting).await,
        };
        if !greeted {
            return;
        }
        while let Some((kind, flags, id, body)) = next(&mut stream).await {
            let goes_on = match kind {
                SETTINGS if flags & ACK == 0 => stream
                    .write_all(&frame(SETTINGS, ACK, [0; 4], &[]))
                    .await
                    .is_ok(),
                PING if flags & ACK == 0 => stream
                    .write_all(&frame(PING, ACK, [0; 4], &body))
                    .await
                    .is_ok(),
                HEADERS => {
                    server
                        .answer_to(&mut stream, &honest(), Some((STREAM, id)), true)
                        .await
                }
                _ => true,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// A transaction that grants has succeeded, which is a number in its second field. The header
    /// of each answer has such a field too.
    fn may_grant(said: &[u8]) -> bool {
        const SECOND_FIELD: u8 = 2 << 3;
        // The length of its content type, 16, is the byte that begins a second field.
        let said = said.strip_prefix(&*begins()).unwrap_or(said);
        let fields = said.windows(2).enumerate();
        let mut fields = fields.filter(|(_, two)| two[0] == SECOND_FIELD && two[1] != 0);
        fields.any(|(at, _)| at < 4 || !said[at - 4..].starts_with(&HEADER))
    }
}

/// Fields of a message of etcd's, as it could be; with numbers that could not.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let varint = |number: i64| {
        let mut number = number.cast_unsigned();
        let mut out = Vec::new();
        while number >= 128 {
            out.push((number & 127) as u8 | 128);
            number >>= 7;
        }
        out.push(number as u8);
        out
    };
    let field = prop_oneof![
        3 => (1..9_u8, number()).prop_map(move |(field, number)| [vec![field << 3], varint(number)].concat()),
        2 => (1..9_u8, vec(any::<u8>(), 0..20)).prop_map(|(field, data)| [&[field << 3 | 2, data.len() as u8][..], &data].concat()),
        1 => (1..9_u8, select(&["dlock/held/x", "dlock/", "token"][..])).prop_map(|(field, text)| {
            [&[field << 3 | 2, text.len() as u8][..], text.as_bytes()].concat()
        }),
        1 => vec(any::<u8>(), 0..8),
    ];
    let header = select(vec![vec![], HEADER.to_vec()]);
    (header, vec(field, 0..6)).prop_map(|(header, fields)| [header, fields.concat()].concat())
}

fn said() -> impl Strategy<Value = Vec<u8>> {
    let status = || {
        select(
            &[
                "0", "1", "2", "3", "5", "7", "9", "13", "14", "16", "99", "-1", "x", "",
            ][..],
        )
    };
    prop_oneof![
        4 => (message(), status(), words()).prop_map(|(body, status, said)| {
            [begins(), grpc(body.len(), &body), ends(status, &said)].concat()
        }),
        3 => (status(), words()).prop_map(|(status, said)| {
            let said: String = said.chars().filter(|c| c.is_ascii() && !c.is_control()).collect();
            let all = [("content-type", "application/grpc"), ("grpc-status", status), ("grpc-message", &said)];
            headers(END_HEADERS | END_STREAM, Some(STATUS_200), &all)
        }),
        2 => (message(), select(&[0_usize, 1, 5, 1000, 4_000_000, 5_000_000, 0x7fff_ffff, 0xffff_ffff][..]), status())
            .prop_map(|(body, length, status)| [begins(), grpc(length, &body), ends(status, "")].concat()),
        1 => message().prop_map(|body| [begins(), grpc(body.len(), &body)].concat()),
        1 => select(&[STATUS_404, STATUS_500][..]).prop_map(|status| headers(END_HEADERS | END_STREAM, Some(status), &[])),
        1 => (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..30)).prop_map(|(kind, flags, body)| frame(kind, flags, STREAM, &body)),
        1 => (any::<u8>(), vec(any::<u8>(), 0..30)).prop_map(|(kind, body)| frame(kind, 0, [0; 4], &body)),
        1 => any::<[u8; 9]>().prop_map(|head| head.to_vec()),
        1 => vec(any::<u8>(), 0..30).prop_map(|body| frame(HEADERS, END_HEADERS, STREAM, &body)),
        1 => Just(b"{\"error\":\"etcdserver: no such thing\"}".to_vec()),
    ]
}

#[test]
fn a_member_that_talks_nonsense_is_told() {
    all_end_well::<Etcd>(4, said(), 8);
}

/// Of such a lease, each lock would have ended as soon as it was had.
#[test]
fn a_lease_that_is_none_is_told() {
    told_at_connecting::<Etcd>([begins(), grpc(0, &[]), ends("0", "")].concat());
}
