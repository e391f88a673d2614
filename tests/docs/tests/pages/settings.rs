//! What is to be written into a `Cargo.toml`.

use toml::{Table, Value};

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

fn features_of_dlock(table: &Table) -> impl Iterator<Item = &str> {
    let sections = ["dependencies", "dev-dependencies"];
    let dlock = sections.map(|section| table.get(section)?.get("dlock-rs")?.get("features"));
    let features = dlock.into_iter().flatten().filter_map(Value::as_array);
    features.flatten().filter_map(Value::as_str)
}
