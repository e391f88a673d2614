//! Every test that a page names is there, and is run.

use std::fs;
use std::path::Path;

use crate::links::beside;
use crate::markdown::{pages, root};
use crate::none_wrong;

/// The cases in here are run by way of a list.
const CONFORMANCE: &str = "tests/conformance";

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
    if let Ok(case) = path.strip_prefix(CONFORMANCE) {
        return is_listed(&case.with_extension("").display().to_string(), name);
    }
    let attributes = lines[..place]
        .iter()
        .rev()
        .take_while(|line| !line.is_empty());
    let mut attributes = attributes.filter(|line| line.starts_with("#["));
    match attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test")) {
        true => Ok(()),
        false => Err("it is no test".to_owned()),
    }
}

/// Whether the case is in the list that each store is put through.
fn is_listed(theme: &str, name: &str) -> Result<(), String> {
    let list = fs::read_to_string(root().join(CONFORMANCE).join("mod.rs")).expect("the list");
    let cases = list.split_once(&format!("            {theme} {{\n"));
    let cases = cases.and_then(|(_, cases)| cases.split_once('}'));
    let (cases, _) = cases.ok_or_else(|| format!("`{theme}` is not in the list"))?;
    match cases.split_whitespace().any(|case| case == name) {
        true => Ok(()),
        false => Err("no store is put through it".to_owned()),
    }
}
