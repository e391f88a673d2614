//! What `-o json` prints has the fields that `docs/cli.md` names, and no others, and in them
//! what it says.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::dir::TempDir;
use crate::support::memcached::MemcachedServer;
use crate::support::program::Program;
use crate::support::wait::until;
use crate::{
    code, dlock, holder, json, printed, ran, redis, sqlite, stderr, stdout, with_defaults,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");

/// What the table names: of a lock; and of what is within a field, if it says so.
fn named(field: Option<&str>) -> BTreeSet<String> {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let rows = page.lines().skip_while(|line| *line != "| field | what |");
    let rows = rows.skip(2).take_while(|line| line.starts_with("| `"));
    let mut names = BTreeSet::new();
    for row in rows {
        let codes: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        match field {
            None => names.extend(codes.first().map(ToString::to_string)),
            Some(field) if codes.first() == Some(&field) => {
                let inside = codes[1..]
                    .iter()
                    .filter(|code| !["null", "show"].contains(code));
                names.extend(inside.map(ToString::to_string));
            }
            Some(_) => {}
        }
    }
    names
}

fn fields(value: &Value) -> BTreeSet<String> {
    let object = value.as_object().expect("an object");
    object.keys().cloned().collect()
}

#[tokio::test]
async fn the_fields_are_those_of_the_page() {
    let server = redis().await;
    let url = server.url();
    let _held = holder(&url, "k").await;
    let _waiter = Program::start(dlock(&url, &["wait", "k"]));
    let shown = async || json(&url, &["show", "k"]).await;
    let shown = until("it waits", shown, |shown| shown[0]["waiters"] == 1).await;
    let done = ran(dlock(
        &url,
        &["run", "--once", "1h", "report", "--", "true"],
    ))
    .await;
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    let listed = json(&url, &["ls"]).await;
    let all = listed.as_array().expect("an array");
    assert_eq!(all.len(), 2, "{listed}");

    for lock in all.iter().chain([&shown[0]]) {
        assert_eq!(fields(lock), named(None), "{lock}");
    }
    assert_eq!(fields(&shown[0]["holders"][0]), named(Some("holders")));
    assert_eq!(fields(&all[1]["done"]), named(Some("holders")));
    assert_eq!(fields(&shown[0]["queue"][0]), named(Some("queue")));

    let checks = json(&url, &["doctor"]).await;
    let names = ["level", "check", "message"].map(ToOwned::to_owned);
    let checks = checks.as_array().expect("an array");
    assert!(
        checks
            .iter()
            .all(|check| fields(check) == names.clone().into())
    );
}

/// A number, or what is not known.
fn is_number(value: &Value) -> bool {
    value.is_u64() || value.is_null()
}

fn is_one_of(value: &Value, words: &[&str]) -> bool {
    words.iter().any(|word| value == word)
}

fn has_types_of_a_process(who: &Value) {
    assert!(who["owner"].is_string(), "{who}");
    // All of these are known, or none.
    let is_known = who["pid"].is_u64();
    let numbers = ["pid", "asked_at_ms"];
    assert!(numbers.iter().all(|field| is_number(&who[field])), "{who}");
    assert_eq!(who["asked_at_ms"].is_u64(), is_known, "{who}");
    for text in ["host", "label"] {
        assert_eq!(who[text].is_string(), is_known, "{who}");
        assert_eq!(who[text].is_null(), !is_known, "{who}");
    }
}

fn has_types_of_a_holder(who: &Value) {
    has_types_of_a_process(who);
    let numbers = ["since_ms", "left_ms", "token"];
    assert!(numbers.iter().all(|field| is_number(&who[field])), "{who}");
    let by = &who["since_by"];
    match who["since_ms"].is_null() {
        true => assert!(by.is_null(), "{who}"),
        false => assert!(is_one_of(by, &["store", "holder"]), "{who}"),
    }
}

fn array<'a>(lock: &'a Value, field: &str) -> &'a [Value] {
    let array = lock[field].as_array();
    array.unwrap_or_else(|| panic!("{field}: {lock}"))
}

/// Each field is of the type that the page gives it.
fn has_types(lock: &Value) {
    assert!(lock["key"].is_string(), "{lock}");
    assert!(
        is_one_of(&lock["mode"], &["write", "read", "permits"]),
        "{lock}"
    );
    assert_eq!(
        lock["permits"].is_u64(),
        lock["mode"] == "permits",
        "{lock}"
    );
    assert!(
        is_number(&lock["permits"]) && is_number(&lock["waiters"]),
        "{lock}"
    );
    array(lock, "holders")
        .iter()
        .for_each(has_types_of_a_holder);
    match &lock["done"] {
        Value::Null => {}
        done => has_types_of_a_holder(done),
    }
    for waiter in array(lock, "queue") {
        has_types_of_a_process(waiter);
        assert!(
            is_one_of(&waiter["mode"], &["write", "read", "permits"]),
            "{lock}"
        );
    }
    assert!(
        array(lock, "stored_as").iter().all(Value::is_string),
        "{lock}"
    );
}

fn of_key<'a>(list: &'a Value, key: &str) -> &'a Value {
    let mut locks = list.as_array().expect("an array").iter();
    let found = locks.find(|lock| lock["key"] == key);
    found.unwrap_or_else(|| panic!("{key}: {list}"))
}

#[tokio::test]
async fn the_types_are_those_of_the_page() {
    let dir = TempDir::default();
    types_are_those(&sqlite(&dir)).await;
    types_are_those(&redis().await.url()).await;
}

async fn types_are_those(url: &str) {
    let hold = ["--", "sh", "-c", "echo pid $$; sleep 1000"];
    let mut programs = Vec::new();
    for what in [&["k"][..], &["--read", "r"], &["--permits", "3", "p"]] {
        programs.push(Program::start(dlock(
            url,
            &[&["run"], what, &hold].concat(),
        )));
    }
    for program in &programs {
        printed(program, "pid ").await;
    }
    for what in [&["k"][..], &["--read", "k"]] {
        programs.push(Program::start(dlock(
            url,
            &[&["run"], what, &hold].concat(),
        )));
    }
    let done = ran(dlock(url, &["run", "--once", "1h", "d", "--", "true"])).await;
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    // Where places are those of processes that live, a machine that stood still has none for a
    // moment.
    let shown = async || json(url, &["show", "k"]).await;
    let wait = |shown: &Value| shown[0]["waiters"] == 2 && array(&shown[0], "queue").len() == 2;
    let shown = until("they wait", shown, wait).await;
    has_types(&shown[0]);
    assert!(!array(&shown[0], "stored_as").is_empty(), "{shown}");

    let listed = async || json(url, &["ls"]).await;
    let wait = |list: &Value| of_key(list, "k")["waiters"] == 2;
    let list = until("they wait", listed, wait).await;
    let all = list.as_array().expect("an array");
    assert_eq!(all.len(), 4, "{list}");
    for lock in all {
        has_types(lock);
        for only_shown in ["queue", "stored_as"] {
            assert!(array(lock, only_shown).is_empty(), "{lock}");
        }
        let is_done = lock["key"] == "d";
        assert_eq!(lock["done"].is_object(), is_done, "{lock}");
        assert_eq!(array(lock, "holders").is_empty(), is_done, "{lock}");
        let at_all = if is_done {
            &lock["done"]
        } else {
            &lock["holders"][0]
        };
        assert!(
            at_all["left_ms"].is_u64() && at_all["pid"].is_u64(),
            "{lock}"
        );
        // Redis keeps none.
        let keeps_tokens = !url.starts_with("redis");
        assert_eq!(at_all["token"].is_u64(), keeps_tokens, "{lock}");
    }
    for (key, mode) in [
        ("k", "write"),
        ("r", "read"),
        ("p", "permits"),
        ("d", "write"),
    ] {
        assert_eq!(of_key(&list, key)["mode"], mode, "{list}");
    }
    assert_eq!(of_key(&list, "p")["permits"], 3, "{list}");
}

#[tokio::test]
async fn what_a_store_does_not_know_is_null() {
    let memcached = MemcachedServer::start().await;
    let url = memcached.url();
    let _held = holder(&url, "k").await;
    let lock = &json(&url, &["show", "k"]).await[0];
    has_types(lock);
    assert!(
        lock["waiters"].is_null() && lock["holders"][0]["token"].is_null(),
        "{lock}"
    );
    assert!(array(lock, "queue").is_empty(), "{lock}");

    // This layout has no room for who it is.
    let redis = redis().await;
    let url = format!("{}?layout=redisson", redis.url());
    let _held = holder(&url, "k").await;
    let lock = &json(&url, &["show", "k"]).await[0];
    has_types(lock);
    let holder = &lock["holders"][0];
    for field in [
        "host",
        "pid",
        "label",
        "asked_at_ms",
        "since_ms",
        "since_by",
        "token",
    ] {
        assert!(holder[field].is_null(), "{field}: {lock}");
    }
}

/// Which is an answer, too.
#[tokio::test]
async fn a_free_lock_is_an_empty_array() {
    let dir = TempDir::default();
    let free = ran(dlock(&sqlite(&dir), &["show", "free", "-o", "json"])).await;
    let told = (code(&free), stdout(&free), stderr(&free));
    assert_eq!(told, (0, "[]\n".to_owned(), String::new()));
}

/// What the page calls them, and each is seen.
#[tokio::test]
async fn the_levels_of_the_doctor_are_those_of_the_page() {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let told = page.lines().find_map(|line| line.split_once("`level` ("));
    let (told, _) = told
        .and_then(|(_, rest)| rest.split_once(')'))
        .expect("levels");
    let told: BTreeSet<_> = told
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();

    // It may lose what it has confirmed.
    let server = redis().await;
    let url = server.url();
    let mut seen = BTreeSet::new();
    let mut look = async || {
        let printed = ran(with_defaults(&url, &["doctor", "-o", "json"])).await;
        let checks: Value = serde_json::from_str(&stdout(&printed)).expect("JSON");
        for check in checks.as_array().expect("an array") {
            assert!(
                check["check"].is_string() && check["message"].is_string(),
                "{check}"
            );
            seen.insert(check["level"].as_str().expect("a word").to_owned());
        }
        code(&printed)
    };
    // A machine that stands still may have its lock lost.
    until("nothing fails", &mut look, |&code| code == 0).await;
    let mut server = server;
    server.kill();
    assert_eq!(look().await, 69);
    assert_eq!(seen, told);
}
