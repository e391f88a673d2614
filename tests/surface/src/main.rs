//! Compares the public items of the packages with the files of this package, so that a change
//! of the surface shows in review.
//!
//! ```text
//! cargo run -p dlock-surface               # what has changed
//! cargo run -p dlock-surface -- --write    # the files are made anew
//! ```

mod traits;

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use public_api::{Builder, PublicApi};
use serde_json::Value;

/// `dlock-rs` re-exports most of what it shows from `dlock-runtime`.
const PACKAGES: [(&str, &str); 4] = [
    ("dlock-rs", "dlock"),
    ("dlock-runtime", "dlock_runtime"),
    ("dlock-macros", "dlock_macros"),
    ("dlock-conformance", "dlock_conformance"),
];

type AnyError = Box<dyn Error>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn cargo(arguments: &[&str]) -> Result<Vec<u8>, AnyError> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(arguments);
    cargo.env(
        "RUSTDOC",
        concat!(env!("CARGO_MANIFEST_DIR"), "/rustdoc.sh"),
    );
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("cargo {} failed", arguments.join(" ")).into());
    }
    Ok(output.stdout)
}

/// Where cargo puts what rustdoc says.
fn descriptions() -> Result<PathBuf, AnyError> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_slice(&metadata)?;
    let target = metadata["target_directory"].as_str();
    Ok(Path::new(target.ok_or("cargo names no target directory")?).join("doc"))
}

fn describe(package: &str) -> Result<(), AnyError> {
    let build = "rustdoc --quiet --lib --all-features -p".split(' ');
    let build: Vec<_> = build.chain([package]).collect();
    let as_json = ["--", "-Z", "unstable-options", "--output-format", "json"];
    cargo(&[&build[..], &as_json].concat())?;
    Ok(())
}

/// The format of a description, which each version of Rust may change.
fn format_of(described: &Path) -> Result<u64, AnyError> {
    let json: Value = serde_json::from_slice(&fs::read(described)?)?;
    json["format_version"]
        .as_u64()
        .ok_or_else(|| format!("{} names no format", described.display()).into())
}

fn items(described: &Path, with_traits: bool) -> Result<PublicApi, AnyError> {
    let api = Builder::from_rustdoc_json(described)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(!with_traits)
        .omit_auto_derived_impls(!with_traits)
        .build()?;
    Ok(api)
}

/// All public items, a line for each, and then the types with the traits that they derive or have
/// by themselves. What any type has is left out.
fn surface(described: &Path) -> Result<String, AnyError> {
    let shown = items(described, false)?.to_string();
    let all = items(described, true)?.to_string();
    let types = traits::of_each_type(&all, &shown);
    let lines = shown.lines().map(str::to_owned).chain(types);
    Ok(lines.map(|line| line + "\n").collect())
}

/// What is compared in another format than the files is not compared at all.
fn require_format(format: u64) -> Result<(), AnyError> {
    let known = u64::from(rustdoc_types::FORMAT_VERSION);
    if format == known {
        return Ok(());
    }
    let message = format!(
        "Nothing was compared: this Rust describes libraries in format {format}, and \
         `tests/surface` reads format {known}. Take the versions of `public-api` and \
         `rustdoc-types` there that read {format}, or the Rust that is named there"
    );
    Err(message.into())
}

/// The lines of one text that the other does not have, behind a sign.
fn gone(one: &str, other: &str, sign: char) -> Vec<String> {
    let other: HashSet<_> = other.lines().collect();
    let gone = one.lines().filter(|line| !other.contains(line));
    gone.map(|line| format!("{sign} {line}")).collect()
}

/// Returns whether the file says what is.
fn compare(package: &str, now: &str, writes: bool) -> Result<bool, AnyError> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{package}.txt"));
    if writes {
        fs::write(&file, now)?;
        return Ok(true);
    }
    let kept = fs::read_to_string(&file)?;
    let changes = [gone(&kept, now, '-'), gone(now, &kept, '+')].concat();
    if !changes.is_empty() {
        println!("{package}:\n{}", changes.join("\n"));
    }
    Ok(changes.is_empty())
}

fn main() -> Result<ExitCode, AnyError> {
    let writes = std::env::args().any(|argument| argument == "--write");
    let descriptions = descriptions()?;
    let mut is_same = true;
    for (package, library) in PACKAGES {
        describe(package)?;
        let described = descriptions.join(format!("{library}.json"));
        require_format(format_of(&described)?)?;
        is_same &= compare(package, &surface(&described)?, writes)?;
    }
    if is_same {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "The public items have changed. If that is meant: cargo run -p dlock-surface -- --write"
    );
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::{gone, require_format};

    #[test]
    fn another_format_is_an_error_and_not_a_pass() {
        let known = u64::from(rustdoc_types::FORMAT_VERSION);
        assert!(require_format(known).is_ok());
        let error = require_format(known + 1).expect_err("another format");
        assert!(error.to_string().contains("Nothing was compared"));
    }

    #[test]
    fn a_change_shows_both_ways() {
        assert_eq!(gone("a\nb", "a", '-'), ["- b"]);
        assert!(gone("a", "a\nb", '-').is_empty());
    }
}
