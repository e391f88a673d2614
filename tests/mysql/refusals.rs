//! What is wrong with a database, and not told by others as MariaDB does.

use std::sync::Arc;

use crate::MySqlStore;
use crate::databases::Database as _;
use crate::databases::refusals::{connect, fresh};
use crate::databases::server::{Kind as _, Server};
use crate::kind::MariaDb;
use crate::support::locks::{had, is_misconfigured, says};
use crate::support::wait::until;
use crate::tables::{FarTables as _, Tables as _};

/// What only an operator can change is no outage.
#[tokio::test]
async fn a_user_or_a_parameter_that_the_server_refuses_is_a_wrong_setting() {
    let (server, database, url) = fresh::<MariaDb>().await;
    let [locked, expired] = ["locked", "expired"].map(|user| format!("{user}_{database}"));
    for user in [&locked, &expired] {
        let make = format!(
            "CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'hunter2';
             GRANT ALL ON {database}.* TO '{user}'@'127.0.0.1'"
        );
        server.run(&database, &make).await;
    }
    for change in [
        format!("ALTER USER '{locked}'@'127.0.0.1' ACCOUNT LOCK"),
        format!("ALTER USER '{expired}'@'127.0.0.1' PASSWORD EXPIRE"),
    ] {
        server.run(&database, &change).await;
    }
    let of = |user: &str| url.replace("root@", &format!("{user}:hunter2@"));
    for (url, advice) in [
        (of(&locked), "ACCOUNT UNLOCK"),
        (of(&expired), "new password"),
        (format!("{url}?timezone=Nowhere"), "`timezone`"),
        (format!("{url}?charset=utf8mb5"), "utf8mb5"),
    ] {
        let refused = connect(&url).await;
        says(&is_misconfigured(refused), &[advice]);
    }
}

/// Its sessions refuse to change rows that are not named by a key, as cleaning does.
#[tokio::test]
async fn tables_are_cleaned_under_safe_updates() {
    let server = Server::<MariaDb>::start(MariaDb::FAST).await;
    MariaDb::set(&server, "sql_safe_updates", "1").await;
    let store = MySqlStore::on(Arc::new(server)).await;
    let manager = dlock_conformance::connect(store.direct()).await;
    had(&manager, "key").await;
    let rows = async || store.number("SELECT COUNT(*) FROM dlock_lock").await;
    until("nothing is left", rows, |&rows| rows == 0).await;
}
