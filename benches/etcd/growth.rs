//! Whether a section costs more when many have been before it: etcd keeps the
//! names of deleted keys until the store is compacted.

use std::time::Instant;

use dlock_benches::Locker;

use crate::support::etcd::EtcdServer;

/// What some sections of a lone task cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) per_second: f64,
    /// The server's processor time for each of them.
    pub(crate) microseconds: f64,
}

/// What the first of so many sections of a lone task cost, and the last: a
/// twentieth of them each.
pub(crate) async fn first_and_last<L: Locker>(
    server: &EtcdServer,
    locker: &L,
    sections: u32,
) -> [Cost; 2] {
    // What is made once.
    locker.section("growing", async {}).await;
    let part = sections / 20;
    let first = run(server, locker, part).await;
    run(server, locker, sections - 2 * part).await;
    [first, run(server, locker, part).await]
}

async fn run<L: Locker>(server: &EtcdServer, locker: &L, sections: u32) -> Cost {
    let processor = async || server.measured("process_cpu_seconds_total", "").await;
    let (before, start) = (processor().await, Instant::now());
    for _ in 0..sections {
        locker.section("growing", async {}).await;
    }
    let took = start.elapsed().as_secs_f64();
    let used = processor().await - before;
    Cost {
        per_second: f64::from(sections) / took,
        microseconds: used * 1e6 / f64::from(sections),
    }
}
