//! What dlock costs on etcd, beside the Lock call of etcd's own server, in one
//! run.
//!
//!     cargo bench -p dlock-benches --features etcd --bench etcd
//!
//! It starts an `etcd` of its own, which keeps nothing on disk safely: what is
//! measured is the protocol, not the disk. Contestants take turns in short
//! slices; shown is the median of their ratios with the quartiles. Without
//! `--bench`, which `cargo bench` adds, each row is run for a moment.

#[path = "../beside.rs"]
mod beside;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use beside::{Effort, Other, compare};
use dlock_benches::{Dlock, EtcdLock, Locker};
use support::etcd::{EtcdServer, etcd_url};
use tokio::runtime::Runtime;

fn main() {
    let effort = Effort::asked_for(Duration::from_millis(100));
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let server = EtcdServer::start().await;
        let url = etcd_url(&[server.port()]);
        let (dlock, lock) = (Dlock::connect(&url).await, EtcdLock::connect(&url).await);
        compare(&dlock, &lock, Other::Waits, &effort, 16).await;
        let [ours, theirs] = [
            writes(&server, &dlock, effort.sections).await,
            writes(&server, &lock, effort.sections).await,
        ];
        println!("| writes that the members agree on, for a section | {ours:.2} | {theirs:.2} | |");
    });
}

/// Proposals to the cluster for each section of a lone task.
async fn writes<L: Locker>(server: &EtcdServer, locker: &L, sections: u32) -> f64 {
    let proposals = async || {
        server
            .metric("etcd_server_proposals_committed_total", "")
            .await
    };
    // What is made once.
    locker.section("counted", async {}).await;
    let before = proposals().await;
    for _ in 0..sections {
        locker.section("counted", async {}).await;
    }
    (proposals().await - before) as f64 / f64::from(sections)
}
