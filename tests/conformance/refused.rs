//! No server, or another one: the error comes at once, or with its cause. (The part of guarantee
//! 9 about messages.)

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use dlock::backend::BackendError;
use dlock::{Config, LockError, LockManager};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{CONFIG_AT, Store, connect};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    healed, healed_at, impatient, is_unavailable, says, says_each_cause_once,
};
use crate::support::port::free_port;
use crate::support::wait::{HANG, within};

/// Who made no connection looks for what is wrong for a quarter of a second, and for another kind
/// of server a little longer. A machine that stands still this long at each turn uses that up.
const TOO_STILL: Duration = Duration::from_millis(50);

/// A call that waits for this timeout fails by hanging.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Connects to this store where it is not.
async fn connecting(config: Config, timeout: Duration) -> Result<LockManager, LockError> {
    within(HANG, LockManager::connect(config.request_timeout(timeout))).await
}

fn is_refusal<T>(answer: Result<T, LockError>) -> LockError {
    let told = is_unavailable(answer);
    let message = told.to_string();
    assert!(message.to_lowercase().contains("refuse"), "{message}");
    says_each_cause_once(&told);
    let mut cause = told.cause();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            break;
        }
        cause = match error.downcast_ref::<BackendError>() {
            Some(error) => error.cause(),
            None => error.source(),
        };
    }
    told
}

/// This store with its servers at other ports, if it has any.
fn config_at(store: &dyn Store, mut port: impl FnMut() -> u16) -> Option<Config> {
    if store.proxies().is_empty() {
        return None;
    }
    let url = store.url();
    let mut parts = url.split("127.0.0.1:");
    let mut moved = parts.next()?.to_owned();
    for part in parts {
        let behind = part.trim_start_matches(|digit: char| digit.is_ascii_digit());
        moved += &format!("127.0.0.1:{}{behind}", port());
    }
    Some(CONFIG_AT.with(|config_at| config_at(&moved)))
}

pub(crate) async fn a_refused_connection_is_told_at_once(store: &mut dyn Store) {
    let mut ports = Vec::new();
    let Some(config) = config_at(store, || {
        ports.push(free_port());
        ports[ports.len() - 1]
    }) else {
        return;
    };
    let told = async || {
        let error = is_refusal(connecting(config.clone(), DAY).await);
        says(&error, &[&format!("127.0.0.1:{}", ports[0])]);
    };
    unless_it_stands_still(TOO_STILL, told).await;
}

/// A running service survives a restart of its store, and a call that has no time for that
/// reports the cause.
pub(crate) async fn a_refused_connection_is_the_cause_that_is_told(store: &mut dyn Store) {
    let timeout = store.request_timeout();
    let patient = connect(super::config(store).request_timeout(DAY)).await;
    let short = impatient(|| super::config(store).request_timeout(timeout)).await;
    for manager in [&short, &patient] {
        healed_at(manager, "key").await;
    }
    let shut = |shut: bool| store.proxies().iter().for_each(|proxy| proxy.shut(shut));
    if store.proxies().is_empty() {
        return;
    }
    shut(true);
    let lock = |manager: &LockManager| manager.lock("key");
    let refused = async || {
        for answer in [
            within(HANG, lock(&short).try_acquire()).await,
            within(HANG, lock(&short).acquire()).await,
            within(HANG, lock(&patient).acquire_within(timeout)).await,
        ] {
            is_refusal(answer);
        }
        if short.capabilities().read_write {
            let answer = within(HANG, lock(&short).read().try_acquire()).await;
            is_refusal(answer);
        }
    };
    unless_it_stands_still(TOO_STILL, refused).await;
    shut(false);
    for manager in [&short, &patient] {
        healed(manager).await;
    }
}

/// A server of another kind, by its behaviour when a client connects.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// It answers this to any request.
    Answers(&'static [u8]),
    /// It sends this first, and nothing else.
    Greets(&'static [u8]),
    Hangs,
    HangsUp,
}

/// Each with the word by which the error names it. An empty word: the error is that the store
/// does not answer.
const OTHERS: [(Other, &str); 7] = [
    (
        Other::Answers(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        "an HTTP server",
    ),
    (Other::Answers(b"\x15\x03\x03\x00\x02\x02\x28"), "(TLS)"),
    (Other::Answers(b"ERROR\r\n"), "memcached://"),
    (Other::Answers(b"-ERR unknown command\r\n"), "redis://"),
    (Other::Greets(b"SSH-2.0-OpenSSH_9.2\r\n"), ""),
    (Other::Hangs, ""),
    (Other::HangsUp, ""),
];

pub(crate) async fn another_kind_of_server_is_named(store: &mut dyn Store) {
    unless_it_stands_still(TOO_STILL, async || is_named(store).await).await;
}

async fn is_named(store: &dyn Store) {
    let mut asking = JoinSet::new();
    let mut servers = JoinSet::new();
    for (other, says) in OTHERS {
        let mut ports = Vec::new();
        let Some(config) = config_at(store, || {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            let listener = listener.expect("a free port");
            let port = listener.local_addr().expect("its address").port();
            servers.spawn(serve(listener, other));
            ports.push(port);
            port
        }) else {
            return;
        };
        // The store is of that kind itself.
        if !says.is_empty() && store.url().starts_with(says.trim_end_matches("://")) {
            continue;
        }
        let timeout = store.request_timeout();
        asking.spawn(async move {
            let error = connecting(config, timeout).await.map(drop);
            let error = error.expect_err("another kind of server");
            let message = error.to_string();
            assert!(message.contains(says), "{other:?}: {message}");
            let is_told = |port: &u16| message.contains(&format!("127.0.0.1:{port}"));
            assert!(
                ports.iter().any(is_told),
                "{other:?} at {ports:?}: {message}"
            );
            if says.is_empty() {
                is_unavailable(Err::<(), _>(error));
            }
        });
    }
    asking.join_all().await;
}

async fn serve(listener: std::net::TcpListener, other: Other) {
    listener.set_nonblocking(true).expect("a socket of our own");
    let listener = TcpListener::from_std(listener).expect("a runtime");
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.spawn(async move {
            if let Other::Greets(greeting) = other {
                let _ = stream.write_all(greeting).await;
            }
            let mut asked = [0; 4096];
            while !matches!(other, Other::HangsUp)
                && matches!(stream.read(&mut asked).await, Ok(1..))
            {
                if let Other::Answers(answer) = other {
                    let _ = stream.write_all(answer).await;
                }
            }
        });
    }
}
