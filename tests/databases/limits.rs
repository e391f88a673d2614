//! What the server does for a client that has gone.

use std::time::Duration;

use dlock::LockError;
use dlock_conformance::Store as _;

use super::{Database, DatabaseStore};
use crate::support::locks::impatient;
use crate::support::wait::{HANG, until, within};
use crate::tables::{FarTables as _, Tables as _};

/// Somebody keeps a row. Who has asked for it and been told of an outage does
/// not wait for it in the server any more.
pub(crate) async fn nobody_waits_for_a_row_after_the_request_timeout<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    const SHORT: Duration = Duration::from_secs(1);
    let manager = impatient(|| store.config().request_timeout(SHORT).ttl(SHORT)).await;
    let operator = store.keep_new("key").await;
    let error = within(HANG, manager.lock("key").acquire()).await.map(drop);
    let error = error.expect_err("somebody keeps its row");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    within(HANG, manager.shutdown()).await;
    drop(manager);
    let waiting = async || store.number(D::WAITING).await;
    until("nobody waits in the server", waiting, |&count| count == 0).await;
    drop(operator);
}
