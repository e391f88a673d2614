//! What a service has already: a client of the `redis` crate, and TLS settings in memory.

use dlock::LockManager;
use dlock::backend::redis::Redis;
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};

use crate::support::locks::{by, config, connect, held, queued, served};
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::HANG;

async fn by_client(client: &Client) -> LockManager {
    let store = Redis::from_client(client).expect("a client that can be used");
    by(store.request_timeout(HANG)).await
}

/// The locks are those of the same server by its URL.
async fn locks_together(here: &LockManager, there: &LockManager) {
    let guard = held(here.lock("key")).await;
    let waiting = tokio::spawn(there.lock("key").acquire());
    queued(here, "key", 1).await;
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
}

#[tokio::test]
async fn a_client_says_where_the_server_is_and_how_to_log_in() {
    let server = Setup::default().password("pass word").start().await;
    let plain = Client::open(server.url()).expect("a client");
    let here = by_client(&plain).await;
    locks_together(&here, &connect(config(&server.url())).await).await;

    // Of a user with a name, in another database.
    let words = "ACL SETUSER alice on >secret ~* &* +@all";
    let words: Vec<_> = words.split(' ').collect();
    server.command::<()>(&words).await;
    let url = format!("redis://alice:secret@127.0.0.1:{}/3", server.port());
    let third = by_client(&Client::open(&*url).expect("a client")).await;
    let _other = held(here.lock("key")).await;
    locks_together(&third, &connect(config(&url)).await).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_client_may_have_a_unix_socket() {
    let server = RedisServer::start().await;
    let url = format!("unix://{}", server.socket().display());
    let here = by_client(&Client::open(url).expect("a client")).await;
    locks_together(&here, &connect(config(&server.url())).await).await;
}

/// Its certificates, and that it checks none, are hidden in it.
#[test]
fn a_client_that_hides_its_settings_is_refused() {
    let info: ConnectionInfo = "redis://:hunter2@host".into_connection_info().expect("one");
    let info = info.set_addr(ConnectionAddr::TcpTls {
        host: "host".to_owned(),
        port: 6379,
        insecure: true,
        tls_params: None,
    });
    let client = Client::open(info).expect("a client");
    let error = Redis::from_client(&client).expect_err("hidden settings");
    let message = error.to_string();
    assert!(message.contains(".tls("), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn a_password_of_a_client_is_not_shown() {
    let client = Client::open("redis://alice:hunter2@host/1").expect("a client");
    let store = Redis::from_client(&client).expect("a client that can be used");
    let shown = format!("{store:?}");
    assert!(
        shown.contains("alice") && shown.contains("host:6379"),
        "{shown}"
    );
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[cfg(feature = "tls")]
mod tls {
    use std::time::Duration;

    use dlock::Config;

    use super::*;
    use crate::own_tls::trusting;
    use crate::support::locks::had;
    use crate::support::tls::Certificates;

    /// An outage would be told as one after this.
    const SOON: Duration = Duration::from_secs(5);

    /// Both sides show their certificate.
    #[tokio::test]
    async fn certificates_may_be_in_memory() {
        let server = Setup::default().tls().password("pass word").start().await;
        let words = ["CONFIG", "SET", "tls-auth-clients", "yes"];
        server.command::<()>(&words).await;
        let (port, certificates) = server.tls();
        let url = format!("rediss://:pass%20word@127.0.0.1:{port}");
        let store = |known: &Certificates| {
            let store = Redis::from_url(&url)
                .expect("a URL")
                .tls(trusting(&[known]));
            store.request_timeout(HANG)
        };
        let here = by(store(certificates)).await;
        locks_together(&here, &connect(config(&server.url())).await).await;

        // Of another authority, and so nobody who is trusted.
        let config = Config::with_backend(store(&Certificates::create()).request_timeout(SOON));
        let refused = LockManager::connect(config).await;
        refused.expect_err("a server that is not trusted");
    }

    #[tokio::test]
    async fn what_the_url_says_of_encryption_does_not_count() {
        let server = Setup::default().tls().start().await;
        let (port, certificates) = server.tls();
        let store = Redis::from_url(&format!("redis://127.0.0.1:{port}")).expect("a URL");
        let store = store.tls(trusting(&[certificates]));
        had(&by(store.request_timeout(HANG)).await, "key").await;
    }
}
