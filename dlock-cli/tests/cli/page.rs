//! What `-o json` prints has the fields that `docs/cli.md` names, and no others.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::program::Program;
use crate::support::wait::until;
use crate::{code, dlock, holder, ran, redis, stderr, stdout};

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

async fn json(url: &str, arguments: &[&str]) -> Value {
    let printed = ran(dlock(url, &[arguments, &["-o", "json"]].concat())).await;
    assert_eq!(code(&printed), 0, "{}", stderr(&printed));
    serde_json::from_str(&stdout(&printed)).expect("JSON")
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
