//! Messages of PostgreSQL: a letter, a length, and what belongs to it.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Protocol, Server, all_end_well, number, told_at_connecting, words};
use crate::property::SECRET;

struct Postgres;

const ASKS_FOR_TLS: u32 = 80_877_103;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("short");
    [&[kind], &length.to_be_bytes()[..], body].concat()
}

fn columns(count: u16) -> Vec<u8> {
    let column = [
        &b"c\0"[..],
        &[0; 4],
        &[0; 2],
        &25_u32.to_be_bytes(),
        &[255; 2],
        &[255; 4],
        &[0; 2],
    ]
    .concat();
    message(
        b'T',
        &[&count.to_be_bytes()[..], &column.repeat(count.into())].concat(),
    )
}

fn row(values: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut body = u16::try_from(values.len())
        .expect("few")
        .to_be_bytes()
        .to_vec();
    for value in values {
        match value {
            None => body.extend((-1_i32).to_be_bytes()),
            Some(value) => {
                body.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
                body.extend(value);
            }
        }
    }
    message(b'D', &body)
}

/// A row for each script that dlock has: it takes the one that has as many columns as it
/// asks for.
fn rows(value: impl Fn() -> Option<Vec<u8>>) -> Vec<u8> {
    let sets = [1, 2, 3, 4, 5].map(|count: u16| {
        let values: Vec<_> = (0..count).map(|_| value()).collect();
        [columns(count), row(&values), message(b'C', b"SELECT 1\0")].concat()
    });
    [sets.concat(), message(b'Z', b"I")].concat()
}

async fn next(stream: &mut TcpStream) -> Option<u8> {
    let kind = stream.read_u8().await.ok()?;
    let length = stream.read_u32().await.ok()?.checked_sub(4)?;
    let mut body = vec![0; usize::try_from(length).ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(kind)
}

impl Protocol for Postgres {
    fn url(port: u16) -> String {
        format!("postgres://alice:{SECRET}@127.0.0.1:{port}/db")
    }

    async fn serve(mut stream: TcpStream, server: Arc<Server>) {
        loop {
            let Ok(length @ 8..1024) = stream.read_u32().await else {
                return;
            };
            let mut body = vec![0; length as usize - 4];
            if stream.read_exact(&mut body).await.is_err() {
                return;
            }
            if body[..4] != ASKS_FOR_TLS.to_be_bytes() {
                break;
            }
            if stream.write_all(b"N").await.is_err() {
                return;
            }
        }
        let welcome = [
            message(b'R', &[0; 4]),
            message(b'S', b"server_version\x0016.1\0"),
            message(b'K', &[0; 8]),
            message(b'Z', b"I"),
        ];
        let welcome = welcome.concat();
        let goes_on = match server.script.honest > 1 {
            true => stream.write_all(&welcome).await.is_ok(),
            false => server.answer(&mut stream, &welcome).await,
        };
        if !goes_on {
            return;
        }
        let one = rows(|| Some(b"1".to_vec()));
        while let Some(kind) = next(&mut stream).await {
            if matches!(kind, b'Q' | b'S' | b'p') && !server.answer(&mut stream, &one).await {
                return;
            }
        }
    }

    /// A token is in a row.
    fn may_grant(said: &[u8]) -> bool {
        said.contains(&b'D')
    }
}

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        1 => Just(None),
        3 => number().prop_map(|number| Some(number.to_string().into_bytes())),
        1 => vec(any::<u8>(), 0..20).prop_map(Some),
        1 => words().prop_map(|words| Some(words.into_bytes())),
    ]
}

fn one() -> impl Strategy<Value = Vec<u8>> {
    let kind = || select(b"RSKZTDCEINAtns123GHdcv!\0".as_slice());
    prop_oneof![
        4 => vec(value(), 5).prop_map(|values| {
            let next = std::cell::Cell::new(0);
            rows(|| values[next.replace(next.get() + 1) % values.len()].clone())
        }),
        2 => (0..6_u16, vec(value(), 0..6)).prop_map(|(count, values)| [columns(count), row(&values)].concat()),
        2 => (select(&["ERROR", "FATAL", "PANIC", "x"][..]), select(&["28P01", "42P01", "40001", "57P01", "XX000", "", "08006", "22003"][..]), words())
            .prop_map(|(severity, code, words)| {
                let words = words.replace('\0', "");
                message(b'E', format!("S{severity}\0V{severity}\0C{code}\0M{words}\0\0").as_bytes())
            }),
        2 => (kind(), vec(any::<u8>(), 0..40)).prop_map(|(kind, body)| message(kind, &body)),
        1 => (kind(), any::<u32>()).prop_map(|(kind, length)| [&[kind], &length.to_be_bytes()[..], b"hello"].concat()),
        1 => (kind(), 0..8_u32).prop_map(|(kind, length)| [&[kind], &length.to_be_bytes()[..]].concat()),
        1 => kind().prop_map(|kind| [&[kind], &0x7fff_ffff_u32.to_be_bytes()[..]].concat()),
        1 => any::<u16>().prop_map(|count| message(b'T', &count.to_be_bytes())),
        1 => any::<u16>().prop_map(|count| message(b'D', &count.to_be_bytes())),
        1 => select(&[3_u32, 5, 7, 10, 11, 12, 99][..]).prop_map(|kind| message(b'R', &[&kind.to_be_bytes()[..], b"SCRAM-SHA-256\0\0"].concat())),
        1 => Just(message(b'Z', b"I")),
    ]
}

#[test]
fn a_server_that_talks_nonsense_is_told() {
    let said = prop_oneof![3 => one(), 1 => vec(one(), 2..4).prop_map(|all| all.concat())];
    let said = (said, any::<bool>()).prop_map(|(mut said, ready)| {
        if ready {
            said.extend(message(b'Z', b"I"));
        }
        said
    });
    all_end_well::<Postgres>(4, said, 8);
}

/// The driver panics at a message that ends too soon. It does so in a task of its own, and
/// the call is told what it was.
#[test]
fn a_message_that_breaks_the_driver_is_told() {
    for kind in [b'D', b'T', b'E', b'S', b'K'] {
        told_at_connecting::<Postgres>([message(kind, &[0]), message(kind, &[0, 1])].concat());
    }
}
