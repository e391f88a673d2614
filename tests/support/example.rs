//! The programs of this package's examples. No part of `support`, which other
//! packages share: they have neither these examples nor these features.

use std::path::PathBuf;
use std::process::Command;

/// An example's program, built from the sources as they are.
#[allow(
    unexpected_cfgs,
    reason = "other packages use this folder, and have no such feature"
)]
pub(crate) fn example(name: &str) -> PathBuf {
    // This test is <target>/<profile>/deps/<name>.
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("the target directory");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--quiet", "--example", name, "--target-dir"])
        .arg(target);
    // What cargo tells this test of its package would be told to build scripts of
    // others (`ring` asks), and have them built anew: under whoever uses them now.
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|own| shown.starts_with(own))
        {
            build.env_remove(&name);
        }
    }
    // The stores that this test knows.
    let stores = [
        ("etcd", cfg!(feature = "etcd")),
        ("memcached", cfg!(feature = "memcached")),
        ("mysql", cfg!(feature = "mysql")),
        ("postgres", cfg!(feature = "postgres")),
        ("redis", cfg!(feature = "redis")),
        ("sqlite", cfg!(feature = "sqlite")),
        ("tls", cfg!(feature = "tls")),
        ("zookeeper", cfg!(feature = "zookeeper")),
    ];
    let stores = stores.iter().filter(|(_, known)| *known);
    let stores: Vec<_> = stores.map(|(name, _)| *name).collect();
    build.args(["--no-default-features", "--features", &stores.join(",")]);
    let built = build.output().expect("cargo");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    target.join("debug/examples").join(name)
}
