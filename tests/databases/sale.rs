//! The example `flash_sale`, whose processes share a database.

use dlock_conformance::Store;

use super::{Database, DatabaseStore};
use crate::example::example;
use crate::support::process::command;
use crate::support::program::Program;

pub(crate) async fn a_flash_sale_sells_exactly_the_stock<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    let program = tokio::task::spawn_blocking(|| example("flash_sale"));
    let mut sale = command(program.await.expect("the example"));
    sale.args([
        "--orders",
        "400",
        "--processes",
        "4",
        "--store",
        &store.url(),
    ]);
    sale.env("DLOCK_REQUEST_TIMEOUT", "15s");
    let output = Program::start(sale).end().await;
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    let says = "Nothing was sold twice.";
    assert!(printed.contains(says), "{printed}{errors}");
    let failed = printed.lines().any(|line| {
        let line = line.trim();
        line.starts_with("failed") || line.starts_with("lost")
    });
    assert!(!failed, "{printed}{errors}");
}
