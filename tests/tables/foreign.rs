//! Rows that nobody of dlock wrote: names, owners, tokens and times of any kind. Whatever
//! they say, a call ends, an error names the table, and no token is given out twice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock::{LockError, LockManager};
use dlock_conformance::process;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Handle;

use super::Tables;
use crate::property::{holds, is_of_others, is_plain};
use crate::support::wait::{HANG, until, within};

const SHORT: Duration = Duration::from_millis(100);

/// A row, with literals of SQL.
#[derive(Clone, Debug)]
struct Row {
    token: &'static str,
    mode: &'static str,
    owner: String,
    expires_at: &'static str,
    waited: &'static str,
    /// In the tables of readers and of those who wait.
    other: String,
    ticket: &'static str,
    /// Until when the process lives that waits, and when the tables were cleaned last.
    time: &'static str,
}

fn text() -> impl Strategy<Value = String> {
    let text = select(
        &[
            "",
            "x",
            "1.1",
            "somebody",
            "00000000000000ff.1",
            "a b",
            "é",
            "\u{202e}",
            "{}",
            "%s",
            "?",
            "w:1.1",
            "1.1/2",
            "1.1/0",
            "1.1/x",
            "1.1/99999999999999999999",
            "\u{1b}[31m",
            "''",
        ][..],
    );
    prop_oneof![8 => text.prop_map(str::to_owned), 1 => Just("x".repeat(60))]
}

fn row() -> impl Strategy<Value = Row> {
    let numbers = &[
        "0",
        "1",
        "-1",
        "63",
        "9223372036854775807",
        "9223372036854775700",
        "-9223372036854775808",
        "4611686018427387904",
    ];
    let modes = &["w", "r", "p", "d", "x", "W", " "];
    (
        select(&numbers[..]),
        select(&modes[..]),
        text(),
        select(&numbers[..]),
        select(&["0", "1", "-1", "32767"][..]),
        text(),
        select(&numbers[..]),
        select(&numbers[..]),
    )
        .prop_map(
            |(token, mode, owner, expires_at, waited, other, ticket, time)| Row {
                token,
                mode,
                owner,
                expires_at,
                waited,
                other,
                ticket,
                time,
            },
        )
}

async fn ask(manager: &LockManager, key: &str) -> Vec<LockError> {
    let lock = || manager.lock(key);
    let answers = [
        within(HANG, lock().try_acquire()).await.map(drop),
        within(HANG, lock().acquire_within(SHORT)).await.map(drop),
        within(HANG, lock().read().acquire_within(SHORT))
            .await
            .map(drop),
        within(HANG, manager.inspect(key)).await.map(drop),
        within(HANG, manager.list("")).await.map(drop),
    ];
    answers.into_iter().filter_map(Result::err).collect()
}

/// Asking again does not help: somebody has to delete the row.
fn is_foreign(error: &LockError) -> bool {
    let said = error.to_string();
    matches!(error, LockError::Config { .. })
        && said.contains("row of this lock in the table dlock_lock")
        && said.contains("did not write")
}

async fn is_told<S: Tables>(
    store: &S,
    manager: &LockManager,
    key: &str,
    row: &Row,
) -> TestCaseResult {
    let Row {
        token,
        mode,
        owner,
        expires_at,
        waited,
        other,
        ticket,
        time,
    } = row;
    for table in ["lock", "reader", "queue", "process"] {
        store.execute(&format!("DELETE FROM dlock_{table}")).await;
    }
    // What the database itself refuses is no row.
    for insert in [
        format!(
            "INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
                 VALUES ('{key}', {token}, '{mode}', '{owner}', {expires_at}, {waited})"
        ),
        format!(
            "INSERT INTO dlock_reader (name, owner, expires_at) VALUES ('{key}', '{other}', {expires_at})"
        ),
        format!(
            "INSERT INTO dlock_queue (name, ticket, owner, mode, process)
                 VALUES ('{key}', {ticket}, '{other}', '{mode}', '{owner}')"
        ),
        format!("INSERT INTO dlock_process (process, alive_until) VALUES ('{owner}', {time})"),
        format!("UPDATE dlock_meta SET cleaned_at = {time}"),
    ] {
        store.execute(&insert).await;
    }
    for error in ask(manager, key).await {
        is_plain(&error)?;
        // That of the row: what is marked is done.
        let is_mark = *mode == "d" && matches!(error, LockError::Done { .. });
        let of_others = is_mark || is_of_others(&error);
        let said = error.to_string();
        prop_assert!(
            of_others || (is_foreign(&error) && said.contains(&format!("`{key}`"))),
            "{}",
            said
        );
    }
    if let Ok(guard) = within(HANG, manager.lock(key).try_acquire()).await {
        let token: i64 = token.parse().expect("a number");
        let drawn = i64::try_from(u64::from(guard.token())).ok();
        prop_assert!(
            drawn.is_some_and(|drawn| drawn > token),
            "{:?} behind {}",
            drawn,
            token
        );
    }
    // Others are not spoilt.
    let other = within(HANG, manager.lock("other").run(async {})).await;
    other.map_err(|error| TestCaseError::fail(error.to_string()))
}

pub(crate) async fn what_is_not_ours_is_told_and_gives_no_token_twice<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    let store = &*store;
    // What the last case gave back may come yet, and make its row anew.
    let cases = AtomicU32::new(0);
    tokio::task::block_in_place(|| {
        holds(20, row(), |row| {
            let key = format!("key:{}", cases.fetch_add(1, Ordering::Relaxed));
            Handle::current().block_on(is_told(store, &manager, &key, &row))
        });
    });
}

/// No number is left above it. What would count on from there is nobody: the row stays for
/// its own lock to be told of, and the floor of all others stays where it was.
pub(crate) async fn a_token_without_room_spoils_no_other_lock<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    let store = &*store;
    for (name, token) in [("spoilt", "9223372036854775800"), ("old", "64")] {
        let row = format!(
            "INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
                 VALUES ('{name}', {token}, 'w', '', 0, 0)"
        );
        store.execute(&row).await;
    }
    // Wakes who cleans the tables.
    let others = async |name: &str| within(HANG, manager.lock(name).run(async {})).await;
    others("first").await.expect("nobody has it");
    let old = async || {
        let rows = "SELECT COUNT(*) FROM dlock_lock WHERE name = 'old'";
        store.number(rows).await
    };
    until("the tables were cleaned", old, |&rows| rows == 0).await;
    others("second").await.expect("nobody has it");
    let error = within(HANG, manager.lock("spoilt").try_acquire()).await;
    let error = error.map(drop).expect_err("no token is left");
    let said = error.to_string();
    assert!(is_foreign(&error), "{error:?}");
    assert!(said.contains("`spoilt`"), "{said}");
    store
        .execute("DELETE FROM dlock_lock WHERE name = 'spoilt'")
        .await;
    others("spoilt").await.expect("the row has gone");
}

/// The floor is in no row of a lock, and the advice must not name one.
pub(crate) async fn a_floor_without_room_is_named<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    let floor = "UPDATE dlock_meta SET floor = 9223372036854775800";
    store.execute(floor).await;
    let error = within(HANG, manager.lock("key").try_acquire()).await;
    let said = error.map(drop).expect_err("no token is left").to_string();
    assert!(said.contains("`floor` of dlock_meta"), "{said}");
}
