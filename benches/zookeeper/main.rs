//! What dlock costs on ZooKeeper, beside the lock of the same client crate, in
//! one run.
//!
//!     cargo bench -p dlock-benches --features zookeeper --bench zookeeper
//!
//! It starts a server of its own, which keeps nothing on disk safely: what is
//! measured is the protocol, not the disk. Contestants take turns in short
//! slices; shown is the median of their ratios with the quartiles. Without
//! `--bench`, which `cargo bench` adds, each row is run for a moment.

#[path = "../beside.rs"]
mod beside;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use beside::{Effort, Other, compare};
use dlock_benches::{Dlock, Locker, ZooKeeperLock};
use support::zookeeper::{Setup, ZooKeeperServer};
use tokio::runtime::Runtime;

fn main() {
    let effort = Effort::asked_for(Duration::from_millis(100));
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let server = Setup::default().start().await;
        let url = format!("zookeeper://127.0.0.1:{}", server.port());
        let dlock = Dlock::connect(&url).await;
        let lock = ZooKeeperLock::connect(&url).await;
        compare(&dlock, &lock, Other::Waits, &effort, 16).await;
        let [ours, theirs] = [
            writes(&server, &dlock, effort.sections).await,
            writes(&server, &lock, effort.sections).await,
        ];
        println!("| writes that the servers agree on, for a section | {ours:.2} | {theirs:.2} | |");
    });
}

/// Transactions for each section of a lone task.
async fn writes<L: Locker>(server: &ZooKeeperServer, locker: &L, sections: u32) -> f64 {
    // What is made once.
    locker.section("counted", async {}).await;
    let before = server.transactions();
    for _ in 0..sections {
        locker.section("counted", async {}).await;
    }
    (server.transactions() - before) as f64 / f64::from(sections)
}
