//! What is wrong with a database, and not told by others as MariaDB does.

use crate::databases::refusals::{connect, fresh};
use crate::kind::MariaDb;
use crate::support::locks::{is_misconfigured, says};

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
