//! Encrypted connections to the nodes, each of which has an authority of its own here.

use dlock::backend::redis::Redlock;

use crate::own_tls::trusting;
use crate::support::locks::{by, had};
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::HANG;

#[tokio::test]
async fn certificates_may_be_in_memory() {
    let start = async || Setup::default().tls().start().await;
    let servers: [RedisServer; 3] = tokio::join!(start(), start(), start()).into();
    let (ports, known): (Vec<_>, Vec<_>) = servers.iter().map(|server| server.tls()).unzip();
    let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let store = Redlock::from_url(&format!("rediss+redlock://{hosts}")).expect("a URL");
    let store = store.tls(trusting(&known));
    had(&by(store.request_timeout(HANG)).await, "key").await;
}
