//! Who the master is: what the sentinels say, and what is wrong from the start.
//! Each case ends in a `LockError` that says what to do, at once or within the
//! request timeout.

use std::time::Duration;

use dlock::{Config, LockError};

use crate::support::alone::alone_with_its_log;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, config, connect, connecting, had, held, is_unavailable, says};
use crate::support::port::free_port;
use crate::support::redis::{RedisServer, Setup};
use crate::support::secure::shown;
use crate::support::sentinel::{Deployment, LONG, Passwords, url};
use crate::support::wait::{HANG, within};

/// The passwords of these tests.
const SERVERS: &str = "p@ss,word/1";
const SENTINELS: &str = "a+b c&d";
const WRONG: &str = "hunter2";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// On a machine that stands still for so long, nobody may answer within it.
const STILL: Duration = Duration::from_millis(500);

/// The error of connecting to `url`, which says all of these words.
async fn refusal(url: &str, words: &[&str]) -> LockError {
    let error = connecting(url, REQUEST_TIMEOUT)
        .await
        .expect_err("a URL that cannot work");
    let shown = shown(&error);
    for secret in [SERVERS, SENTINELS, WRONG] {
        assert!(!shown.contains(secret), "{secret:?} is shown: {shown}");
    }
    says(&error, words);
    error
}

async fn misconfigured(url: &str, words: &[&str]) {
    unless_it_stands_still(STILL, async || {
        let error = refusal(url, words).await;
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    })
    .await;
}

async fn unavailable(url: &str, words: &[&str]) {
    unless_it_stands_still(STILL, async || {
        let error = refusal(url, words).await;
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    })
    .await;
}

/// As the master lists them.
#[tokio::test]
async fn connections_bear_the_label() {
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let named = config(&deployment.url("")).label("orders");
    let manager = locks::connect(named.request_timeout(HANG)).await;
    let _guard = held(manager.lock("key")).await;
    let clients: String = deployment.servers[0].command(&["CLIENT", "LIST"]).await;
    assert!(clients.contains(" name=orders "), "{clients}");
}

/// Takes a lock, which must be found at this server.
async fn locks_at(url: &str, server: &RedisServer) {
    unless_it_stands_still(STILL, async || {
        let manager = connecting(url, REQUEST_TIMEOUT)
            .await
            .expect("a connection");
        let guard = held(manager.lock("key")).await;
        let exists: u32 = server.command(&["EXISTS", "dlock:{key}"]).await;
        assert_eq!(exists, 1, "the lock is elsewhere");
        guard.release().await.expect("the release");
    })
    .await;
}

#[tokio::test]
async fn a_wrong_url_says_what_is_wrong() {
    for (rest, says) in [
        ("", "not a URL"),
        ("://", "a host is missing"),
        (":///mymaster", "a host is missing"),
        ("://a,b,c", "the name of the master"),
        ("://a,b,c/", "the name of the master"),
        ("://a,b,c//0", "the name of the master"),
        ("://a,b,/mymaster", "a host is missing"),
        ("://a,b,a/mymaster", "a:26379 twice"),
        ("://a,b,a:26379/mymaster", "a:26379 twice"),
        (
            "://a,b,c:port/mymaster",
            "behind the colon of host 3 comes a port",
        ),
        ("://:hunter2/x@a,b,c/mymaster", "percent-encode"),
        ("://:hunter2#x@a,b,c/mymaster", "percent-encode"),
        ("://a:1/hunter2@a,b,c/mymaster", "percent-encode"),
        ("://a,b,c/mymaster?hunter2", "unknown parameter"),
        (
            "://a,b,c/mymaster?replicas=hunter2",
            "`replicas` is a number",
        ),
        ("://a,b,c/mymaster/zero", "database"),
        ("://a,b,c/mymaster?db=zero", "database"),
        ("://a,b,c/mymaster/1?db=2", "two databases"),
        ("://a,b,c/mymaster?quorum=2", "unknown parameter"),
        ("://a,b,c/mymaster?ca=x.pem", "rediss"),
        (
            "://a,b,c/mymaster?sentinel_username=u",
            "`sentinel_password`",
        ),
        ("://a,b,c/mymaster?sentinel_password=%ff", "UTF-8"),
    ] {
        let url = format!("redis+sentinel{rest}");
        misconfigured(&url, &["store URL", says]).await;
    }
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn encryption_without_its_feature_says_which() {
    misconfigured("rediss+sentinel://a,b,c/mymaster", &["`tls`"]).await;
}

#[tokio::test]
async fn sentinels_that_are_down_are_named() {
    let ports = [free_port(), free_port(), free_port()];
    let names = ports.map(|port| format!("127.0.0.1:{port}"));
    let words = [
        &["`mymaster`", "are refused"],
        &names.each_ref().map(String::as_str)[..],
    ]
    .concat();
    unavailable(&url("", &ports, ""), &words).await;
    let nowhere = "redis+sentinel://nowhere.invalid,nobody.invalid,noone.invalid/mymaster";
    unavailable(nowhere, &["nowhere.invalid", "nobody.invalid"]).await;
}

/// One of three may be down, hang or lie; two may not.
#[tokio::test]
async fn most_of_the_sentinels_decide() {
    let passwords = Passwords::default();
    let deployment = Deployment::calm(&passwords, |port| port).await;
    let master = &deployment.servers[0];
    let port = |index: usize| deployment.sentinels[index].port();
    let down = free_port();
    locks_at(&url("", &[down, port(0), port(1)], ""), master).await;

    // It names a master of another deployment, which is one, but not ours.
    let other = RedisServer::start().await;
    let liar = passwords.sentinel(other.port(), LONG).await;
    locks_at(&url("", &[liar.port(), port(0), port(1)], ""), master).await;
    let lie = format!("{} says 127.0.0.1:{}", liar.port(), other.port());
    let truth = format!("{} says 127.0.0.1:{}", port(0), master.port());
    let both = url("", &[liar.port(), port(0), down], "");
    unavailable(&both, &["2 of 3", &lie, &truth]).await;
    let keys = other.keys().await;
    assert!(keys.is_empty(), "the liar was believed: {keys:?}");

    let hung = &deployment.sentinels[2];
    hung.pause();
    locks_at(&url("", &[hung.port(), port(0), port(1)], ""), master).await;
    let one = url("", &[hung.port(), port(0), down], "");
    unavailable(&one, &["2 of 3", "did not answer"]).await;
    hung.resume();

    // Half is not more than half.
    let four = url("", &[port(0), port(1), down, free_port()], "");
    unavailable(&four, &["3 of 4"]).await;
}

#[tokio::test]
async fn one_sentinel_has_one_vote() {
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let port = deployment.sentinels[0].port();
    let twice = format!("redis+sentinel://127.0.0.1:{port},localhost:{port}/mymaster");
    let same = format!("localhost:{port} is the same as sentinel at 127.0.0.1:{port}");
    misconfigured(&twice, &[&same]).await;
}

#[tokio::test]
async fn an_unknown_master_is_a_wrong_setting() {
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let url = deployment.url("").replace("mymaster", "my%20slave");
    let none = "3 of 3 sentinels know no master";
    misconfigured(&url, &["`my slave`", none, "SENTINEL MASTERS"]).await;
}

/// The sentinels name a replica, as they do for a moment in a failover.
#[tokio::test]
async fn what_calls_itself_a_replica_is_not_used() {
    let master = RedisServer::start().await;
    let replica = Setup::default().replica_of(master.port()).start().await;
    let passwords = Passwords::default();
    let sentinel = async || passwords.sentinel(replica.port(), LONG).await;
    let (a, b, c) = tokio::join!(sentinel(), sentinel(), sentinel());
    let url = url("", &[a.port(), b.port(), c.port()], "");
    let at = format!("127.0.0.1:{}", replica.port());
    unavailable(&url, &["`mymaster`", &at, "`slave`", "failover"]).await;

    // It is heard of when it becomes one.
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let manager = connect(config(&url).request_timeout(REQUEST_TIMEOUT)).await;
    let serves = async || had(&manager, "key").await;
    unless_it_stands_still(STILL, serves).await;
    // And when it is one no more.
    replica
        .command::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])
        .await;
    unless_it_stands_still(STILL, async || {
        let error = is_unavailable(within(HANG, manager.lock("key").acquire()).await);
        assert!(error.to_string().contains("failover"), "{error}");
    })
    .await;
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    unless_it_stands_still(STILL, serves).await;
}

/// Somebody wrote down the ports of the servers.
#[tokio::test]
async fn a_server_is_no_sentinel() {
    let (a, b) = tokio::join!(RedisServer::start(), RedisServer::start());
    let url = url("", &[a.port(), b.port(), free_port()], "");
    let at = format!("sentinel at 127.0.0.1:{}", a.port());
    misconfigured(&url, &[&at, "no sentinel", "26379"]).await;
}

#[tokio::test]
async fn a_database_is_named_behind_the_master_or_by_itself() {
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let master = &deployment.servers[0];
    for more in ["/3", "?db=3"] {
        let manager = connect(config(&deployment.url(more))).await;
        let _guard = held(manager.lock("key")).await;
        let keyspace: String = master.command(&["INFO", "keyspace"]).await;
        assert!(keyspace.contains("db3:"), "{keyspace}");
        assert!(!keyspace.contains("db0:"), "{keyspace}");
        manager.shutdown().await;
    }
}

/// It works with them, so it is no error; but it says what is missing.
#[test]
fn what_bears_no_failure_is_warned_of() {
    let name = "naming::what_bears_no_failure_is_warned_of";
    alone_with_its_log(name, async |log| {
        let passwords = Passwords::default();
        let deployment = Deployment::calm(&passwords, |port| port).await;
        let more = passwords.sentinel(deployment.servers[0].port(), LONG).await;
        let sentinels = deployment.sentinels.iter().chain([&more]);
        let ports: Vec<_> = sentinels.map(RedisServer::port).collect();
        for (count, options) in [(1, ""), (3, ""), (4, ""), (3, "?replicas=3")] {
            let url = url("", &ports[..count], options);
            connecting(&url, HANG).await.expect("a connection");
        }
        let warnings = log.lines_with("`mymaster`");
        let says = ["only 1 of its sentinels", "4 sentinels", "`replicas=3`"];
        assert_eq!(warnings.len(), says.len(), "{warnings:?}");
        for (warning, says) in warnings.iter().zip(says) {
            assert!(warning.contains(says), "{says:?} is missing: {warning}");
        }
    });
}

/// Each kind of server has a password of its own, and is told no other.
#[tokio::test]
async fn sentinels_and_masters_have_passwords_of_their_own() {
    let login = ":p%40ss%2Cword%2F1@";
    let query = "?sentinel_password=a+b%20c%26d";
    for (servers, sentinels) in [(true, false), (false, true), (true, true)] {
        let passwords = Passwords {
            servers: servers.then_some(SERVERS),
            sentinels: sentinels.then_some(SENTINELS),
        };
        let deployment = Deployment::calm(&passwords, |port| port).await;
        let ports: Vec<_> = deployment.sentinels.iter().map(RedisServer::port).collect();
        let own_login = if servers { login } else { "" };
        let own_query = if sentinels { query } else { "" };
        let right = url(own_login, &ports, own_query);
        locks_at(&right, &deployment.servers[0]).await;
        let shown = format!("{:?}", Config::from_url(&right).expect("a valid URL"));
        for (word, is_shown) in [
            ("mymaster", true),
            ("127.0.0.1", true),
            (SERVERS, false),
            (SENTINELS, false),
        ] {
            assert_eq!(shown.contains(word), is_shown, "{word}: {shown}");
        }

        let port = deployment.servers[0].port();
        let at = format!("master `mymaster` at 127.0.0.1:{port}");
        if servers {
            let (none, wrong) = (
                url("", &ports, own_query),
                url(":hunter2@", &ports, own_query),
            );
            misconfigured(&none, &[&at, "wants a password"]).await;
            misconfigured(&wrong, &[&at, "check the user"]).await;
        }
        let at = format!("sentinel at 127.0.0.1:{}", ports[1]);
        if sentinels {
            let words = [&at, "wants a password", "?sentinel_password="];
            misconfigured(&url(own_login, &ports, ""), &words).await;
            let wrong = url(own_login, &ports, "?sentinel_password=hunter2");
            misconfigured(&wrong, &[&at, "check `sentinel_username`"]).await;
        }
    }
}
