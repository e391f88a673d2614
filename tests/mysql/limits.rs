//! What the server does for a client that has gone.

use std::time::Duration;

use dlock::backend::sqlx;
use dlock::{LockError, LockManager};
use dlock_conformance::Store as _;

use crate::MySqlStore;
use crate::support::wait::{HANG, until, within};
use crate::tables::Tables as _;

/// Somebody keeps a row. Who has asked for it and been told of an outage does
/// not wait for it in the server any more.
#[tokio::test]
async fn nobody_waits_for_a_row_after_the_request_timeout() {
    let store = MySqlStore::start().await;
    let config = store.config().request_timeout(Duration::from_secs(1));
    let config = config.ttl(Duration::from_secs(1));
    let manager = LockManager::connect(config).await.expect("a connection");
    let mut operator = store.server.connection(&store.database).await;
    sqlx::raw_sql("START TRANSACTION; INSERT INTO dlock_lock VALUES ('key', 64, 'w', '', 0, 0)")
        .execute(&mut operator)
        .await
        .expect("a row");
    let error = within(HANG, manager.lock("key").acquire()).await.map(drop);
    let error = error.expect_err("somebody keeps its row");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    within(HANG, manager.shutdown()).await;
    drop(manager);
    let waiting = async || {
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist
            WHERE db = DATABASE() AND info LIKE '%dlock_lock%' AND id <> CONNECTION_ID()";
        store.number(waiting).await
    };
    until("nobody waits in the server", waiting, |&count| count == 0).await;
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut operator)
        .await
        .expect("the operator's connection");
}
