//! Encrypted connections, with an authority of the test's own.

use std::time::Duration;

use crate::support::locks::{config, connect, connecting, had, is_misconfigured, says};
use crate::support::redis::Setup;
use crate::support::secure::encrypted;
use crate::support::wait::HANG;

/// An outage would be told as one after this.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn servers_are_trusted_or_refused() {
    let server = Setup::default().tls().password("pass word").start().await;
    let (port, certificates) = server.tls();
    let (plain, ca) = (server.port(), certificates.authority.display());
    let login = ":pass%20word@";
    let trusted = ["127.0.0.1", "localhost"];
    encrypted(
        &trusted.map(|host| format!("rediss://{login}{host}:{port}/?ca={ca}")),
        &[
            format!("rediss://{login}127.0.0.1:{port}/"),
            // The certificate is for 127.0.0.1 and localhost, and so is not for this.
            format!("rediss://{login}127.0.0.2:{port}/?ca={ca}"),
        ],
        &[
            (
                format!("redis://{login}127.0.0.1:{port}"),
                "wants encrypted connections (TLS); write rediss:// in place of redis://",
            ),
            (
                format!("rediss://{login}127.0.0.1:{plain}?ca={ca}"),
                "takes connections without encryption; write redis:// in place of rediss://",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_is_a_wrong_setting() {
    let server = Setup::default().tls().start().await;
    let (port, certificates) = server.tls();
    let no_certificate = certificates.key.display();
    for file in ["/nowhere/ca.pem".to_owned(), no_certificate.to_string()] {
        let url = format!("rediss://127.0.0.1:{port}?ca={file}");
        says(&is_misconfigured(connecting(&url, HANG).await), &[&file]);
    }
}

/// A server that wants to know its clients.
#[tokio::test]
async fn a_client_shows_its_certificate() {
    let server = Setup::default().tls().start().await;
    let words = ["CONFIG", "SET", "tls-auth-clients", "yes"];
    server.command::<()>(&words).await;
    let (port, certificates) = server.tls();
    let [ca, cert, key] = [
        &certificates.authority,
        &certificates.certificate,
        &certificates.key,
    ]
    .map(|path| path.display());
    let url = format!("rediss://127.0.0.1:{port}?ca={ca}");
    let error = is_misconfigured(connecting(&url, SOON).await);
    says(&error, &["`cert=<path>&key=<path>`"]);
    had(
        &connect(config(&format!("{url}&cert={cert}&key={key}"))).await,
        "key",
    )
    .await;
    for (wrong, named) in [
        (format!("{url}&cert={cert}"), "belong together"),
        (format!("{url}&cert={ca}&key={key}"), "`key="),
        (format!("{url}&cert={cert}&key={cert}"), "`key="),
        (
            format!("redis://127.0.0.1:{port}?cert={cert}&key={key}"),
            "rediss://",
        ),
    ] {
        says(&is_misconfigured(connecting(&wrong, SOON).await), &[named]);
    }
}
