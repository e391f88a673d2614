//! Rows that others keep, and connections that carry nothing any more.

use std::time::Duration;

use tokio::time::sleep;

use super::FarTables;
use crate::conformance::connect;
use crate::support::wait::{HANG, within};

/// An operator has not ended a transaction. The lease of that lock cannot be
/// extended, and those that are extended together with it can.
pub(crate) async fn a_row_that_somebody_keeps_costs_no_other_lease<S: FarTables>(store: &mut S) {
    let ttl = Duration::from_secs(4);
    let manager = connect(store.direct().ttl(ttl)).await;
    let mut others = Vec::new();
    for number in 0..20 {
        let key = format!("key:{number}");
        others.push(manager.lock(key).acquire().await.expect("the lock"));
    }
    let kept = manager.lock("kept").acquire().await.expect("the lock");
    let keeper = store.keep("kept").await;
    within(HANG, kept.lost()).await;
    // Each of them was to be extended with it.
    for other in &others {
        let lost = tokio::time::timeout(ttl / 20, other.lost()).await;
        lost.expect_err("nobody keeps its row");
    }
    drop(keeper);
    for other in others {
        other.release().await.expect("it is still held");
    }
}

/// A firewall has forgotten a connection that was idle: it is replaced before
/// anything is sent over it.
pub(crate) async fn a_connection_that_was_forgotten_costs_no_operation<S: FarTables>(
    store: &mut S,
) {
    let manager = connect(store.narrow(Duration::from_secs(20))).await;
    // Idle for longer than dlock trusts a connection.
    sleep(Duration::from_secs(6)).await;
    store.proxy().freeze();
    let lock = within(HANG, manager.lock("key").acquire()).await;
    let lock = lock.expect("the database answers");
    lock.release().await.expect("the release");
}
