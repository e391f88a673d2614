//! Compares the public items of the packages with the files of this package, so that a change
//! of the surface shows in review.
//!
//! ```text
//! cargo run -p dlock-surface               # what has changed
//! cargo run -p dlock-surface -- --write    # the files are made anew
//! ```

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

/// All public items, a line for each. What any type has, and derives, is left out.
fn surface(described: &Path) -> Result<PublicApi, AnyError> {
    let api = Builder::from_rustdoc_json(described)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api)
}

/// The lines of one text that the other does not have, behind a sign.
fn gone(one: &str, other: &str, sign: char) -> Vec<String> {
    let other: HashSet<_> = other.lines().collect();
    let gone = one.lines().filter(|line| !other.contains(line));
    gone.map(|line| format!("{sign} {line}")).collect()
}

/// Returns whether the file says what is.
fn compare(package: &str, api: &PublicApi, writes: bool) -> Result<bool, AnyError> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{package}.txt"));
    let now = api.to_string();
    if writes {
        fs::write(&file, now)?;
        return Ok(true);
    }
    let kept = fs::read_to_string(&file)?;
    let changes = [gone(&kept, &now, '-'), gone(&now, &kept, '+')].concat();
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
        let format = format_of(&described)?;
        if format != u64::from(rustdoc_types::FORMAT_VERSION) {
            println!(
                "Not compared: this Rust describes libraries in format {format}, and the \
                 files are compared in format {}",
                rustdoc_types::FORMAT_VERSION
            );
            return Ok(ExitCode::SUCCESS);
        }
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
