//! Users with no more rights than the documentation gives them.

use crate::support::documented::{acl_commands, all_that_locks_need};
use crate::support::locks::{config, connect};
use crate::support::redis::RedisServer;
use crate::support::sentinel::{Deployment, Passwords, replicated, url};
use crate::support::wait::until;

#[tokio::test]
async fn the_documented_users_can_do_all_that_locks_need() {
    let commands = acl_commands(include_str!("../../docs/stores/sentinel.md"));
    let [for_servers, for_sentinels] = &commands[..] else {
        panic!("two commands are documented: {commands:?}");
    };
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let master = &deployment.servers[0];
    replicated(master, 2).await;
    master.command::<()>(for_servers).await;
    for sentinel in &deployment.sentinels {
        sentinel.command::<()>(for_sentinels).await;
    }
    let ports: Vec<_> = deployment.sentinels.iter().map(RedisServer::port).collect();
    let users = "?replicas=1&sentinel_username=dlock&sentinel_password=password";
    let url = url("dlock:password@", &ports, users);
    let connect = async || connect(config(&url)).await;
    let (here, there) = (connect().await, connect().await);
    all_that_locks_need(&here, &there).await;

    // They hear of a failover, and were refused nothing.
    for sentinel in &deployment.sentinels {
        let listening = async || {
            let clients: String = sentinel.command(&["CLIENT", "LIST"]).await;
            let ours = |line: &&str| line.contains(" sub=1 ") && line.contains(" user=dlock");
            clients.lines().filter(ours).count()
        };
        until("both listen", listening, |&listening| listening == 2).await;
    }
    for server in deployment.sentinels.iter().chain([master]) {
        let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]).await;
        assert!(refused.is_empty(), "{refused:?}");
    }
}
