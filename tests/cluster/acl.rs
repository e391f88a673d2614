//! A user with no more rights than the documentation gives it.

use std::time::Duration;

use tokio::time::sleep;

use crate::harness::{connect, nothing_left};
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::{Cluster, LONG, may_move};
use crate::support::documented::{acl_commands, all_that_locks_need};
use crate::support::secure::misconfigured;

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
        let [slot, mut from, mut to] = may_move(cluster.slot("dlock:{key}").await);
        unless_it_stands_still(ttl / 4, async || {
            let guard = here.lock("key").ttl(ttl).acquire();
            let guard = guard.await.expect("the lock");
            // The slots of the lock, or of the votes, move meanwhile.
            if more.is_empty() {
                cluster.move_slot(slot, from, to).await;
                (from, to) = (to, (to + 1) % 3);
            }
            sleep(2 * ttl).await;
            assert!(guard.is_held(), "it is renewed");
            guard.release().await.expect("the release");
        })
        .await;
        nothing_left(&cluster).await;
    }
    for server in &cluster.servers {
        let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]).await;
        assert!(refused.is_empty(), "{refused:?}");
    }
}

/// Else it would be told of no turn of its own, and would tell nobody of theirs.
#[tokio::test]
async fn who_may_not_listen_or_speak_in_a_slot_is_told_so() {
    let cluster = Cluster::of_masters(1).await;
    let sets = async |words: &[&str]| {
        for server in &cluster.servers {
            let words = [&["ACL", "SETUSER"], words].concat();
            server.command::<()>(&words).await;
        }
    };
    for (user, command) in [("deaf", "ssubscribe"), ("mute", "spublish")] {
        // It may do what older servers have instead.
        sets(&[user, "on", ">hunter2", "~*", "&*", "+@all"]).await;
        sets(&[user, &format!("-{command}")]).await;
        let url = cluster.url("");
        let url = url.replace("://", &format!("://{user}:hunter2@"));
        misconfigured(&url, &["+ssubscribe", "+spublish"]).await;
        sets(&[user, &format!("+{command}")]).await;
        connect(&url).await;
    }
}
