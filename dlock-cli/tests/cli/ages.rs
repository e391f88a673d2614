//! Since when a lock is held, and how long somebody has waited for it.

use std::time::SystemTime;

use serde_json::Value;

use crate::databases::postgres::PostgreSql;
use crate::databases::server::Server;
use crate::support::dir::TempDir;
use crate::support::program::Program;
use crate::support::wait::until;
use crate::{code, column, dlock, holder, json, ran, sqlite, stderr, stdout};

/// Milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.expect("a clock").as_millis()).expect("a moment")
}

/// In whole seconds, from a time as it is shown.
fn seconds(shown: &str) -> u64 {
    if shown.ends_with("ms") {
        return 0;
    }
    let mut rest = shown;
    let mut part = |unit| match rest.split_once(unit) {
        Some((number, behind)) => {
            rest = behind;
            number.parse().expect("a number")
        }
        None => 0,
    };
    let (hours, minutes, seconds): (u64, u64, u64) = (part('h'), part('m'), part('s'));
    assert_eq!(rest, "", "{shown}");
    hours * 3600 + minutes * 60 + seconds
}

#[track_caller]
fn is_between(moment: &Value, from: u64, to: u64) {
    let moment = moment.as_u64().expect("a moment");
    assert!((from..=to).contains(&moment), "{from}, {moment}, {to}");
}

/// What began between these two moments, shown in a table's column. A time that is not by the
/// store's clock is marked.
async fn is_shown(
    url: &str,
    arguments: &[&str],
    name: &str,
    [from, to]: [u64; 2],
    is_marked: bool,
) {
    let look = async || {
        let at = now();
        let listed = ran(dlock(url, arguments)).await;
        assert_eq!(code(&listed), 0, "{}", stderr(&listed));
        (at, stdout(&listed))
    };
    // What crawls through the items of memcached may not have come by yet. And a waiter may have no
    // place for a moment, if the machine stood still.
    let is_there = |(_, text): &(u64, String)| column(text, name).len() == 1;
    let (at, text) = until("it is there", look, is_there).await;
    let shown = &column(&text, name)[0];
    let time = shown.strip_prefix('~');
    assert_eq!(time.is_some(), is_marked, "{text}");
    let time = seconds(time.unwrap_or(shown));
    let (least, most) = ((at - to) / 1000, (now() - from) / 1000);
    assert!((least..=most).contains(&time), "{least}, {most}: {text}");
}

/// So that what is shown is not zero.
async fn a_second_passes(since: u64) {
    let passed = async || now().saturating_sub(since);
    until("a second has passed", passed, |&passed| passed > 1000).await;
}

/// On a store that records since when a lock is held by this clock, or does not; and where it is
/// seen who waits, or not.
async fn are_told(url: &str, by: Option<&str>, has_queue: bool) {
    let begun = now();
    let _held = holder(url, "k").await;
    let had = now();
    let lock = &json(url, &["show", "k"]).await[0];
    let holder = &lock["holders"][0];
    is_between(&holder["asked_at_ms"], begun, had);
    assert_eq!(holder["since_by"].as_str(), by, "{lock}");
    match by {
        Some(_) => is_between(&holder["since_ms"], begun, had),
        None => assert!(holder["since_ms"].is_null(), "{lock}"),
    }
    a_second_passes(had).await;
    for arguments in [&["ls"][..], &["ls", "-o", "wide"], &["show", "k"]] {
        let is_marked = by != Some("store");
        is_shown(url, arguments, "AGE", [begun, had], is_marked).await;
    }

    let begun = now();
    let _waiter = Program::start(dlock(url, &["wait", "k"]));
    if !has_queue {
        let shown = stdout(&ran(dlock(url, &["show", "k"])).await);
        assert_eq!(column(&shown, "WAITERS"), ["-"], "{shown}");
        return;
    }
    let shown = async || json(url, &["show", "k"]).await;
    let waits = |shown: &Value| shown[0]["queue"][0].is_object();
    let shown = until("it waits", shown, waits).await;
    let waits = now();
    is_between(&shown[0]["queue"][0]["asked_at_ms"], begun, waits);
    a_second_passes(waits).await;
    // The waiter's clock says it.
    is_shown(url, &["show", "k"], "WAITS", [begun, waits], true).await;
}

#[tokio::test]
async fn the_clock_of_a_database_says_since_when() {
    let server = Server::<PostgreSql>::shared().await;
    let url = server.url(&server.database().await, server.port());
    are_told(&format!("{url}?create_tables=true"), Some("store"), true).await;
    let dir = TempDir::default();
    are_told(&sqlite(&dir), Some("store"), true).await;
}

#[tokio::test]
async fn the_holder_says_since_when_on_memcached() {
    let server = crate::support::memcached::MemcachedServer::start().await;
    are_told(&server.url(), Some("holder"), false).await;
}

/// Who did not have to wait has written down nothing but when it asked.
#[cfg(feature = "etcd")]
#[tokio::test]
async fn nobody_says_since_when_on_etcd() {
    let server = crate::support::etcd::EtcdServer::start().await;
    let url = crate::support::etcd::etcd_url(&[server.port()]);
    are_told(&url, None, true).await;
}
