//! Tests that passwords are shown nowhere, and that connections are encrypted.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use super::alone::alone;
use super::calm::unless_it_stands_still;
use super::locks::{
    connect, connecting, healed_at, held, held_at_last, impatient, is_misconfigured,
    is_unavailable, queued, says, says_each_cause_once, served,
};
use super::log::Log;
use super::proxy::Proxy;
use super::wait::{HANG, within};

/// Short, since some attempts here end only by this timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// If the test stands still for this long, so may a server on the same machine: then it does not
/// say in time what is wrong.
const STANDS_STILL: Duration = Duration::from_millis(100);

fn short(config: Config) -> Config {
    config.request_timeout(REQUEST_TIMEOUT)
}

/// Everything that a program could print of an error.
pub fn shown(error: &LockError) -> String {
    says_each_cause_once(error);
    let mut text = format!("{error}\n{error:?}\n{error:#?}\n");
    for mut cause in [error.source(), error.cause()] {
        while let Some(source) = cause {
            let _ = writeln!(text, "{source}\n{source:?}\n{source:#?}");
            cause = source.source();
        }
    }
    text
}

/// Checks that connecting to this URL fails with an error about a wrong setting that contains
/// these words and no password (`hunter2` in tests).
pub async fn misconfigured(url: &str, words: &[&str]) -> LockError {
    let error = unless_it_stands_still(STANDS_STILL, async || {
        let error = is_misconfigured(connecting(url, REQUEST_TIMEOUT).await);
        says(&error, words);
        error
    })
    .await;
    let shown = shown(&error);
    assert!(!shown.contains("hunter2"), "{shown}");
    error
}

/// Like [`misconfigured`], for many URLs.
pub async fn all_misconfigured(urls: &[(&str, &[&str])]) {
    for (url, words) in urls {
        misconfigured(url, words).await;
    }
}

/// Runs `see` in its own process, as the test of this name. Neither the text that it returns, as
/// shown to a user, nor the log may contain the secret. The text must contain `proof`, and the
/// log must not be empty.
pub fn shown_nowhere<F: Future<Output = String>>(
    test: &str,
    secret: &str,
    proof: &[&str],
    see: impl FnOnce() -> F,
) {
    alone(test, &[], || {
        let log = Log::capture();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let shown = runtime.block_on(see());
        drop(runtime);
        let log = log.text();
        for word in proof {
            assert!(shown.contains(word), "{word:?} is missing from: {shown}");
        }
        assert!(log.contains("dlock"), "nothing of ours was logged: {log}");
        for (what, text) in [("shown", shown), ("logged", log)] {
            assert!(!text.contains(secret), "the secret is {what}:\n{text}");
        }
    });
}

/// Everything that is shown for a store whose URL has a secret: for similar but wrong URLs, and
/// for every kind of work before, during and after an outage of the proxy in front of it.
pub async fn what_is_shown(url: &str, wrong: &[String], proxy: &Proxy) -> String {
    let mut text = String::new();
    for url in wrong {
        // Some report what is wrong only at the first request for a lock.
        let error = match Config::from_url(url).map(short) {
            Err(error) => Some(error),
            Ok(config) => {
                let _ = write!(text, "{config:?}");
                match within(HANG, LockManager::connect(config)).await {
                    Err(error) => Some(error),
                    Ok(manager) => manager.lock("key").try_acquire().await.err(),
                }
            }
        };
        text += &error.as_ref().map(shown).unwrap_or_default();
    }
    let config = short(Config::from_url(url).expect("a valid URL"));
    let _ = write!(text, "{config:?} {config:#?}");
    let manager = impatient(|| config.clone()).await;
    let guard = held_at_last(|| manager.lock("guard").ttl(REQUEST_TIMEOUT)).await;
    healed_at(&manager, "key").await;
    let request = manager.lock("key");
    let _ = write!(text, "{manager:?} {manager:#?} {guard:?} {request:?}");
    proxy.refuse(true);
    for error in [
        is_unavailable(within(HANG, manager.lock("key").acquire()).await),
        is_unavailable(within(HANG, manager.inspect("key")).await),
    ] {
        text += &shown(&error);
    }
    within(HANG, guard.lost()).await;
    text += &shown(&guard.release().await.expect_err("a lost lease"));
    proxy.refuse(false);
    super::locks::healed(&manager).await;
    within(HANG, manager.shutdown()).await;
    text
}

/// Checks the URLs of an encrypted store: trusted ones serve several processes, untrusted ones
/// are refused, and those that mix up the two ports are reported as that.
pub async fn encrypted(trusted: &[String], strangers: &[String], mix_ups: &[(String, &str)]) {
    for url in trusted {
        let manager = async || connect(super::locks::config(url).request_timeout(HANG / 6)).await;
        let (manager, other) = (manager().await, manager().await);
        let guard = held(manager.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").run(async {}));
        queued(&manager, "key", 1).await;
        guard.release().await.expect("the release");
        served(waiting).await;
    }
    for url in strangers {
        is_refused(url, &["127.0.0."]).await;
    }
    for (url, word) in mix_ups {
        is_refused(url, &[word, "127.0.0.1:"]).await;
    }
}

async fn is_refused(url: &str, words: &[&str]) {
    unless_it_stands_still(STANDS_STILL, async || {
        let error = is_unavailable(connecting(url, REQUEST_TIMEOUT).await);
        says(&error, words);
    })
    .await;
}
