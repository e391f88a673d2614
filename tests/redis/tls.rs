//! Encrypted connections, with an authority of the test's own.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::support::redis::Setup;
use crate::support::wait::{HANG, until, within};

async fn connect(url: &str) -> Result<LockManager, LockError> {
    let config = Config::from_url(url)?.request_timeout(Duration::from_secs(2));
    within(HANG, LockManager::connect(config)).await
}

#[tokio::test]
async fn a_trusted_server_is_used() {
    let server = Setup::default().tls().password("pass word").start().await;
    let (port, certificates) = server.tls();
    let authority = certificates.authority.display();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("rediss://:pass%20word@{host}:{port}/?ca={authority}");
        let (manager, other) = (
            connect(&url).await.expect("trust"),
            connect(&url).await.expect("trust"),
        );
        let guard = manager.lock("key").acquire().await.expect("the lock");
        let waiting = tokio::spawn({
            let other = other.clone();
            async move { other.lock("key").run(async {}).await }
        });
        until(
            "the waiter waits",
            async || {
                manager
                    .inspect("key")
                    .await
                    .expect("inspect")
                    .map_or(0, |lock| lock.waiters)
            },
            |&waiting| waiting == 1,
        )
        .await;
        guard.release().await.expect("the release");
        within(HANG, waiting)
            .await
            .expect("no panic")
            .expect("the lock");
    }
}

#[tokio::test]
async fn what_is_not_trusted_is_refused() {
    let server = Setup::default().tls().start().await;
    let (port, certificates) = server.tls();
    let authority = certificates.authority.display();
    let unknown = format!("rediss://127.0.0.1:{port}/");
    // The certificate is for 127.0.0.1 and localhost, and so is not for this.
    let other_name = format!("rediss://127.0.0.2:{port}/?ca={authority}");
    for url in [unknown, other_name] {
        let error = connect(&url).await.expect_err("an unknown server");
        let message = error.to_string();
        assert!(
            message.contains("certificate") || message.contains("127.0.0.2"),
            "{message}"
        );
    }
}

/// One side speaks TLS and the other does not: an error that says which, and no
/// hang.
#[tokio::test]
async fn a_mix_up_of_ports_is_named() {
    let server = Setup::default().tls().start().await;
    let (port, certificates) = server.tls();
    let authority = certificates.authority.display();
    let plain = server.port();
    for (url, says) in [
        (
            format!("redis://127.0.0.1:{port}"),
            format!(
                "127.0.0.1:{port} wants encrypted connections (TLS); write rediss for redis at \
                 the beginning of the store URL"
            ),
        ),
        (
            format!("rediss://127.0.0.1:{plain}?ca={authority}"),
            format!(
                "127.0.0.1:{plain} takes connections without encryption; write redis for rediss"
            ),
        ),
    ] {
        let error = connect(&url).await.expect_err("a mix-up");
        assert!(
            matches!(
                error,
                LockError::Unavailable { .. } | LockError::Config { .. }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains(&says), "{error}");
    }
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_is_a_wrong_setting() {
    let server = Setup::default().tls().start().await;
    let (port, certificates) = server.tls();
    let no_certificate = certificates.key.display();
    for file in ["/nowhere/ca.pem".to_owned(), no_certificate.to_string()] {
        let error = connect(&format!("rediss://127.0.0.1:{port}?ca={file}"))
            .await
            .expect_err("no authority");
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(&file), "{error}");
    }
}
