//! What dlock costs on etcd, beside the Lock call of etcd's own server and
//! beside Go's `concurrency.Mutex`: its recipe through the same client, and itself.
//!
//!     benches/peers/build.sh
//!     cargo bench -p dlock-benches --features etcd --bench etcd
//!
//! It starts an `etcd` of its own, which keeps nothing on disk safely: what is
//! measured is the protocol, not the disk. Contestants take turns in short
//! slices; shown is the median of their ratios with the quartiles. Without
//! `--bench`, which `cargo bench` adds, each row is run for a moment.

#[path = "../beside.rs"]
mod beside;
mod growth;
mod in_turn;
#[path = "../peers.rs"]
mod peers;
#[allow(dead_code, reason = "here it does not contend")]
#[path = "../program.rs"]
mod program;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use beside::{Effort, Other, compare};
use dlock_benches::{Dlock, EtcdLock, EtcdMutex, Locker};
use support::etcd::{EtcdServer, etcd_url};
use tokio::runtime::Runtime;

/// For each section whose writes are counted, so many are run one after the
/// other to see what becomes of them.
const GROWTH: u32 = 40;

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
        println!();
        let mutex = EtcdMutex::connect(&url).await;
        compare(&dlock, &mutex, Other::DoesNotWait, &effort, 64).await;
        in_turn::<EtcdMutex>(&url, effort.sections / 5).await;
        grown(&effort).await;
        println!();
        let address = format!("127.0.0.1:{}", server.port());
        peers::compare(&dlock, "etcd-mutex", "Go's Mutex", &address, &effort, 64).await;
    });
}

async fn in_turn<L: Locker>(url: &str, sections: u32) {
    let [ours, theirs] = [
        in_turn::hand_overs::<Dlock>(url, sections).await,
        in_turn::hand_overs::<L>(url, sections).await,
    ]
    .map(|waits| [waits.median(), waits.quantile(0.99)].map(|wait| format!("{wait:.1}")));
    println!(
        "| 2 processes in turn, 2 ms each, beside others: hand-over, median / p99 | {} ms | {} ms | |",
        ours.join(" / "),
        theirs.join(" / ")
    );
}

/// Each on a server of its own, in which nothing has been deleted yet.
async fn grown(effort: &Effort) {
    let sections = effort.sections * GROWTH;
    let ours = grown_of::<Dlock>(sections).await;
    let theirs = grown_of::<EtcdMutex>(sections).await;
    let row = |what: &str, unit: &str, of: &dyn Fn(growth::Cost) -> f64| {
        let shown = [ours, theirs].map(|costs| {
            let [first, last] = costs.map(of);
            format!("{first:.0}{unit} → {last:.0}{unit}")
        });
        println!("| {what} | {} | |", shown.join(" | "));
    };
    let part = sections / 20;
    let what = format!("{sections} sections of 1 task: the first {part} → the last");
    row(&what, "/s", &|cost| cost.per_second);
    row("… the server's processor, for each", " µs", &|cost| {
        cost.microseconds
    });
}

async fn grown_of<L: Locker>(sections: u32) -> [growth::Cost; 2] {
    let server = EtcdServer::start().await;
    let locker = L::connect(&etcd_url(&[server.port()])).await;
    growth::first_and_last(&server, &locker, sections).await
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
