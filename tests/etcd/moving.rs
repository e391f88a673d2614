//! `docs/migrating.md`: from Redis to etcd and back, while services run.

use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::moving::{Place, there_and_back};
use crate::support::redis::RedisServer;

/// What `etcdctl get dlock///token-floor -w fields` says of the highest token.
async fn highest(server: &EtcdServer) -> u64 {
    let told = server
        .control(&["get", "dlock///token-floor", "-w", "fields"])
        .await;
    let field = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name));
        let value = line.map(|line| line.trim_matches([' ', ':', '"']).parse());
        value.map_or(0, |value| value.expect("a number"))
    };
    field("\"Value\"") + field("\"Revision\"") * 64 + 63
}

#[tokio::test]
async fn a_service_changes_its_store_while_it_runs() {
    let (redis, etcd) = (RedisServer::start().await, EtcdServer::start().await);
    let in_redis = Place {
        url: redis.url(),
        highest: async || redis.command(&["GET", "dlock:token"]).await,
    };
    let in_etcd = Place {
        url: etcd_url(&[etcd.port()]),
        highest: async || highest(&etcd).await,
    };
    there_and_back(in_redis, in_etcd).await;
}
