//! What is to be written into a `Cargo.toml`.

use toml::{Table, Value};

use crate::markdown::root;
use crate::{blocks, metadata, none_wrong};

#[test]
fn every_toml_block_is_one_and_names_features_that_there_are() {
    let mut packages = metadata().packages.into_iter();
    let dlock = packages.find(|package| package.name == "dlock-rs");
    let features = &dlock.expect("our own package").features;
    let mut wrong = Vec::new();
    for (place, block) in blocks() {
        if block.language() != Some("toml") {
            continue;
        }
        match block.text.parse::<Table>() {
            Err(error) => wrong.push(format!("{place}: {error}")),
            Ok(table) => wrong.extend(
                features_of_dlock(&table)
                    .filter(|name| !features.contains_key(*name))
                    .map(|name| format!("{place}: there is no feature `{name}`")),
            ),
        }
    }
    none_wrong(&wrong);
}

/// Each feature has a row on the page of features, and the page has no other.
#[test]
fn the_page_of_features_has_each() {
    let mut packages = metadata().packages.into_iter();
    let dlock = packages.find(|package| package.name == "dlock-rs");
    // What is optional is no feature: each dependency is named by one as `dep:…`.
    let mut features: Vec<_> = dlock
        .expect("our own package")
        .features
        .into_keys()
        .collect();
    let page = std::fs::read_to_string(root().join("docs/features.md")).expect("the page");
    let (table, _) = page.split_once("\n## ").expect("what they cost");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut rows: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    features.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, features);
}

fn features_of_dlock(table: &Table) -> impl Iterator<Item = &str> {
    let sections = ["dependencies", "dev-dependencies"];
    let dlock = sections.map(|section| table.get(section)?.get("dlock-rs")?.get("features"));
    let features = dlock.into_iter().flatten().filter_map(Value::as_array);
    features.flatten().filter_map(Value::as_str)
}
