//! Every test that a page names is there, and is run.

use std::fs;
use std::path::Path;

use crate::links::beside;
use crate::markdown::{pages, root};
use crate::none_wrong;

/// Where tests are that a page may name.
const TESTS: [&str; 2] = ["tests", "dlock-runtime/tests"];

/// A link to a file of tests whose text is a name means the test of that name.
#[test]
fn every_test_that_is_named_is_run() {
    let mut wrong = Vec::new();
    let mut named = 0;
    for page in pages() {
        for link in page.links() {
            let (name, target) = (&link.what.text, &link.what.target);
            let path = beside(&page.path, target);
            let is_test = TESTS.iter().any(|folder| path.starts_with(folder));
            if is_test && target.ends_with(".rs") && is_name(name) {
                named += 1;
                if let Err(error) = is_run(&path, name) {
                    wrong.push(format!("{}:{}: {name}: {error}", page.path, link.line));
                }
            }
        }
    }
    none_wrong(&wrong);
    assert!(named > 50, "the guarantees name their tests, not {named}");
}

fn is_name(text: &str) -> bool {
    let of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !text.is_empty() && text.chars().all(of_a_name)
}

fn is_run(path: &Path, name: &str) -> Result<(), String> {
    let file = fs::read_to_string(root().join(path)).map_err(|error| error.to_string())?;
    let lines: Vec<_> = file.lines().map(str::trim).collect();
    let is_it = |line: &&str| {
        let line = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("async ");
        let tail = line
            .strip_prefix("fn ")
            .and_then(|line| line.strip_prefix(name));
        tail.is_some_and(|tail| tail.starts_with(['(', '<']))
    };
    let Some(place) = lines.iter().position(is_it) else {
        return Err(format!("there is no such function in {}", path.display()));
    };
    let attributes = lines[..place]
        .iter()
        .rev()
        .take_while(|line| !line.is_empty());
    let mut attributes = attributes.filter(|line| line.starts_with("#["));
    let is_test =
        attributes.any(|line| line.starts_with("#[test]") || line.contains("tokio::test"));
    // Between the braces of a macro that makes a test of each function for every kind of store.
    let begun = |line: &&str| !line.is_empty() && !line.starts_with(' ');
    let around = file.lines().take(place).filter(begun).last();
    let is_case = around.is_some_and(|line| line.starts_with("for_each! {"));
    if is_test || is_case || is_listed(path, &file, name) {
        Ok(())
    } else {
        Err("it is no test".to_owned())
    }
}

/// Whether it is in a list of cases: in the file itself, or in the `mod.rs` or
/// `themes.rs` beside it.
fn is_listed(path: &Path, file: &str, name: &str) -> bool {
    let beside = ["mod.rs", "themes.rs"].map(|list| root().join(path).with_file_name(list));
    let lists = beside.map(|list| fs::read_to_string(list).unwrap_or_default());
    let mut lists = lists.iter().map(String::as_str).chain([file]);
    lists.any(|list| list.lines().any(|line| line.trim() == name))
}
