//! Nobody there, or somebody else: what a store's client makes of it is told at
//! once, or with its cause. (The part of guarantee 9 that is about words.)

use std::error::Error as _;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use dlock::{LockError, LockManager};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Store, connect, had};
use crate::support::locks::{healed, refusal, says};
use crate::support::port::free_port;
use crate::support::wait::{HANG, within};

/// Who waits for it to pass fails by hanging.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn is_refusal(error: &LockError) {
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.to_lowercase().contains("refuse"), "{message}");
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            return;
        }
        cause = error.source();
    }
}

pub(crate) async fn a_refused_connection_is_told_at_once(store: &mut dyn Store) {
    let ports = [free_port(), free_port(), free_port()];
    let Some(url) = store.url_at(ports) else {
        return;
    };
    let error = refusal(&url, |config| config.request_timeout(DAY)).await;
    is_refusal(&error);
    says(&error, &[&format!("127.0.0.1:{}", ports[0])]);
}

/// A service that runs outlives a restart of its store, and a call that has no
/// time for that says what it waited for.
pub(crate) async fn a_refused_connection_is_the_cause_that_is_told(store: &mut dyn Store) {
    let timeout = store.request_timeout();
    let short = connect(super::config(store).request_timeout(timeout)).await;
    let patient = connect(super::config(store).request_timeout(DAY)).await;
    for manager in [&short, &patient] {
        had(manager, "key").await;
    }
    let shut = |shut: bool| store.proxies().iter().for_each(|proxy| proxy.shut(shut));
    if store.proxies().is_empty() {
        return;
    }
    shut(true);
    let lock = |manager: &LockManager| manager.lock("key");
    for answer in [
        within(HANG, lock(&short).try_acquire()).await,
        within(HANG, lock(&short).acquire()).await,
        within(HANG, lock(&patient).acquire_within(timeout)).await,
    ] {
        is_refusal(&answer.expect_err("nobody is there"));
    }
    if short.capabilities().read_write {
        let answer = within(HANG, lock(&short).read().try_acquire()).await;
        is_refusal(&answer.expect_err("nobody is there"));
    }
    shut(false);
    for manager in [&short, &patient] {
        healed(manager).await;
    }
}

/// What a server of another kind does with who connects, and what is said of it.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// It answers this, whatever it is asked.
    Answers(&'static [u8]),
    /// It speaks first, and says no more.
    Greets(&'static [u8]),
    Hangs,
    HangsUp,
}

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
    let own = store.url_at([1, 2, 3]).unwrap_or_default();
    let mut asking = JoinSet::new();
    let mut servers = JoinSet::new();
    for (other, says) in OTHERS {
        // It is that itself.
        if !says.is_empty() && own.starts_with(says.trim_end_matches("://")) {
            continue;
        }
        let mut ports = [0; 3];
        for port in &mut ports {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.expect("a free port");
            *port = listener.local_addr().expect("its address").port();
            servers.spawn(serve(listener, other));
        }
        let Some(url) = store.url_at(ports) else {
            return;
        };
        let timeout = store.request_timeout();
        asking.spawn(async move {
            let error = refusal(&url, |config| config.request_timeout(timeout)).await;
            let message = error.to_string();
            for word in [says, "127.0.0.1:"] {
                assert!(message.contains(word), "{other:?}: {message}");
            }
        });
    }
    asking.join_all().await;
}

async fn serve(listener: TcpListener, other: Other) {
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
