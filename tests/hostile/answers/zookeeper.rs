//! Frames of ZooKeeper: a length, a header, and a record.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Protocol, Server, all_end_well, number, words};
use crate::property::SECRET;

struct ZooKeeper;

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    [&length.to_be_bytes()[..], body].concat()
}

/// The session is opened.
fn welcome() -> Vec<u8> {
    let body = [
        &0_i32.to_be_bytes()[..],
        &30_000_i32.to_be_bytes(),
        &0x1234_i64.to_be_bytes(),
        &16_i32.to_be_bytes(),
        &[7; 16],
        &[0],
    ];
    frame(&body.concat())
}

/// What stands in place of the number of the question.
const XID: [u8; 4] = *b"XID!";

fn reply(error: i32, body: &[u8]) -> Vec<u8> {
    let zxid = 77_i64.to_be_bytes();
    frame(&[&XID[..], &zxid, &error.to_be_bytes(), body].concat())
}

async fn next(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let length = stream.read_u32().await.ok()?;
    let mut body = vec![0; usize::try_from(length).ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

/// A node that is there, whatever is asked.
fn honest(asked: &[u8]) -> Vec<u8> {
    let stat = [0; 68];
    let node = [&9_i32.to_be_bytes()[..], b"/dlock/xx", &stat].concat();
    match i32::from_be_bytes(asked[4..8].try_into().expect("four")) {
        // A login, a ping, an exit.
        11 | 100 | -11 => reply(0, &[]),
        // Of a multi, each result has a header, and the last says that it is the last.
        14 => reply(0, &[255, 255, 255, 255, 1, 255, 255, 255, 255]),
        8 | 12 => reply(0, &[&0_i32.to_be_bytes()[..], &stat].concat()),
        3 => reply(0, &stat),
        _ => reply(0, &node),
    }
}

impl Protocol for ZooKeeper {
    fn url(port: u16) -> String {
        format!("zookeeper://alice:{SECRET}@127.0.0.1:{port}/dlock?auth=digest&session_timeout=1s")
    }

    async fn serve(mut stream: TcpStream, server: Arc<Server>) {
        if next(&mut stream).await.is_none() {
            return;
        }
        let welcomed = match server.script.honest > 1 {
            true => stream.write_all(&welcome()).await.is_ok(),
            false => server.answer(&mut stream, &welcome()).await,
        };
        if !welcomed {
            return;
        }
        while let Some(asked) = next(&mut stream).await {
            if asked.len() < 8 {
                return;
            }
            let number = [asked[0], asked[1], asked[2], asked[3]];
            if !server
                .answer_to(&mut stream, &honest(&asked), Some((XID, number)), true)
                .await
            {
                return;
            }
        }
    }
}

/// A piece of a record.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        3 => select(&["", "/", "/dlock", "/dlock/x", "lock-0000000001", "lock-2147483647", "_c_x-lock-0000000003", "x"][..]).prop_map(str::to_owned),
        1 => words(),
    ];
    prop_oneof![
        3 => name.prop_map(|name| {
            let length = u32::try_from(name.len()).expect("short");
            [&length.to_be_bytes()[..], name.as_bytes()].concat()
        }),
        2 => Just(vec![0; 68]),
        2 => number().prop_map(|number| number.to_be_bytes().to_vec()),
        // Lengths come in four bytes. One of a list that is very long is left out: the
        // client makes room for as many as it says.
        2 => select(&[0_i32, 1, 2, -1, -2, 1000, i32::MIN][..]).prop_map(|number| number.to_be_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
    ]
}

fn said() -> impl Strategy<Value = Vec<u8>> {
    let body = || vec(piece(), 0..5).prop_map(|pieces| pieces.concat());
    let error = select(
        &[
            0,
            0,
            0,
            -1,
            -2,
            -4,
            -5,
            -6,
            -8,
            -100,
            -101,
            -102,
            -103,
            -108,
            -110,
            -111,
            -112,
            -113,
            -115,
            -118,
            -124,
            1,
            99,
            i32::MIN,
        ][..],
    );
    let event = (number(), number(), body()).prop_map(|(kind, state, body)| {
        let header = [&(-1_i32).to_be_bytes()[..], &[255; 8], &[0; 4]].concat();
        let kind = (kind as i32).to_be_bytes();
        let state = (state as i32).to_be_bytes();
        frame(&[&header[..], &kind, &state, &body].concat())
    });
    let one = prop_oneof![
        6 => (error, body()).prop_map(|(error, body)| reply(error, &body)),
        2 => event,
        1 => (any::<i32>(), body()).prop_map(|(xid, body)| frame(&[&xid.to_be_bytes()[..], &[0; 12], &body].concat())),
        1 => select(&[0_u32, 1, 3, 15, 16, 0x7fff_ffff, 0x8000_0000, u32::MAX][..])
            .prop_map(|length| [&length.to_be_bytes()[..], b"hello, hello, hello"].concat()),
        1 => body().prop_map(|body| frame(&body)),
    ];
    prop_oneof![3 => one.clone(), 1 => vec(one, 2..4).prop_map(|all| all.concat())]
}

#[test]
#[ignore = "the client makes room for as many names as a length says, and a process without it ends"]
fn a_server_that_talks_nonsense_is_told() {
    all_end_well::<ZooKeeper>(4, said(), 12);
}
