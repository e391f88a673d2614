//! Nobody there, or somebody else: what a store's client makes of it is told at
//! once, or with its cause. (The part of guarantee 9 that is about words.)

use std::error::Error as _;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use super::{Store, connect, had};
use crate::support::locks::healed;
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
    let config = Config::from_url(&url).expect("a valid URL");
    let connecting = LockManager::connect(config.request_timeout(DAY));
    let error = within(HANG, connecting).await.expect_err("nobody is there");
    is_refusal(&error);
    let message = error.to_string();
    assert!(
        message.contains(&format!("127.0.0.1:{}", ports[0])),
        "{message}"
    );
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

/// What a server of another kind answers with, whatever it is asked.
const OTHERS: [(&str, &[u8], &str); 4] = [
    (
        "HTTP",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "an HTTP server",
    ),
    ("TLS", b"\x15\x03\x03\x00\x02\x02\x28", "(TLS)"),
    ("memcached", b"ERROR\r\n", "memcached://"),
    ("redis", b"-ERR unknown command\r\n", "redis://"),
];

pub(crate) async fn another_kind_of_server_is_named(store: &mut dyn Store) {
    let own = store.url_at([1, 2, 3]).unwrap_or_default();
    let mut asking = JoinSet::new();
    let mut servers = Vec::new();
    for (kind, answer, says) in OTHERS {
        if own.starts_with(kind) {
            continue;
        }
        let mut ports = [0; 3];
        for port in &mut ports {
            let (server, listens_on) = other(answer).await;
            servers.push(server);
            *port = listens_on;
        }
        let Some(url) = store.url_at(ports) else {
            return;
        };
        let config = Config::from_url(&url).expect("a valid URL");
        let config = config.request_timeout(store.request_timeout());
        asking.spawn(async move {
            let connecting = LockManager::connect(config);
            let error = within(HANG, connecting).await.expect_err("another server");
            let message = error.to_string();
            assert!(message.contains(says), "{kind}: {message}");
            assert!(message.contains("127.0.0.1:"), "{kind}: {message}");
        });
    }
    while let Some(asked) = asking.join_next().await {
        if let Err(panic) = asked {
            std::panic::resume_unwind(panic.into_panic());
        }
    }
    drop(servers);
}

/// Ends with the test.
struct Other(AbortHandle);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A server that gives this answer to all that it is sent.
async fn other(answer: &'static [u8]) -> (Other, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let serving = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut asked = [0; 4096];
                while matches!(stream.read(&mut asked).await, Ok(1..)) {
                    if stream.write_all(answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (Other(serving.abort_handle()), port)
}
