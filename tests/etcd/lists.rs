//! A look at many locks.

use std::time::Duration;

use etcd_client::{Client, PutOptions};
use tokio::task::JoinSet;

use crate::harness::config;
use crate::support::calm::unless_it_stands_still;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};

/// Locks of other programs have a lease each. Some of them are asked for at a time, and
/// each time there is as long for the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_has_as_much_time_for_each_part() {
    const TASKS: usize = 50;
    const EACH: usize = 26;
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
    let server = EtcdServer::start().await;
    let host = format!("127.0.0.1:{}", server.port());
    let client = Client::connect([host], None).await.expect("a connection");
    let mut made = JoinSet::new();
    for task in 0..TASKS {
        let mut client = client.clone();
        made.spawn(async move {
            for number in 0..EACH {
                let lease = client.lease_grant(600, None).await.expect("a lease").id();
                let place = format!("x/{task}.{number}/{lease:x}");
                let attached = PutOptions::new().with_lease(lease);
                let put = client.put(place, "", Some(attached)).await;
                put.expect("an answer");
            }
        });
    }
    made.join_all().await;

    let proxy = Proxy::to(server.port());
    let url = format!("{}/x", etcd_url(&[proxy.port()]));
    let manager = locks::connect(config(&url).request_timeout(REQUEST_TIMEOUT)).await;
    // All answers together take longer than one may.
    proxy.delay(Some(REQUEST_TIMEOUT / 24));
    let listed = unless_it_stands_still(REQUEST_TIMEOUT / 6, async || {
        within(HANG, manager.list("")).await.expect("a list")
    });
    let listed = listed.await;
    assert_eq!(listed.len(), TASKS * EACH);
    let known = |holder: &dlock::backend::HolderInfo| holder.expires_in.is_some();
    assert!(listed.iter().all(|lock| lock.holders.iter().all(known)));
}
