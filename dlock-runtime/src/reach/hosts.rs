//! Looks at hosts over connections of its own: which of them refuse, how long they take to accept
//! one, and what answers where a store should be. Each server shows what it is by its first bytes,
//! if it is asked in a protocol that it knows or that it refuses in its own way.

use std::future::ready;
use std::io;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{self, timeout, timeout_at};

use crate::apart::all;
use crate::backend::{Protocol, Servers};

/// A refusal comes within a round trip. A call waits no longer for the reason of its error.
const LOOK: Duration = Duration::from_millis(250);

/// A person who checks whether a host can be reached waits longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server that sends first has done so by then.
const GREETING: Duration = Duration::from_millis(150);
/// Another server has answered by then.
const ANSWER: Duration = Duration::from_millis(400);
/// After the first bytes, the rest comes within this time.
const REST: Duration = Duration::from_millis(50);

/// For all hosts together. If one of them is wrong, the first one usually is.
const LIMIT: Duration = Duration::from_secs(1);

/// A protocol, the server that speaks it, and the schemes of its URLs: the plain one, and the
/// encrypted one if the scheme decides about encryption.
type Scheme = (Protocol, &'static str, &'static str, Option<&'static str>);

const SCHEMES: [Scheme; 6] = [
    (Protocol::Redis, "a Redis server", "redis", Some("rediss")),
    (Protocol::Etcd, "etcd", "etcd", Some("etcds")),
    (
        Protocol::ZooKeeper,
        "ZooKeeper",
        "zookeeper",
        Some("zookeeper+tls"),
    ),
    (Protocol::Postgres, "PostgreSQL", "postgres", None),
    (Protocol::MySql, "MySQL or MariaDB", "mysql", None),
    (Protocol::Memcached, "memcached", "memcached", None),
];

/// What answers at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Store(Protocol),
    /// A server that requires encrypted connections.
    Tls,
    Http,
}

/// The hosts that refuse connections at all of their addresses, in the given order, and the error
/// of one of them.
pub(super) async fn refusals(hosts: &[String]) -> Option<(Vec<String>, io::Error)> {
    let asked = hosts.iter().map(async |host| {
        let refused = timeout(LOOK, refuses(host)).await;
        Some((host.clone(), refused.ok().flatten()?))
    });
    let refused = all(asked).await.into_iter().flatten();
    let (hosts, mut causes): (Vec<_>, Vec<_>) = refused.unzip();
    Some((hosts, causes.pop()?))
}

/// How long each host takes to accept a connection, or why it does not.
pub(super) async fn each(hosts: &[String]) -> Vec<(String, io::Result<Duration>)> {
    let asked = hosts.iter().map(async |host| {
        let begun = Instant::now();
        let connected = timeout(PATIENCE, connect(host)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        (host.clone(), connected.map(|_| begun.elapsed()))
    });
    all(asked).await
}

async fn refuses(host: &str) -> Option<io::Error> {
    if host.starts_with('/') {
        // Nothing listens on the socket, or nothing has created it yet.
        let is_refusal = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            )
        };
        return connect(host).await.err().filter(is_refusal);
    }
    let mut refusal = None;
    for address in lookup_host(host).await.ok()? {
        match TcpStream::connect(address).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refusal = Some(error);
            }
            _ => return None,
        }
    }
    refusal
}

/// What is wrong with the servers and what to do about it. `None` if nothing wrong was found.
pub(super) async fn mismatch(servers: &Servers) -> Option<String> {
    let looking = async {
        for host in &servers.hosts {
            let found = look_at(host).await;
            if let Some(wrong) = found.and_then(|found| describe(host, found, servers)) {
                return Some(wrong);
            }
        }
        None
    };
    timeout(LIMIT, looking).await.ok().flatten()
}

fn describe(host: &str, found: Found, wanted: &Servers) -> Option<String> {
    let scheme = |protocol| SCHEMES.iter().find(|known| known.0 == protocol);
    let own = scheme(wanted.protocol);
    let own = own.and_then(|&(_, _, plain, encrypted)| Some((plain, encrypted?)));
    let elsewhere = "check the host and the port in the store URL";
    Some(match (found, own) {
        (Found::Store(found), own) if found == wanted.protocol => {
            let (plain, encrypted) = own.filter(|_| wanted.encrypted)?;
            format!(
                "{host} takes connections without encryption; write {plain}:// in place of \
                 {encrypted}:// in the store URL, or let it speak TLS"
            )
        }
        (Found::Store(found), _) => {
            let (_, server, plain, _) = scheme(found)?;
            format!(
                "what answers at {host} is {server}; {elsewhere}, or write {plain}:// there if this \
                 server shall keep the locks"
            )
        }
        (Found::Tls, _) if wanted.encrypted => return None,
        (Found::Tls, Some((plain, encrypted))) => format!(
            "what answers at {host} wants encrypted connections (TLS); write {encrypted}:// in \
             place of {plain}:// in the store URL"
        ),
        (Found::Tls, None) => format!(
            "what answers at {host} wants encrypted connections (TLS), which this client does not \
             begin with; {elsewhere}"
        ),
        (Found::Http, _) => format!("what answers at {host} is an HTTP server; {elsewhere}"),
    })
}

async fn look_at(host: &str) -> Option<Found> {
    // First without asking anything: MySQL counts connections that send something else, and
    // blocks their host after too many.
    let greeting = ask(host, b"", GREETING).await?;
    if !greeting.is_empty() {
        return greeted(&greeting);
    }
    let asked = QUESTIONS.iter();
    let asked = asked.map(async |(words, understand)| understand(&ask(host, words, ANSWER).await?));
    let mut found = asked.collect::<FuturesUnordered<_>>().filter_map(ready);
    found.next().await
}

/// What is sent to a server that does not send first, and what its answer shows.
type Question = (&'static [u8], fn(&[u8]) -> Option<Found>);

const QUESTIONS: [Question; 4] = [
    (b"GET /version HTTP/1.0\r\n\r\n", answered),
    (CLIENT_HELLO, |answer| is_tls(answer).then_some(Found::Tls)),
    // SSLRequest: it is answered with one letter.
    // https://www.postgresql.org/docs/current/protocol-message-formats.html
    (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", |answer| {
        let is_letter = matches!(answer, b"S" | b"N");
        is_letter.then_some(Found::Store(Protocol::Postgres))
    }),
    // One of the four-letter commands, and usually the only one allowed.
    (b"srvr", |answer| {
        let words = [
            "Zookeeper version",
            "ZooKeeper instance",
            "in the whitelist",
        ];
        let is_zookeeper = words.iter().any(|words| contains(answer, words));
        is_zookeeper.then_some(Found::Store(Protocol::ZooKeeper))
    }),
];

/// The first message of TLS 1.2, complete enough for a server to answer with a handshake or an
/// alert (RFC 5246, 7.4.1.2).
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x00\x4d\
    \x01\x00\x00\x49\
    \x03\x03\
    dlockdlockdlockdlockdlockdlockdl\
    \x00\
    \x00\x08\xc0\x2f\xc0\x2b\xc0\x30\x00\x2f\
    \x01\x00\
    \x00\x18\
    \x00\x0a\x00\x06\x00\x04\x00\x1d\x00\x17\
    \x00\x0d\x00\x0a\x00\x08\x04\x03\x08\x04\x04\x01\x02\x01";

/// Identifies a server that sends first.
fn greeted(greeting: &[u8]) -> Option<Found> {
    match greeting {
        // The first packet, with version 10 of the protocol or an error.
        // https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase.html
        [_, _, 0, 0, 10 | 0xff, ..] => Some(Found::Store(Protocol::MySql)),
        // The SETTINGS frame of HTTP/2.
        [0, _, _, 4, 0, ..] => Some(Found::Http),
        // Redis in protected mode says so and closes.
        [b'-', b'D', b'E', b'N', ..] => Some(Found::Store(Protocol::Redis)),
        _ => None,
    }
}

/// Identifies a server by its answer to an HTTP request.
fn answered(answer: &[u8]) -> Option<Found> {
    match answer {
        [b'H', b'T', b'T', b'P', b'/', ..] => Some(if contains(answer, "etcdserver") {
            Found::Store(Protocol::Etcd)
        } else if contains(answer, "HTTPS") {
            Found::Tls
        } else {
            Found::Http
        }),
        // Redis reports what is wrong with `GET`, or asks for a password first.
        [b'-', b'A'..=b'Z', ..] => Some(Found::Store(Protocol::Redis)),
        // memcached knows only the lower-case `get`.
        [b'E', b'R', b'R', b'O', b'R', b'\r' | b'\n', ..] => {
            Some(Found::Store(Protocol::Memcached))
        }
        _ => greeted(answer),
    }
}

/// Whether the answer is a TLS record: a handshake, or an alert that refuses one.
fn is_tls(answer: &[u8]) -> bool {
    matches!(answer, [0x15 | 0x16, 3, ..])
}

fn contains(text: &[u8], words: &str) -> bool {
    text.windows(words.len())
        .any(|part| part == words.as_bytes())
}

/// Sends `words` over a new connection and returns the first part of the answer, as much as is
/// needed to identify the server. `None` if the host cannot be reached.
async fn ask(host: &str, words: &[u8], wait: Duration) -> Option<Vec<u8>> {
    let mut stream = timeout(ANSWER, connect(host)).await.ok()?.ok()?;
    let mut answer = Vec::new();
    let mut until = time::Instant::now() + wait;
    if !words.is_empty() && stream.write_all(words).await.is_err() {
        return Some(answer);
    }
    let mut piece = [0; 512];
    while answer.len() < piece.len() {
        match timeout_at(until, stream.read(&mut piece)).await {
            Ok(Ok(length @ 1..)) => answer.extend_from_slice(&piece[..length]),
            _ => break,
        }
        until = until.min(time::Instant::now() + REST);
    }
    Some(answer)
}

/// A connection to a host.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to a host and port, or to a unix socket by its path.
fn connect(host: &str) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
    Box::pin(async move {
        #[cfg(unix)]
        if host.starts_with('/') {
            return Ok(Box::new(tokio::net::UnixStream::connect(host).await?) as _);
        }
        Ok(Box::new(TcpStream::connect(host).await?) as _)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_known_by_its_words() {
        use Protocol::{Etcd, Memcached, MySql, Redis};
        for (answer, found) in [
            (
                &b"-ERR wrong number of arguments for 'get' command\r\n"[..],
                Found::Store(Redis),
            ),
            (b"-NOAUTH Authentication required.\r\n", Found::Store(Redis)),
            (b"ERROR\r\n", Found::Store(Memcached)),
            (
                b"HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.5.16\"}",
                Found::Store(Etcd),
            ),
            (b"HTTP/1.1 404 Not Found\r\n", Found::Http),
            (
                b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.",
                Found::Tls,
            ),
            (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00", Found::Http),
            (b"J\x00\x00\x00\x0a8.0.36\x00", Found::Store(MySql)),
        ] {
            assert_eq!(answered(answer), Some(found), "{}", answer.escape_ascii());
        }
        for answer in [&b""[..], b"hello\r\n", b"-", b"ERRORS"] {
            assert_eq!(answered(answer), None, "{}", answer.escape_ascii());
        }
        assert!(is_tls(b"\x15\x03\x03\x00\x02\x02\x28") && !is_tls(b"\x15"));
    }

    #[test]
    fn what_is_as_it_should_be_is_not_told() {
        let redis = Servers::new(Protocol::Redis, ["h:1".to_owned()]);
        let encrypted = redis.clone().encrypted(true);
        assert_eq!(describe("h:1", Found::Store(Protocol::Redis), &redis), None);
        assert_eq!(describe("h:1", Found::Tls, &encrypted), None);
        for (found, servers, says) in [
            (Found::Tls, &redis, "write rediss:// in place of redis://"),
            (
                Found::Store(Protocol::Redis),
                &encrypted,
                "write redis:// in place of rediss://",
            ),
            (Found::Store(Protocol::Memcached), &redis, "memcached://"),
            (Found::Http, &encrypted, "an HTTP server"),
        ] {
            let said = describe("h:1", found, servers).expect("a mismatch");
            assert!(said.contains(says) && said.contains("h:1"), "{said}");
        }
    }
}
