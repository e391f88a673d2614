//! A user of the store who may not have locks.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

#[cfg(feature = "zookeeper")]
use crate::LONG_SESSION;
use crate::databases::mysql::MariaDb;
use crate::databases::postgres::PostgreSql;
use crate::databases::server::Server;
use crate::doctor::checks;
use crate::support::dir::TempDir;
use crate::support::process::command;
use crate::{PATIENT, code, copied, dlock, ran, sqlite, stderr, stdout};

const RUN: [&str; 4] = ["run", "k", "--", "true"];

/// Exits alike on all stores, and says why in a line.
async fn may_not(tool: Command) {
    let refused = ran(tool).await;
    let told = stderr(&refused);
    assert_eq!(code(&refused), 77, "{told}");
    assert!(
        !told.contains("hunter2") && told.lines().count() == 1,
        "{told}"
    );
}

/// So does the doctor, of whose checks this one fails.
async fn is_diagnosed(tool: Command, check: &str) -> String {
    let output = ran(tool).await;
    let said = stdout(&output) + &stderr(&output);
    assert_eq!(code(&output), 77, "{said}");
    assert_eq!(checks(&output, "fail"), [check], "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    said
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_user_of_etcd_without_rights() {
    // A login with the default cost is a second of work on a busy machine.
    let setup = crate::support::etcd::Setup::default().with("--bcrypt-cost=4");
    let server = setup.start().await;
    for words in [
        &["user", "add", "root:hunter2"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "app:hunter2"],
        &["auth", "enable"],
    ] {
        server.control(words).await;
    }
    let url = format!("etcd://app:hunter2@127.0.0.1:{}", server.port());
    for asked in [&RUN[..], &["ls"], &["forget", "k"]] {
        may_not(dlock(&url, asked)).await;
    }
    is_diagnosed(dlock(&url, &["doctor"]), "connect").await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_user_of_zookeeper_without_rights() {
    let server = crate::support::zookeeper::Setup::default().start().await;
    let place = format!("127.0.0.1:{}/locks", server.port());
    let rights = "auth=digest&acl=creator";
    let owner = format!("zookeeper://app:hunter2@{place}?{rights}&{LONG_SESSION}");
    let made = ran(dlock(&owner, &RUN)).await;
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let url = format!("zookeeper://{place}?{LONG_SESSION}");
    may_not(dlock(&url, &RUN)).await;
    is_diagnosed(dlock(&url, &["doctor"]), "lock").await;
}

#[tokio::test]
async fn a_user_who_may_not_write_to_the_file() {
    // Root may write to any file, and only root can become somebody else.
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not root: nothing to look at");
        return;
    }
    let dir = TempDir::default();
    let own = Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), own).expect("rights");
    let url = sqlite(&dir);
    let made = ran(dlock(&url, &RUN)).await;
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let copy = dir.path().join("dlock");
    copied(env!("CARGO_BIN_EXE_dlock"), &copy);
    let stranger = |arguments: &[&str]| {
        let mut tool = command("setpriv");
        tool.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args(arguments)
            .env("DLOCK_URL", &url)
            .envs(PATIENT);
        tool
    };
    may_not(stranger(&RUN)).await;
    is_diagnosed(stranger(&["doctor"]), "connect").await;
}

/// Of somebody who may connect, and then of one who may look at which tables these are, too.
async fn is_told_what_to_grant(url: &str, rights: &[String; 2], grants: impl AsyncFn(&str)) {
    for rights in rights {
        grants(rights).await;
        may_not(dlock(url, &RUN)).await;
        let said = is_diagnosed(dlock(url, &["doctor"]), "connect").await;
        assert!(said.contains("GRANT"), "{said}");
    }
}

#[tokio::test]
async fn a_user_of_postgres_without_rights() {
    let server = Server::<PostgreSql>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    let made = ran(dlock(&format!("{url}?create_tables=true"), &RUN)).await;
    assert_eq!(code(&made), 0, "{}", stderr(&made));

    let user = format!("u_{}", fastrand::u32(..));
    let (_, host) = url.split_once('@').expect("a user");
    let url = format!("postgres://{user}:hunter2@{host}");
    let rights = [
        format!("CREATE ROLE {user} LOGIN"),
        format!("GRANT SELECT ON dlock_meta TO {user}"),
    ];
    let grants = async |rights: &str| server.run(&database, rights).await;
    is_told_what_to_grant(&url, &rights, grants).await;
}

/// Their password is right.
#[tokio::test]
async fn a_user_of_mysql_without_rights() {
    let server = Server::<MariaDb>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    let made = ran(dlock(&format!("{url}?create_tables=true"), &RUN)).await;
    assert_eq!(code(&made), 0, "{}", stderr(&made));

    let user = format!("u_{}", fastrand::u32(..));
    let (_, host) = url.split_once('@').expect("a user");
    let url = format!("mysql://{user}:hunter2@{host}");
    let user = format!("{user}@'127.0.0.1'");
    let rights = [
        format!("CREATE USER {user} IDENTIFIED BY 'hunter2'"),
        format!("GRANT SELECT ON {database}.dlock_meta TO {user}"),
    ];
    let grants = async |rights: &str| server.run(&database, rights).await;
    is_told_what_to_grant(&url, &rights, grants).await;
}
