//! The programs of this package's examples. No part of `support`, which other
//! packages share: they have neither these examples nor these features.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// The features of this package, and whether this test was built with them.
macro_rules! features {
    ($($name:literal)*) => { [$(($name, cfg!(feature = $name))),*] };
}

/// An example's program, built from the sources as they are.
///
/// Built with what this test was built with: then little but the example is left
/// to build, and nothing at all where `cargo test` has built the examples too.
#[allow(
    unexpected_cfgs,
    reason = "other packages use this folder, and have no such feature"
)]
pub(crate) fn example(name: &str) -> PathBuf {
    let features = features! {
        "axum" "etcd" "memcached" "metrics" "mysql" "postgres" "redis" "redis-cluster"
        "redis-redlock" "redis-sentinel" "sqlite" "tls" "zookeeper"
    };
    let known = features.iter().filter(|(_, known)| *known);
    let known: Vec<_> = known.map(|(name, _)| *name).collect();
    let known_ones = known.join(",");
    let target = match known.len() == features.len() {
        true => {
            // The packages that a run leaves out decide the features of what the others use.
            let left_out = std::env::var("DLOCK_LEFT_OUT").unwrap_or_default();
            let left_out = left_out.split_whitespace();
            let mut what = vec!["--example", name, "--workspace", "--all-features"];
            what.extend(left_out.flat_map(|package| ["--exclude", package]));
            built(&what)
        }
        false => built(
            &[
                &["--example", name, "-p", "dlock-rs", "-p", "dlock-runtime"][..],
                &["--no-default-features", "--features", &known_ones],
            ]
            .concat(),
        ),
    };
    target.join("debug/examples").join(name)
}

/// Has cargo build this, once for each test program, and returns the folder of all that it builds.
pub(crate) fn built(what: &[&str]) -> PathBuf {
    // Cargo takes seconds of a processor to find that there is nothing to build.
    static BUILT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // This test is <target>/<profile>/deps/<name>.
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("the target directory");
    let mut before = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if before.contains(&what.join(" ")) {
        return target.to_owned();
    }
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--quiet", "--target-dir"])
        .arg(target)
        .args(what);
    // What cargo tells this test of its package would be told to build scripts of
    // others (`ring` asks), and have them built anew: under whoever uses them now.
    for (name, _) in std::env::vars_os() {
        let own = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if own
            .iter()
            .any(|own| name.to_string_lossy().starts_with(own))
        {
            build.env_remove(&name);
        }
    }
    let built = build.output().expect("cargo");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    before.insert(what.join(" "));
    target.to_owned()
}

/// What became of it, run with nothing else said.
pub(crate) fn run(name: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(example(name));
    let output = program.args(arguments).env_remove("DLOCK_URL").output();
    output.expect("the example")
}

/// What it is told wrong it explains: for each, the words by which it does.
#[allow(dead_code, reason = "a store's own tests run one that is told right")]
pub(crate) fn explains(name: &str, wrong: &[(&[&str], &[&str])]) {
    for (arguments, says) in wrong {
        let output = run(name, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        let explained = says.iter().all(|word| errors.contains(word));
        let well = explained && !errors.contains("panicked");
        assert!(well, "{arguments:?}: {errors}");
    }
}
