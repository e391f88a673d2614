//! What is wrong from the start is said at the start: where, what, and what to
//! do; and never the password.

use std::time::Duration;

use dlock_runtime::backend::redis::Redis;
use dlock_runtime::backend::{Backend, BackendError, BackendErrorKind};

use crate::support::{Proxy, Server, soon};

async fn refusal(url: &str) -> BackendError {
    let redis = Redis::from_url(url)
        .expect("a valid URL")
        .request_timeout(Duration::from_millis(400));
    let error = soon("an error", redis.start())
        .await
        .expect_err("it starts");
    let mut shown = format!("{error} {error:?} {redis:?}");
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        shown.push_str(&format!(" {source} {source:?}"));
        cause = source.source();
    }
    assert!(!shown.contains("hunter2"), "{shown}");
    error
}

#[tokio::test]
async fn a_wrong_login_is_a_wrong_setting() {
    let server = Server::with(&["--requirepass", "correct"]);
    let port = server.port;
    for (login, says) in [
        (":hunter2@", "WRONGPASS"),
        ("nobody:hunter2@", "WRONGPASS"),
        ("", "wants a password"),
    ] {
        let error = refusal(&format!("redis://{login}127.0.0.1:{port}")).await;
        assert_eq!(error.kind(), BackendErrorKind::Config, "{error}");
        let message = error.to_string();
        assert!(message.contains(says), "{message}");
        assert!(message.contains(&format!("127.0.0.1:{port}")), "{message}");
    }
    let right = Redis::from_url(&format!("redis://:correct@127.0.0.1:{port}/2")).unwrap();
    right.start().await.unwrap();
}

#[tokio::test]
async fn a_wrong_database_is_a_wrong_setting() {
    let server = Server::with(&["--databases", "4"]);
    let error = refusal(&format!("{}/4", server.url())).await;
    assert_eq!(error.kind(), BackendErrorKind::Config);
    assert!(error.to_string().contains("database"), "{error}");
}

/// The password stands in the server's own answer.
#[tokio::test]
async fn a_server_without_hello_is_too_old() {
    let server = Server::with(&["--rename-command", "HELLO", ""]);
    let error = refusal(&format!("redis://:hunter2@127.0.0.1:{}", server.port)).await;
    assert_eq!(error.kind(), BackendErrorKind::Config);
    assert!(error.to_string().contains("6.2"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let mut server = Server::start();
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port);
    server.kill();
    let error = refusal(&url).await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(
        error.to_string().contains(&server.port.to_string()),
        "{error}"
    );

    // Nobody answers.
    let server = Server::start();
    let proxy = Proxy::to(server.port);
    proxy.answers(crate::support::Flow::Hold);
    let error = refusal(&proxy.url()).await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(error.to_string().contains("did not answer"), "{error}");

    // Everybody is turned away.
    let proxy = Proxy::to(server.port);
    proxy.refuses(true);
    assert_eq!(
        refusal(&proxy.url()).await.kind(),
        BackendErrorKind::Unavailable
    );

    let error = refusal("redis://no-such-host.invalid").await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(
        error.to_string().contains("no-such-host.invalid"),
        "{error}"
    );
}

#[tokio::test]
async fn missing_permissions_are_named() {
    let server = Server::start();
    let user = |name: &str, rules: &[&str]| {
        let line: Vec<_> = ["ACL", "SETUSER", name, "on", ">hunter2"]
            .iter()
            .chain(rules)
            .copied()
            .collect();
        server.run::<()>(&line);
        format!("redis://{name}:hunter2@127.0.0.1:{}", server.port)
    };
    for (name, rules) in [
        ("mute", &["~dlock:*", "+@all", "resetchannels"][..]),
        ("blind", &["~other:*", "&*", "+@all"]),
        (
            "idle",
            &["~dlock:*", "&*", "-@all", "+hello", "+subscribe", "+eval"],
        ),
    ] {
        let error = refusal(&user(name, rules)).await;
        assert_eq!(error.kind(), BackendErrorKind::Config, "{name}: {error}");
        assert!(error.to_string().contains("dlock:wake:"), "{name}: {error}");
    }
    // No more than is asked for.
    let rules = "~dlock:* &dlock:wake:* -@all +hello +subscribe +publish +eval +evalsha +incrby \
                 +set +get +mget +del +exists +pexpire +pexpireat +pttl +time +lpop +lpush +rpush \
                 +lpos +lrem +llen +zadd +zrange +zrem +zscore +zrangebyscore +zremrangebyscore \
                 +type +scan";
    let url = user("able", &rules.split_whitespace().collect::<Vec<_>>());
    let redis = std::sync::Arc::new(crate::support::started(&url).await);
    let requests = [crate::support::write("a"), crate::support::write("a")];
    crate::support::take(&redis, &requests[0]).await;
    let waiter = crate::support::wait(&redis, &requests[1]);
    crate::support::queued(&server, "a", 1).await;
    crate::support::release(&redis, &requests[0]).await;
    soon("the waiter", waiter).await.unwrap();
    let reader = crate::support::read("b");
    crate::support::take(&redis, &reader).await;
    assert_eq!(redis.list("").await.unwrap().len(), 2);
    crate::support::release(&redis, &reader).await;
}
