//! A floor for the tokens, raised beside a grant that has read the one before.

use dlock::LockManager;
use dlock_conformance::Store as _;

use super::{Database, DatabaseStore};
use crate::support::locks::{connect, held};
use crate::support::wait::{HANG, until, within};
use crate::tables::{FarTables as _, Tables as _};

const FLOOR: u64 = 1_000_000;

/// Nobody sees the row yet, and its number comes from below. Who raises the floor waits for
/// its transaction.
pub(crate) async fn a_row_that_is_being_made_is_raised_too<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    let manager = connect(store.config()).await;
    let mut granting = store.keep_new("key").await;
    let naming = store.config().request_timeout(HANG).token_floor(FLOOR);
    let raising = tokio::spawn(LockManager::connect(naming));
    let waiting = async || store.number(D::WAITING).await;
    until("it waits for the row", waiting, |&count| count > 0).await;
    assert!(!raising.is_finished());
    D::run(&mut granting, "COMMIT").await.expect("the row");
    let raised = within(HANG, raising).await.expect("no panic");
    drop(raised.expect("the floor"));
    for key in ["key", "new"] {
        let guard = held(manager.lock(key)).await;
        let token = u64::from(guard.token());
        assert!(token > FLOOR, "`{key}`: {token}");
    }
}
