//! A password is shown nowhere: in no error or its causes, no `Debug`, no log.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::support::alone::alone;
use crate::support::log::Log;
use crate::support::proxy::Proxy;
use crate::support::redis::Setup;
use crate::support::wait::{HANG, within};

const PASSWORD: &str = "hunter2/hunter2";

/// All that a program could print of an error.
fn shown(error: &LockError) -> String {
    let mut text = format!("{error}\n{error:?}\n{error:#?}\n");
    let mut cause = error.source();
    while let Some(source) = cause {
        let _ = writeln!(text, "{source}\n{source:?}\n{source:#?}");
        cause = source.source();
    }
    text
}

#[test]
fn a_password_is_shown_nowhere() {
    alone("secrets::a_password_is_shown_nowhere", &[], || {
        let log = Log::capture();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let text = runtime.block_on(what_can_be_seen());
        drop(runtime);
        let log = log.text();
        // Proof that there was something to see.
        assert!(
            text.contains("WRONGPASS") && text.contains("127.0.0.1"),
            "{text}"
        );
        assert!(log.contains("dlock"), "nothing of ours was logged: {log}");
        for (what, text) in [("shown", text), ("logged", log)] {
            assert!(!text.contains("hunter2"), "the password is {what}:\n{text}");
        }
    });
}

async fn what_can_be_seen() -> String {
    let mut text = String::new();
    let mut note = |error: LockError| text.push_str(&shown(&error));

    let server = Setup::default().password(PASSWORD).start().await;
    let proxy = Proxy::to(server.port());
    let url = server.url_through(proxy.port());
    let config = Config::from_url(&url)
        .expect("a valid URL")
        .request_timeout(Duration::from_millis(300));
    let mut seen = format!("{config:?} {config:#?}");
    let manager = LockManager::connect(config).await.expect("a connection");
    let _ = write!(seen, "{manager:?} {manager:#?}");

    // URLs that are wrong in some way, each with the password in it.
    for url in [
        url.replace("redis://", "reddis://"),
        url.replace("redis://", "redis:/"),
        url.replace("redis://", ""),
        url.replace("127.0.0.1", ""),
        url.replace(&proxy.port().to_string(), "99999"),
        format!("{url}zero"),
        format!("{url}?{PASSWORD}"),
        format!("{url}#x"),
        format!("redis://:{PASSWORD}@127.0.0.1"),
        format!("redis://:{PASSWORD}#@127.0.0.1"),
        format!("{PASSWORD}:{PASSWORD}"),
        format!("{url}999"),
    ] {
        match Config::from_url(&url) {
            Ok(config) => {
                let _ = write!(seen, "{config:?}");
                if let Err(error) = within(HANG, LockManager::connect(config)).await {
                    note(error);
                }
            }
            Err(error) => note(error),
        }
    }
    // A password that the server refuses.
    let wrong = url.replace("hunter2%2F", "hunter2-wrong%2F");
    let wrong = Config::from_url(&wrong).expect("a valid URL");
    note(
        LockManager::connect(wrong)
            .await
            .expect_err("a wrong password"),
    );

    // Every kind of work, before, during and after an outage, with renewals
    // and releases that fail.
    let ttl = Duration::from_millis(600);
    let guard = manager
        .lock("guard")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    manager.lock("key").run(async {}).await.expect("the lock");
    let _ = write!(seen, "{guard:?} {:?}", manager.lock("key"));
    proxy.refuse(true);
    note(
        within(HANG, manager.lock("key").acquire())
            .await
            .expect_err("an outage"),
    );
    note(
        within(HANG, manager.inspect("key"))
            .await
            .expect_err("an outage"),
    );
    within(HANG, guard.lost()).await;
    drop(guard);
    proxy.refuse(false);
    // Renamed away, the login is an unknown command, whose error repeats it.
    server
        .command::<()>(&["CONFIG", "SET", "requirepass", "another"])
        .await;
    proxy.cut();
    note(
        within(HANG, manager.lock("key").acquire())
            .await
            .expect_err("a changed password"),
    );
    within(HANG, manager.shutdown()).await;
    seen.push_str(&text);
    seen
}
