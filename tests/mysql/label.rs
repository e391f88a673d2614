//! Whose connections they are, as an operator asks.

use dlock_conformance::{Store as _, config, connect};

use crate::MySqlStore;
use crate::support::locks::served;
use crate::support::wait::{HANG, until};
use crate::tables::{FarTables as _, Tables as _};

/// Somebody keeps a row. What `SHOW PROCESSLIST` reads says which service waits for it.
#[tokio::test]
async fn what_a_connection_does_bears_the_label() {
    let store = MySqlStore::start().await;
    let manager = connect(config(&store).label("orders").request_timeout(HANG)).await;
    let operator = store.keep_new("key").await;
    let waiting = tokio::spawn(manager.lock("key").acquire());
    let list = "SELECT COUNT(*) FROM information_schema.processlist
        WHERE db = DATABASE() AND info LIKE '/* orders */ INSERT INTO dlock_lock%'";
    let named = async || store.number(list).await;
    until("the list names the service", named, |&named| named > 0).await;
    drop(operator);
    drop(served(waiting).await);
}
