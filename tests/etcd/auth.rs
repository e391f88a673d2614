//! Users, roles and tokens.

use std::time::Duration;

use dlock::LockManager;
use dlock::backend::etcd::Etcd;
use dlock::backend::{Backend, Mode, Renewed, Request};
use etcd_client::ConnectOptions;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::harness::{PATIENCE, config, connect};
use crate::support::documented::all_that_locks_need;
use crate::support::etcd::{Cluster, EtcdServer, Setup};
use crate::support::locks::{by, had, healed, held, is_misconfigured, queued, says, served};
use crate::support::proxy::Proxy;
use crate::support::secure::{shown_nowhere, what_is_shown};
use crate::support::wait::{HANG, within};

const ROOT: &str = "--user=root:hunter2/root";

/// A server whose user `dlock` has the rights that the page gives it.
pub(crate) async fn with_users(setup: Setup) -> EtcdServer {
    // A login with the default cost is a second of work on a busy machine.
    let server = setup.with("--bcrypt-cost=4").start().await;
    give_users(&server).await;
    server
}

async fn give_users(server: &EtcdServer) {
    server.control(&["user", "add", "root:hunter2/root"]).await;
    let root = ["user", "grant-role", "root", "root"];
    server.control(&root).await;
    let page = include_str!("../../docs/stores/etcd.md");
    let mut documented = 0;
    for command in page
        .lines()
        .filter_map(|line| line.strip_prefix("etcdctl "))
    {
        let words: Vec<_> = command.split_whitespace().collect();
        if matches!(words[0], "role" | "user") {
            server.control(&words).await;
            documented += 1;
        }
    }
    assert_eq!(documented, 4, "the page has these commands");
    server.control(&["auth", "enable"]).await;
}

pub(crate) async fn as_root(server: &EtcdServer, command: &str) {
    let words: Vec<_> = [ROOT].into_iter().chain(command.split(' ')).collect();
    server.control(&words).await;
}

fn url(server: &EtcdServer, login: &str) -> String {
    format!("etcd://{login}127.0.0.1:{}", server.port())
}

const LOGIN: &str = "dlock:password@";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_can_do_all_that_locks_need() {
    let server = with_users(Setup::default()).await;
    for recipe in ["", "?recipe=lock-service"] {
        let url = format!("{}{recipe}", url(&server, LOGIN));
        let (here, there) = (connect(&url).await, connect(&url).await);
        all_that_locks_need(&here, &there).await;
    }
}

/// dlock does not take over the timeout of these options.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_logs_in_may_be_said_by_options() {
    let server = with_users(Setup::default()).await;
    let (name, password) = LOGIN.trim_end_matches('@').split_once(':').expect("both");
    for recipe in ["", "?recipe=lock-service"] {
        let url = format!("{}{recipe}", url(&server, ""));
        let options = ConnectOptions::new()
            .with_user(name, password)
            .with_timeout(Duration::from_secs(1))
            .with_require_leader(false);
        let store = Etcd::with_options(&url, options).expect("a URL");
        let store = store.request_timeout(PATIENCE);
        let (manager, other) = (by(store.clone()).await, by(store).await);
        assert!(!format!("{manager:?}").contains(password), "{manager:?}");
        let guard = held(manager.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").run(async {}));
        queued(&manager, "key", 1).await;
        guard.release().await.expect("the release");
        served(waiting).await;
    }
    for url in [url(&server, LOGIN), format!("etcds://a?ca={}", file!())] {
        let error = Etcd::with_options(&url, ConnectOptions::new()).expect_err(&url);
        assert!(error.to_string().contains("leave"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_told_without_the_password() {
    let server = with_users(Setup::default()).await;
    for (login, says) in [
        ("", "wants a user"),
        ("dlock:hunter2@", "user and the password"),
        ("nobody:hunter2@", "user and the password"),
    ] {
        let error = is_misconfigured(LockManager::connect(config(&url(&server, login))).await);
        assert!(error.to_string().contains(says), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let elsewhere = format!("{}/elsewhere", url(&server, LOGIN));
    let error = is_misconfigured(LockManager::connect(config(&elsewhere)).await);
    assert!(error.to_string().contains("grant-permission"), "{error}");
    let manager = connect(&url(&server, LOGIN)).await;
    assert!(!format!("{manager:?}").contains("password@"), "{manager:?}");
    let open = EtcdServer::start().await;
    let error = LockManager::connect(config(&url(&open, LOGIN))).await;
    let error = error.expect_err("a server without users");
    assert!(error.to_string().contains("knows no users"), "{error}");
}

/// In no error, no `Debug`, no log.
#[test]
fn a_password_is_shown_nowhere() {
    let (test, proof) = ("auth::a_password_is_shown_nowhere", ["127.0.0.1", "other"]);
    shown_nowhere(test, "hunter2", &proof, async || {
        let server = with_users(Setup::default()).await;
        let proxy = Proxy::to(server.port());
        as_root(&server, "user add other:hunter2/other").await;
        as_root(&server, "user grant-role other dlock").await;
        let url = format!("etcd://other:hunter2%2Fother@127.0.0.1:{}", proxy.port());
        let wrong = [
            url.replace("hunter2", "hunter2-wrong"),
            url.replace("hunter2%2F", "hunter2/"),
            url.replace("etcd:", "ettcd:"),
            format!("{url}?hunter2"),
        ];
        what_is_shown(&url, &wrong, &proxy).await
    });
}

/// Tokens of the server's own making end when they are not used, and with the
/// server. The stream of the watches has the one it was opened with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_end_are_asked_for_anew() {
    let mut server = with_users(Setup::default().with("--auth-token-ttl=2")).await;
    let url = url(&server, LOGIN);
    let (holder, judge) = (connect(&url).await, connect(&url).await);
    let service = connect(&format!("{url}?recipe=lock-service")).await;
    for restart in [false, true] {
        for waiter in [connect(&url).await, service.clone()] {
            let ttl = Duration::from_secs(60);
            let request = holder.lock("key").ttl(ttl);
            let guard = within(HANG, request.acquire()).await.expect("the lock");
            let waiting = tokio::spawn(waiter.lock("key").ttl(ttl).run(async {}));
            queued(&judge, "key", 1).await;
            if restart {
                server.restart().await;
            } else {
                sleep(Duration::from_millis(4_500)).await;
            }
            healed(&judge).await;
            within(HANG, guard.release()).await.expect("the release");
            served(waiting).await;
        }
    }
    // New rights make all tokens old.
    as_root(&server, "role grant-permission dlock read other").await;
    for manager in [&holder, &judge] {
        let ran = manager.lock("key").run(async {});
        within(HANG, ran).await.expect("the lock");
    }
}

/// Rights that are taken away in the middle are told as what they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_taken_away_are_told() {
    let server = with_users(Setup::default()).await;
    let manager = connect(&url(&server, LOGIN)).await;
    had(&manager, "key").await;
    let revoke = "role revoke-permission dlock dlock/ --prefix";
    as_root(&server, revoke).await;
    let error = manager.lock("key").try_acquire().await.map(drop);
    let error = error.expect_err("no rights");
    assert!(error.to_string().contains("grant-permission"), "{error}");
}

/// Who looks at a cluster asks members that the URL does not name. Whoever is where one of them
/// says that it is hears no password, and is not taken for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_the_url_does_not_name_hears_no_password() {
    let mut cluster = Cluster::start().await;
    give_users(&cluster.servers[0]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let somebody = listener.local_addr().expect("its port").port();
    cluster.misleads_to(1, somebody).await;
    let other = cluster.servers[0].port();
    cluster.misleads_to(2, other).await;
    let heard = tokio::spawn(async move {
        let mut heard = Vec::new();
        let (mut stream, _) = listener.accept().await.expect("a connection");
        // It says nothing, and is left.
        stream.read_to_end(&mut heard).await.map(|_| heard)
    });
    let manager = connect(&url(&cluster.servers[0], LOGIN)).await;
    let found = within(HANG, manager.examine()).await;
    let heard = within(HANG, heard).await.expect("no panic");
    let heard = heard.expect("what it was sent");
    let has = |text: &str| {
        heard
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(has("PRI * HTTP/2.0"), "{heard:?}");
    assert!(!has("password"), "{:?}", String::from_utf8_lossy(&heard));
    let found: Vec<_> = found.iter().map(|found| &*found.message).collect();
    let said = found.join("\n");
    assert!(said.contains("1 of 3 members answer"), "{said}");
    assert!(
        said.contains(&format!("at 127.0.0.1:{other}, where another")),
        "{said}"
    );
    assert!(!said.contains("not of one cluster"), "{said}");
}

/// On this server, keep-alives need no rights: the key would stay for as long as others use its
/// lease. (Newer servers refuse them, so the lease ends for all.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_must_not_be_deleted_ends_with_its_lease() {
    let ttl = Duration::from_secs(2);
    let server = with_users(Setup::default()).await;
    as_root(&server, "role grant-permission dlock read dlock/ --prefix").await;
    for key in ["key", "other"] {
        let grant = format!("role grant-permission dlock readwrite dlock/{key}/ --prefix");
        as_root(&server, &grant).await;
    }
    let judge = connect(&url(&server, "root:hunter2%2Froot@")).await;
    let manager = connect(&url(&server, LOGIN)).await;
    let guard = held(judge.lock("key")).await;
    let waiting = tokio::spawn(manager.lock("key").ttl(ttl).acquire());
    queued(&judge, "key", 1).await;
    let revoke = "role revoke-permission dlock dlock/key/ --prefix";
    as_root(&server, revoke).await;
    waiting.abort();
    let others = tokio::spawn(async move {
        loop {
            let request = manager.lock("other").ttl(ttl);
            drop(within(HANG, request.acquire()).await.expect("the lock"));
            sleep(ttl / 20).await;
        }
    });
    within(10 * ttl, queued(&judge, "key", 0)).await;
    assert!(!others.is_finished(), "it is kept from no other lock");
    others.abort();
    guard.release().await.expect("the release");
}

/// The keys of all locks are read together, and the server refuses that as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_may_not_be_read_ends_no_other_lock() {
    let server = with_users(Setup::default()).await;
    let backend = Etcd::from_url(&url(&server, LOGIN)).expect("a URL");
    let backend = backend.request_timeout(PATIENCE);
    within(HANG, backend.start()).await.expect("a connection");
    let keys = ["a", "b", "refused", "c", "d"];
    as_root(&server, "role revoke-permission dlock dlock/ --prefix").await;
    // And what stands beside the locks.
    for folder in keys.iter().chain([&""]) {
        let grant = format!("role grant-permission dlock readwrite dlock/{folder}/ --prefix");
        as_root(&server, &grant).await;
    }
    let ttl = Duration::from_secs(60);
    let requests = keys.map(|key| Request::new(key, Mode::Write, ttl));
    for request in &requests {
        let granted = within(HANG, backend.acquire(request)).await;
        granted.expect("the lock");
    }
    let revoke = "role revoke-permission dlock dlock/refused/ --prefix";
    as_root(&server, revoke).await;
    let renewed = within(HANG, backend.renew(&requests)).await;
    for (key, renewed) in keys.iter().zip(renewed) {
        match renewed {
            Err(error) if *key == "refused" => {
                assert!(error.to_string().contains("grant-permission"), "{error}");
            }
            Ok(Renewed::Extended { .. }) if *key != "refused" => {}
            renewed => panic!("{key}: {renewed:?}"),
        }
    }
    within(HANG, backend.stop()).await;
}

/// The lock is free all the same, and who has done it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_must_not_remember_gives_the_lock_back() {
    let server = with_users(Setup::default()).await;
    as_root(&server, "role grant-permission dlock read dlock/ --prefix").await;
    let grant = "role grant-permission dlock readwrite dlock/key/ --prefix";
    as_root(&server, grant).await;
    let judge = connect(&url(&server, "root:hunter2%2Froot@")).await;
    let manager = connect(&url(&server, LOGIN)).await;
    let guard = held(manager.lock("key").once(HANG)).await;
    let error = is_misconfigured(within(HANG, guard.release_done()).await);
    says(&error, &["`key`", "grant-permission"]);
    let soon = HANG / 10;
    within(soon, had(&judge, "key")).await;
    // It is not tried again until the lease ends.
    within(soon, manager.shutdown()).await;
}
