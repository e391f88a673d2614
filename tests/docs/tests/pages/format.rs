//! Snippets are formatted as all code here is.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::markdown::root;
use crate::{blocks, none_wrong};

#[test]
fn every_snippet_is_formatted() {
    let mut wrong = Vec::new();
    for (place, block) in blocks() {
        if block.language() == Some("rust")
            && let Err(shown) = check(&block.text)
        {
            wrong.push(format!("{place}:\n{shown}"));
        }
    }
    none_wrong(&wrong);
}

/// The build script names them, so `cargo fmt` does not find them.
#[test]
fn every_test_of_a_page_is_formatted() {
    let folder = root().join("tests/docs/tests/snippets/pages");
    let mut wrong = Vec::new();
    for file in fs::read_dir(folder).expect("the tests") {
        let file = file.expect("a file").path();
        let text = fs::read_to_string(&file).expect("a file");
        if let Err(shown) = check(&text) {
            wrong.push(format!("{}: {shown}", file.display()));
        }
    }
    none_wrong(&wrong);
}

fn check(snippet: &str) -> Result<(), String> {
    // A file of items, or else the statements of a function.
    let formatted = format(snippet).or_else(|_| {
        let function = format(&format!("async fn f() {{\n{snippet}}}\n"))?;
        let lines: Vec<_> = function.lines().collect();
        let [_, inside @ .., _] = &lines[..] else {
            return Err(function);
        };
        let inside = inside
            .iter()
            .map(|line| line.strip_prefix("    ").unwrap_or(line));
        Ok(inside.map(|line| format!("{line}\n")).collect())
    })?;
    if formatted == snippet {
        Ok(())
    } else {
        Err(format!("is not formatted; it should be\n{formatted}"))
    }
}

fn format(text: &str) -> Result<String, String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rustfmt");
    let mut input = rustfmt.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("rustfmt reads");
    drop(input);
    let output = rustfmt.wait_with_output().expect("rustfmt ends");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
