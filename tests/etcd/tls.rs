//! Encrypted connections, with an authority of the test's own.

use dlock::{LockError, LockManager};

use crate::harness::{config, connect, had, queued, served, waiting};
use crate::support::etcd::Setup;
use crate::support::wait::{HANG, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_server_is_used() {
    let server = Setup::default().tls().start().await;
    let authority = server.certificates().authority.display();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("etcds://{host}:{}?ca={authority}", server.port());
        let (manager, other) = (connect(&url).await, connect(&url).await);
        let guard = manager.lock("key").acquire().await.expect("the lock");
        let waiting = waiting(&other, "key");
        queued(&manager, "key", 1).await;
        guard.release().await.expect("the release");
        served(waiting).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_trusted_is_refused() {
    let server = Setup::default().tls().start().await;
    let (port, authority) = (server.port(), server.certificates().authority.display());
    for url in [
        format!("etcds://127.0.0.1:{port}"),
        // The certificate is not for this.
        format!("etcds://127.0.0.2:{port}?ca={authority}"),
    ] {
        let error = within(HANG, LockManager::connect(config(&url))).await;
        let error = error.expect_err("an unknown server");
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
}

/// One side speaks TLS and the other does not: an error that says which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mix_up_of_ports_is_named() {
    let encrypted = Setup::default().tls().start().await;
    let plain = Setup::default().start().await;
    let authority = encrypted.certificates().authority.display();
    for (url, says) in [
        (
            format!("etcd://127.0.0.1:{}", encrypted.port()),
            "wants encrypted connections (TLS); write etcds for etcd",
        ),
        (
            format!("etcds://127.0.0.1:{}?ca={authority}", plain.port()),
            "takes connections without encryption; write etcd for etcds",
        ),
    ] {
        let error = within(HANG, LockManager::connect(config(&url))).await;
        let error = error.expect_err("a mix-up");
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// A server that wants to know its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_shows_its_certificate() {
    let authority = crate::support::dir::TempDir::default();
    let known = crate::support::tls::Certificates::create_in(authority.path());
    let server = Setup::default()
        .tls_of(&known)
        .with("--client-cert-auth")
        .with(&format!("--trusted-ca-file={}", known.authority.display()))
        .start()
        .await;
    let url = format!(
        "etcds://127.0.0.1:{}?ca={}",
        server.port(),
        known.authority.display()
    );
    let error = within(HANG, LockManager::connect(config(&url))).await;
    error.expect_err("a client that shows nothing");
    let shown = format!(
        "{url}&cert={}&key={}",
        known.certificate.display(),
        known.key.display()
    );
    had(&connect(&shown).await, "key").await;
}
