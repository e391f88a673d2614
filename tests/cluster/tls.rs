//! Encrypted connections to the nodes, and where these say that the others are.

use std::time::Duration;

use crate::harness::connect;
use crate::own_tls::trusting;
use crate::support::cluster::{Cluster, LONG};
use crate::support::dir::TempDir;
use crate::support::locks::{by, connecting, had, says};
use crate::support::redis::Setup;
use crate::support::wait::{HANG, until};

#[tokio::test]
async fn nodes_are_trusted_or_refused() {
    let mut cluster = Cluster::set_up(Setup::default().tls(), LONG).await;
    // Each has an authority of its own here.
    let mut authorities = String::new();
    for server in &mut cluster.servers {
        let (port, certificates) = server.tls();
        let authority = std::fs::read_to_string(&certificates.authority);
        authorities += &authority.expect("a certificate");
        server.announce(port).await;
    }
    for server in &cluster.servers {
        let nodes = async || -> String { server.command(&["CLUSTER", "NODES"]).await };
        until("a node knows where all are", nodes, |nodes| {
            let ports = cluster.servers.iter().map(|server| server.tls().0);
            ports
                .into_iter()
                .all(|port| nodes.contains(&format!(":{port}@")))
        })
        .await;
    }
    let dir = TempDir::default();
    let path = dir.path().join("authorities.pem");
    std::fs::write(&path, authorities).expect("a file of our own");
    let hosts: Vec<_> = cluster
        .servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.tls().0))
        .collect();
    let (hosts, path) = (hosts.join(","), path.display());
    for more in ["", "&quorum=masters"] {
        let url = format!("rediss+cluster://{hosts}?ca={path}{more}");
        let manager = connect(&url).await;
        for number in 0..10 {
            had(&manager, format!("key:{number}")).await;
        }
    }
    // The same from memory.
    let known: Vec<_> = cluster
        .servers
        .iter()
        .map(|server| server.tls().1)
        .collect();
    for more in ["", "?quorum=masters"] {
        let url = format!("rediss+cluster://{hosts}{more}");
        let store = dlock::backend::redis::Cluster::from_url(&url).expect("a URL");
        let store = store.tls(trusting(&known));
        had(&by(store.request_timeout(HANG)).await, "key").await;
    }
    for url in [
        format!("rediss+cluster://{hosts}"),
        format!("redis+cluster://{hosts}"),
    ] {
        let connected = connecting(&url, Duration::from_secs(1)).await;
        says(
            &connected.expect_err("nobody to be trusted"),
            &["127.0.0.1:"],
        );
    }
}
