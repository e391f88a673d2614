//! What code shows keeps to the advice of `operations.md`: a ttl is at least three request
//! timeouts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::markdown::root;
use crate::{blocks, none_wrong};

/// The request timeout of who names none.
const DEFAULT: Duration = Duration::from_secs(5);

/// Where programs and documented items are. The files of a folder are one program.
const SOURCES: [&str; 4] = [
    "src",
    "dlock-macros/src/lib.rs",
    "dlock-runtime/src/api",
    "dlock-cli/src",
];

#[test]
fn every_ttl_is_three_request_timeouts() {
    let mut programs: Vec<_> = blocks()
        .filter(|(_, block)| matches!(block.language(), Some("rust" | "console")))
        .map(|(place, block)| (place, block.text))
        .collect();
    let folders = fs::read_dir(root().join("examples")).expect("the examples");
    for folder in folders {
        let folder = folder.expect("an entry").path();
        programs.push((folder.display().to_string(), sources(&folder, &|_| true)));
    }
    for source in SOURCES {
        let shown = |line: &str| line.trim_start().starts_with("//");
        let text = sources(&root().join(source), &shown);
        programs.push((source.to_owned(), text));
    }
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (place, text) in &programs {
        for (ttl, request_timeout) in pairs(text) {
            seen += 1;
            if ttl < 3 * request_timeout {
                wrong.push(format!(
                    "{place}: a ttl of {ttl:?} with a request timeout of {request_timeout:?}"
                ));
            }
        }
    }
    none_wrong(&wrong);
    assert!(seen > 15, "they are found: {seen}");
}

/// The lines of all sources below `path` that are looked at, except tests, whose store is near.
fn sources(path: &Path, looks: &dyn Fn(&str) -> bool) -> String {
    let mut text = String::new();
    if path.is_dir() && path.file_name().is_none_or(|name| name != "tests") {
        for entry in fs::read_dir(path).expect("a folder that can be read") {
            text += &sources(&entry.expect("an entry").path(), looks);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let source = fs::read_to_string(path).expect("a source in UTF-8");
        let lines = source.lines().filter(|line| looks(line));
        text.extend(lines.flat_map(|line| [line, "\n"]));
    }
    text
}

/// Each ttl of a program, with the request timeout beside it: of variables, that of the same line.
fn pairs(program: &str) -> Vec<(Duration, Duration)> {
    let in_code = [
        ".request_timeout(Duration::from_",
        "REQUEST_TIMEOUT: Duration = Duration::from_",
    ];
    let told = in_code
        .iter()
        .flat_map(|before| behind(program, before))
        .max();
    let told = told.unwrap_or(DEFAULT);
    let ttls = ["ttl = \"", ".ttl(Duration::from_"];
    let ttls = ttls.iter().flat_map(|before| behind(program, before));
    let mut pairs: Vec<_> = ttls.map(|ttl| (ttl, told)).collect();
    for line in program.lines() {
        let told = behind(line, "DLOCK_REQUEST_TIMEOUT=").pop();
        let told = told.unwrap_or(DEFAULT);
        pairs.extend(
            behind(line, "DLOCK_TTL=")
                .into_iter()
                .map(|ttl| (ttl, told)),
        );
    }
    pairs
}

/// The durations that stand behind `before`: `30s`, `secs(30)`, `millis(1_500)`. What is no number
/// is left out.
fn behind(text: &str, before: &str) -> Vec<Duration> {
    let found = text.split(before).skip(1);
    found.filter_map(duration).collect()
}

fn duration(text: &str) -> Option<Duration> {
    let (unit, text) = match text.split_once('(') {
        Some((unit @ ("secs" | "millis"), rest)) => (Some(unit), rest),
        _ => (None, text),
    };
    let is_digit = |sign: char| sign.is_ascii_digit() || sign == '_';
    let end = text.find(|sign| !is_digit(sign)).unwrap_or(text.len());
    let number: u64 = text[..end].replace('_', "").parse().ok()?;
    let rest = &text[end..];
    let unit = unit.unwrap_or_else(|| {
        let end = rest.find(|sign: char| !sign.is_alphabetic());
        &rest[..end.unwrap_or(rest.len())]
    });
    match unit {
        "ms" | "millis" => Some(Duration::from_millis(number)),
        "s" | "secs" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(60 * number)),
        "h" => Some(Duration::from_secs(3600 * number)),
        _ => None,
    }
}

#[test]
fn a_short_ttl_is_seen() {
    let short = [
        r#"#[distributed_lock(key = "a", ttl = "2s")]"#,
        "dlock::lock(key).ttl(Duration::from_millis(14_999))",
        "$ DLOCK_TTL=3s cargo run",
    ];
    let fits = [
        "const REQUEST_TIMEOUT: Duration = Duration::from_millis(1_500); ttl = \"5s\"",
        "DLOCK_TTL=3s DLOCK_REQUEST_TIMEOUT=1s cargo run",
        "dlock::lock(key).ttl(Duration::from_secs(15))",
    ];
    let keeps = |text: &str| {
        let pairs = pairs(text);
        assert!(!pairs.is_empty(), "nothing in {text}");
        pairs.iter().all(|(ttl, told)| *ttl >= 3 * *told)
    };
    assert_eq!(short.map(keeps), [false; 3]);
    assert_eq!(fits.map(keeps), [true; 3]);
}
