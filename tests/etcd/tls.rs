//! Encrypted connections, with an authority of the test's own.

use std::path::Path;

use dlock::LockManager;
use dlock::backend::etcd::Etcd;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::harness::{connect, hasty_config};
use crate::support::etcd::Setup;
use crate::support::locks::{by, had};
use crate::support::secure::encrypted;
use crate::support::tls::Certificates;
use crate::support::wait::{HANG, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_trusted_or_refused() {
    let known = Certificates::create();
    let server = Setup::default().tls(&known).start().await;
    let plain = Setup::default().start().await;
    let (port, ca) = (server.port(), known.authority.display());
    encrypted(
        &["127.0.0.1", "localhost"].map(|host| format!("etcds://{host}:{port}?ca={ca}")),
        &[
            format!("etcds://127.0.0.1:{port}"),
            // The certificate is not for this.
            format!("etcds://127.0.0.2:{port}?ca={ca}"),
        ],
        &[
            (
                format!("etcd://127.0.0.1:{port}"),
                "wants encrypted connections (TLS); write etcds:// in place of etcd://",
            ),
            (
                format!("etcds://127.0.0.1:{}?ca={ca}", plain.port()),
                "takes connections without encryption; write etcd:// in place of etcds://",
            ),
        ],
    )
    .await;
}

/// A server that wants to know its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_shows_its_certificate() {
    let known = Certificates::create();
    let server = Setup::default()
        .tls(&known)
        .with("--client-cert-auth")
        .with(&format!("--trusted-ca-file={}", known.authority.display()))
        .start()
        .await;
    let url = format!(
        "etcds://127.0.0.1:{}?ca={}",
        server.port(),
        known.authority.display()
    );
    let error = within(HANG, LockManager::connect(hasty_config(&url))).await;
    error.expect_err("a client that shows nothing");
    let shown = format!(
        "{url}&cert={}&key={}",
        known.certificate.display(),
        known.key.display()
    );
    had(&connect(&shown).await, "key").await;

    // The same from memory.
    let read = |path: &Path| std::fs::read(path).expect("a file of our own");
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read(&known.authority)))
        .identity(Identity::from_pem(
            read(&known.certificate),
            read(&known.key),
        ));
    let url = format!("etcds://127.0.0.1:{}", server.port());
    let store = Etcd::with_options(&url, ConnectOptions::new().with_tls(tls));
    let store = store.expect("a URL").request_timeout(HANG);
    had(&by(store).await, "key").await;
}
