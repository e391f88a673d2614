//! What is wrong with a database, and not told by others as PostgreSQL does.

use dlock::LockError;

use crate::PostgreSql;
use crate::databases::refusals::{connect, fresh};
use crate::support::wait::{HANG, within};

/// A standby is like that, and so may a server with a full disk be.
#[tokio::test]
async fn a_database_that_is_read_only_is_unavailable() {
    let (server, database, url) = fresh::<PostgreSql>().await;
    let manager = connect(&format!("{url}?create_tables=true"))
        .await
        .expect("the tables");
    let read_only = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
    server.run("postgres", &read_only).await;
    let manager_now = connect(&url).await.expect("a connection");
    let error = within(HANG, manager_now.lock("key").acquire())
        .await
        .map(drop);
    let error = error.expect_err("a database that is read-only");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("read-only"), "{error}");
    drop(manager);
}
