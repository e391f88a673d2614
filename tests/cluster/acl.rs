//! A user with no more rights than the documentation gives it.

use std::time::Duration;

use tokio::time::sleep;

use crate::harness::{connect, nothing_left};
use crate::support::cluster::{Cluster, LONG};
use crate::support::documented::{acl_commands, all_that_locks_need};

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need() {
    let commands = acl_commands(include_str!("../../docs/stores/cluster.md"));
    let [for_nodes] = &commands[..] else {
        panic!("one command is documented: {commands:?}");
    };
    let cluster = Cluster::start(LONG).await;
    for server in &cluster.servers {
        server.command::<()>(for_nodes).await;
    }
    for more in ["", "?quorum=masters"] {
        let url = cluster.url(more).replace("://", "://dlock:password@");
        let (here, there) = (connect(&url).await, connect(&url).await);
        all_that_locks_need(&here, &there).await;
        let ttl = Duration::from_secs(3);
        let guard = here.lock("key").ttl(ttl).acquire();
        let guard = guard.await.expect("the lock");
        // The slots of the lock, or of the votes, move meanwhile.
        if more.is_empty() {
            let slot = cluster.slot("dlock:{key}").await;
            let from = slot * 3 / 16384;
            cluster.move_slot(slot, from, (from + 1) % 3).await;
        }
        sleep(2 * ttl).await;
        assert!(guard.is_held(), "it is renewed");
        guard.release().await.expect("the release");
        nothing_left(&cluster).await;
    }
    for server in &cluster.servers {
        let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]).await;
        assert!(refused.is_empty(), "{refused:?}");
    }
}
