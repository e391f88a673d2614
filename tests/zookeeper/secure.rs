//! Users, rights, encrypted connections, and passwords that are shown nowhere.

use std::net::Ipv4Addr;
use std::time::Duration;

use dlock::backend::zookeeper::ZooKeeper;
use dlock::backend::{Backend, Mode, Renewed, Request};
use dlock::{LockError, LockManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};
#[cfg(feature = "tls")]
use zookeeper_client::{Client, SaslOptions, TlsOptions};

use crate::harness::{Scene, connect};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, connecting, had, held, is_busy, is_misconfigured, says};
use crate::support::proxy::Proxy;
use crate::support::secure::{all_misconfigured, shown_nowhere, what_is_shown};
use crate::support::wait::{HANG, within};
use crate::support::zookeeper::{Setup, make};
#[cfg(feature = "tls")]
use crate::support::{locks::by, secure::encrypted};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A Java machine may take longer for its first login.
async fn logged_in(url: &str) -> LockManager {
    locks::connect(locks::config(url).request_timeout(HANG)).await
}

/// A URL that cannot work, or that lets nobody take a lock.
async fn refused(url: &str) -> LockError {
    let locking = async || {
        let manager = connecting(url, REQUEST_TIMEOUT).await?;
        within(HANG, manager.lock("key").try_acquire()).await
    };
    // A Java machine may take longer for a login.
    unless_it_stands_still(REQUEST_TIMEOUT / 20, async || {
        is_misconfigured(locking().await)
    })
    .await
}

#[tokio::test]
async fn a_url_that_is_wrong_says_what() {
    all_misconfigured(&[
        ("zookeeper://", &["a host is missing"]),
        ("zookeeper://a,a:2181", &["a:2181 twice"]),
        ("zookeeper://a/zookeeper", &["folder"]),
        (
            "zookeeper://a?ttl=3",
            &["unknown parameter", "session_timeout"],
        ),
    ])
    .await;
    let encrypted: [&[&str]; 2] = match cfg!(feature = "tls") {
        true => [&["?ca="], &["/nowhere.pem", "cannot be read"]],
        false => [&[], &[]],
    };
    all_misconfigured(&[
        ("zookeeper+tls://a", encrypted[0]),
        ("zookeeper+tls://a?ca=/nowhere.pem", encrypted[1]),
    ])
    .await;
}

#[tokio::test]
async fn a_user_logs_in_by_sasl() {
    let server = Setup::default().login("alice", "hunter2").start().await;
    let port = server.port();
    let url = format!("zookeeper://alice:hunter2@127.0.0.1:{port}/locks?acl=creator");
    let manager = logged_in(&url).await;
    had(&manager, "key").await;
    let guard = held(manager.lock("key")).await;

    // Some of them may connect, but what `acl=creator` has made is closed to them.
    for login in ["alice:wrong@", "bob:hunter2@", ""] {
        let error = refused(&format!("zookeeper://{login}127.0.0.1:{port}/locks")).await;
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        says(&error, &["user"]);
    }
    assert!(guard.is_held());
}

/// A busy server may answer the login before the request for a session, in front of it, and the
/// client takes that for an unknown version of the server.
#[tokio::test]
async fn a_login_that_is_answered_first_is_no_outage() {
    let server = Setup::default().start().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let to = server.port();
    let answers = tokio::spawn(async move {
        // The answer to request 1, without an error; twice in a row.
        let answer = [16, 1, 0, 0, 0].map(u32::to_be_bytes).concat();
        for _ in 0..2 {
            let (mut client, _) = listener.accept().await.expect("a client");
            client.write_all(&answer).await.expect("it listens");
            let _ended = client.read_to_end(&mut Vec::new()).await;
        }
        let (mut client, _) = listener.accept().await.expect("a client");
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await;
        let _ended = copy_bidirectional(&mut client, &mut server.expect("a server")).await;
    });
    let manager = connect(&format!("zookeeper://127.0.0.1:{port}/locks")).await;
    had(&manager, "key").await;
    answers.abort();
}

/// Both of the login and the encryption.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_connector_may_say_what_the_url_does_not() {
    let server = Setup::default()
        .tls()
        .login("alice", "hunter2")
        .start()
        .await;
    let (port, certificates) = server.tls();
    let ca = std::fs::read_to_string(&certificates.authority).expect("a file of our own");
    let tls = TlsOptions::new().with_pem_ca(&ca).expect("a certificate");
    let connector = || Client::connector().with_tls(tls.clone());
    let url = format!("zookeeper+tls://127.0.0.1:{port}/locks?acl=creator");
    let alice = SaslOptions::digest_md5("alice", "hunter2");
    let store = ZooKeeper::with_connector(&url, connector().with_sasl(alice)).expect("a URL");
    let shown = format!("{store:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let here = by(store.request_timeout(HANG)).await;
    let port = server.port();
    let url = format!("zookeeper://alice:hunter2@127.0.0.1:{port}/locks?acl=creator");
    let there = logged_in(&url).await;
    let guard = held(here.lock("key")).await;
    is_busy(there.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
    had(&there, "key").await;

    for wrong in [&*url, "zookeeper+tls://a?ca=/nowhere.pem"] {
        let error = ZooKeeper::with_connector(wrong, connector()).expect_err(wrong);
        assert!(error.to_string().contains("leave"), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
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
    let guard = held(alice.lock("key")).await;
    let again = connect(&url("alice:a")).await;
    is_busy(again.lock("key").try_acquire().await);
    for key in ["key", "another"] {
        let error = is_misconfigured(bob.lock(key).try_acquire().await);
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
    let made = client.create(&scene.root, b"", &options).await;
    made.expect("a node");
    let manager = connect(&scene.url()).await;
    let error = is_misconfigured(within(HANG, manager.lock("key").acquire()).await);
    says(&error, &["does not allow", "cdrwa"]);
}

/// Its node is checked together with those of the others, which are renewed all the same.
#[tokio::test]
async fn a_node_that_may_not_be_read_ends_no_other_lock() {
    let scene = Scene::set().await;
    let url = format!("{}?session_timeout=40s", scene.url());
    let backend = ZooKeeper::from_url(&url).expect("a URL");
    let backend = backend.request_timeout(HANG);
    within(HANG, backend.start()).await.expect("a connection");
    let ttl = Duration::from_secs(20);
    let requests = ["key", "other"].map(|key| Request::new(key, Mode::Write, ttl));
    for request in &requests {
        let granted = within(HANG, backend.acquire(request)).await;
        granted.expect("the lock");
    }
    let node = scene.nodes("key").await.remove(0);
    let path = format!("{}/key/{node}", scene.root);
    let writers = [Acl::new(Permission::WRITE, AuthId::anyone())];
    let client = scene.server.client().await;
    let set = client.set_acl(&path, &Acls::new(&writers), None).await;
    set.expect("its rights");
    // What was seen just now would not be looked at.
    tokio::time::sleep(ttl / 5).await;
    let renewed = within(HANG, backend.renew(&requests)).await;
    let error = renewed[0].as_ref().expect_err("no rights").to_string();
    assert!(error.contains(&path) && error.contains("cdrwa"), "{error}");
    let extended = matches!(renewed[1], Ok(Renewed::Extended { .. }));
    assert!(extended, "{:?}", renewed[1]);
    within(HANG, backend.stop()).await;
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
    let guard = held(manager.lock("key")).await;
    let listed = manager.list("").await.expect("list");
    assert!(listed.len() == 1 && listed[0].key == "key", "{listed:?}");
    guard.release().await.expect("the release");
    assert_eq!(scene.nodes("key").await, ["config"]);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn servers_are_trusted_or_refused() {
    let server = Setup::default().tls().start().await;
    let plain = Setup::default().start().await;
    let stranger = crate::support::tls::Certificates::create();
    let (port, certificates) = server.tls();
    let (plain, ca) = (plain.port(), certificates.authority.display());
    let of_a_stranger = stranger.authority.display();
    let right = format!("zookeeper+tls://127.0.0.1:{port}/locks?ca={ca}");
    let wrong = format!("zookeeper+tls://127.0.0.1:{port}/locks?ca={of_a_stranger}");
    let open = format!("zookeeper://127.0.0.1:{port}/locks");
    let wants =
        "wants encrypted connections (TLS); write zookeeper+tls:// in place of zookeeper://";
    let closed = format!("zookeeper+tls://127.0.0.1:{plain}/locks?ca={ca}");
    let takes =
        "takes connections without encryption; write zookeeper:// in place of zookeeper+tls://";
    encrypted(&[right], &[wrong], &[(open, wants), (closed, takes)]).await;
}

#[test]
fn a_password_is_shown_nowhere() {
    let test = "secure::a_password_is_shown_nowhere";
    shown_nowhere(test, "hunter2", &["alice"], async || {
        let server = Setup::default().login("alice", "hunter2").start().await;
        let proxy = Proxy::to(server.port());
        let url = format!("zookeeper://alice:hunter2@127.0.0.1:{}", proxy.port());
        let mut wrong = Vec::new();
        for auth in ["sasl", "digest"] {
            let login = format!("{url}?auth={auth}");
            wrong.extend([
                login.clone(),
                format!("{login}&hunter2"),
                format!("{login}&recipe=hunter2"),
                login.replace("hunter2", "hunter2-wrong"),
                login.replace("hunter2", "hunter2/x"),
                login.replace("://", ":/"),
                login.replace("zookeeper:", "zookeper:"),
            ]);
        }
        what_is_shown(&format!("{url}?session_timeout=2s"), &wrong, &proxy).await
    });
}
