//! Users, rights, encrypted connections, and passwords that are shown nowhere.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::Duration;

use dlock::backend::zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};
use dlock::{Config, LockError, LockManager};

use crate::harness::{Scene, config, connect, had, healed, is_busy};
use crate::support::alone::alone;
use crate::support::log::Log;
use crate::support::port::free_port;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};
use crate::support::zookeeper::{Setup, make};

async fn refusal(url: &str) -> LockError {
    let config = match Config::from_url(url) {
        Ok(config) => config.request_timeout(Duration::from_secs(2)),
        Err(error) => return error,
    };
    within(HANG, LockManager::connect(config))
        .await
        .map(|_| panic!("{url} was connected to"))
        .expect_err("a URL that cannot work")
}

/// The same, or that lets nobody take a lock.
async fn refused(url: &str) -> LockError {
    let config = config(url).request_timeout(Duration::from_secs(2));
    match within(HANG, LockManager::connect(config)).await {
        Ok(manager) => within(HANG, manager.lock("key").try_acquire())
            .await
            .expect_err("a lock that nobody may have"),
        Err(error) => error,
    }
}

fn says(error: &LockError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(
            message.contains(word),
            "{word:?} is missing from: {message}"
        );
    }
}

#[tokio::test]
async fn nobody_is_there() {
    let port = free_port();
    let error = refusal(&format!("zookeeper://127.0.0.1:{port}")).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &[&port.to_string(), "are refused"]);
}

#[tokio::test]
async fn a_url_that_is_wrong_says_what() {
    for (url, words) in [
        ("zookeeper://", &["a host is missing"][..]),
        ("zookeeper://a,a:2181", &["a:2181 twice"]),
        ("zookeeper://a/zookeeper", &["folder"]),
        (
            "zookeeper://a?ttl=3",
            &["unknown parameter", "session_timeout"],
        ),
        ("zookeeper+tls://a", &["?ca="]),
        (
            "zookeeper+tls://a?ca=/nowhere.pem",
            &["/nowhere.pem", "cannot be read"],
        ),
    ] {
        let error = refusal(url).await;
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        #[cfg(not(feature = "tls"))]
        if url.starts_with("zookeeper+tls") {
            continue;
        }
        says(&error, words);
    }
}

#[tokio::test]
async fn a_user_logs_in_by_sasl() {
    let server = Setup::default().login("alice", "hunter2").start().await;
    let port = server.port();
    let url = format!("zookeeper://alice:hunter2@127.0.0.1:{port}/locks?acl=creator");
    let manager = connect(&url).await;
    had(&manager, "key").await;
    let guard = manager.lock("key").acquire().await.expect("the lock");

    // Some of them may connect, but what `acl=creator` has made is closed to them.
    for login in ["alice:wrong@", "bob:hunter2@", ""] {
        let error = refused(&format!("zookeeper://{login}127.0.0.1:{port}/locks")).await;
        assert!(
            matches!(error, LockError::Config { .. }),
            "{login}: {error:?}"
        );
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        says(&error, &["user"]);
    }
    assert!(guard.is_held());
}

/// What `acl=creator` makes is its user's own.
#[tokio::test]
async fn nodes_may_be_the_users_own() {
    let scene = Scene::set().await;
    let port = scene.server.port();
    let url = |login: &str| {
        let root = &scene.root;
        format!("zookeeper://{login}@127.0.0.1:{port}{root}?auth=digest&acl=creator")
    };
    let (alice, bob) = (connect(&url("alice:a")).await, connect(&url("bob:b")).await);
    let guard = alice.lock("key").acquire().await.expect("the lock");
    is_busy(
        connect(&url("alice:a"))
            .await
            .lock("key")
            .try_acquire()
            .await,
    );
    for key in ["key", "another"] {
        let error = bob.lock(key).try_acquire().await.expect_err("no rights");
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        says(&error, &["does not allow", &scene.root, "cdrwa"]);
    }
    assert!(guard.is_held());
    guard.release().await.expect("the release");
}

/// A folder that may be read and no more.
#[tokio::test]
async fn a_user_without_rights_is_told() {
    let scene = Scene::set().await;
    let client = scene.server.client().await;
    let readers = [Acl::new(Permission::READ, AuthId::anyone())];
    let options = CreateMode::Persistent.with_acls(Acls::new(&readers));
    client
        .create(&scene.root, b"", &options)
        .await
        .expect("a node");
    let manager = connect(&scene.url()).await;
    let error = within(HANG, manager.lock("key").acquire())
        .await
        .expect_err("no rights");
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["does not allow", "cdrwa"]);
}

/// What others keep beside the locks is none of our business.
#[tokio::test]
async fn foreign_nodes_are_left_alone() {
    let scene = Scene::set().await;
    let client = scene.server.client().await;
    for node in ["key/config", "100%/x", "empty"] {
        make(&client, &format!("{}/{node}", scene.root)).await;
    }
    let manager = connect(&scene.url()).await;
    let guard = manager.lock("key").acquire().await.expect("the lock");
    let listed = manager.list("").await.expect("list");
    assert!(listed.len() == 1 && listed[0].key == "key", "{listed:?}");
    guard.release().await.expect("the release");
    assert_eq!(scene.nodes("key").await, ["config"]);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn an_encrypted_connection() {
    let server = Setup::default().tls().start().await;
    let (port, certificates) = server.tls();
    let ca = certificates.authority.display();
    let url = format!("zookeeper+tls://127.0.0.1:{port}/locks?ca={ca}");
    let manager = connect(&url).await;
    let guard = manager.lock("key").acquire().await.expect("the lock");
    is_busy(connect(&url).await.lock("key").try_acquire().await);
    guard.release().await.expect("the release");

    // Whom nobody vouches for is not believed.
    let dir = crate::support::dir::TempDir::default();
    let stranger = crate::support::tls::Certificates::create_in(dir.path());
    let ca = stranger.authority.display();
    let error = refusal(&format!("zookeeper+tls://127.0.0.1:{port}/locks?ca={ca}")).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    // One side speaks TLS and the other does not.
    let error = refusal(&format!("zookeeper://127.0.0.1:{port}/locks")).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(
        &error,
        &["wants encrypted connections (TLS); write zookeeper+tls for zookeeper"],
    );
    let plain = Setup::default().start().await;
    let (port, ca) = (plain.port(), certificates.authority.display());
    let error = refusal(&format!("zookeeper+tls://127.0.0.1:{port}/locks?ca={ca}")).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(
        &error,
        &["takes connections without encryption; write zookeeper for zookeeper+tls"],
    );
}

#[test]
fn a_password_is_shown_nowhere() {
    alone("secure::a_password_is_shown_nowhere", &[], || {
        let log = Log::capture();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let text = runtime.block_on(what_can_be_seen());
        drop(runtime);
        let log = log.text();
        // Proof that there was something to see.
        assert!(
            text.contains("alice") && log.contains("dlock"),
            "{text}\n{log}"
        );
        for (what, text) in [("shown", text), ("logged", log)] {
            assert!(!text.contains("hunter2"), "the password is {what}:\n{text}");
        }
    });
}

async fn what_can_be_seen() -> String {
    let mut text = String::new();
    let mut note = |error: &LockError| {
        let _ = writeln!(text, "{error}\n{error:?}\n{error:#?}");
        let mut cause = error.source();
        while let Some(source) = cause {
            let _ = writeln!(text, "{source}\n{source:?}\n{source:#?}");
            cause = source.source();
        }
    };
    let server = Setup::default().login("alice", "hunter2").start().await;
    let proxy = Proxy::to(server.port());
    let port = proxy.port();
    for auth in ["sasl", "digest"] {
        let login = format!("zookeeper://alice:hunter2@127.0.0.1:{port}?auth={auth}");
        for url in [
            login.clone(),
            format!("{login}&hunter2"),
            format!("{login}&recipe=hunter2"),
            login.replace("hunter2", "hunter2-wrong"),
            login.replace("hunter2", "hunter2/x"),
            login.replace("://", ":/"),
            login.replace("zookeeper:", "zookeper:"),
        ] {
            match Config::from_url(&url) {
                Ok(config) => {
                    let config = config.request_timeout(Duration::from_secs(2));
                    if let Err(error) = within(HANG, LockManager::connect(config)).await {
                        note(&error);
                    }
                }
                Err(error) => note(&error),
            }
        }
    }
    let url = format!("zookeeper://alice:hunter2@127.0.0.1:{port}?session_timeout=2s");
    let config = config(&url).request_timeout(Duration::from_millis(500));
    let mut seen = format!("{config:?} {config:#?}");
    let manager = LockManager::connect(config).await.expect("a connection");
    let guard = manager.lock("guard").acquire().await.expect("the lock");
    let _ = write!(seen, "{manager:?} {manager:#?} {guard:?}");
    proxy.refuse(true);
    note(
        &within(HANG, manager.lock("key").acquire())
            .await
            .expect_err("an outage"),
    );
    note(
        &within(HANG, manager.inspect("key"))
            .await
            .expect_err("an outage"),
    );
    within(HANG, guard.lost()).await;
    drop(guard);
    proxy.refuse(false);
    within(HANG, healed(&manager)).await;
    seen + &text
}
