//! memcached keeps no queue: what a process that always wants a lock leaves to
//! the others.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::harness::connect;
use crate::support::locks::had;
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::proxy::Proxy;

/// A process whose tasks never stop wanting the lock lets another one in, though
/// that is farther from the server: whatever it sees free has been taken again
/// by the time it asks.
#[test]
fn a_process_that_never_pauses_lets_others_in() {
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let (here, there) = (runtime(), runtime());
    let server = here.block_on(MemcachedServer::start());
    let proxy = Proxy::to(server.port());
    let greedy = here.block_on(connect(&server.url()));
    let other = there.block_on(connect(&memcached_url(proxy.port())));
    there.block_on(had(&other, "another"));
    proxy.delay(Some(Duration::from_millis(3)));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let greedy = greedy.clone();
        tasks.spawn_on(
            async move {
                loop {
                    let body = tokio::time::sleep(Duration::from_millis(20));
                    greedy.lock("key").run(body).await.expect("the lock");
                }
            },
            here.handle(),
        );
    }
    there.block_on(async {
        for _ in 0..3 {
            // Until it goes round over there.
            tokio::time::sleep(Duration::from_millis(200)).await;
            had(&other, "key").await;
        }
    });
    here.block_on(tasks.shutdown());
}
