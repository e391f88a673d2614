//! Many locks that one process holds and renews.

use std::collections::HashSet;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use dlock::{Config, LockGuard, LockManager};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::Bench;
use crate::counters::Counters;
use crate::report::Row;

/// Renewed at a third of it.
const TTL: Duration = Duration::from_secs(6);

/// So many locks are taken at a time.
const TAKEN_AT_ONCE: usize = 100;

pub(crate) fn held(bench: &Bench) -> Vec<Row> {
    bench.block_on(async {
        let held = bench.effort.held;
        // Those of the managers of the row before may still be ending.
        let others = threads_of_dlock();
        let config = Config::from_url(&bench.url()).expect("a valid URL");
        let manager = LockManager::connect(config.ttl(TTL)).await;
        let manager = manager.expect("a connection");
        let guards = take(&manager, held).await;

        let (start, before) = (Instant::now(), Counters::of(&bench.server).await);
        let used = processor_time();
        tokio::time::sleep(bench.effort.watch).await;
        let used = processor_time() - used;
        let counters = Counters::of(&bench.server).await.since(&before);
        let seconds = start.elapsed().as_secs_f64();

        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        let keepers = threads_of_dlock().difference(&others).count();
        for guard in guards {
            drop(guard);
        }
        manager.shutdown().await;

        let per_second = |count: u64| count as f64 / seconds;
        let renewals = counters.call("evalsha");
        let reads = counters.reads().max(1);
        vec![
            Row::new(
                format!("{held} held locks, ttl of {TTL:?}: renewals"),
                format!("{:.0}/s", per_second(renewals)),
            )
            .bound("one keeper, none lost", lost == 0 && keepers == 1),
            Row::new("… leases lost", lost),
            Row::new("… threads that renew", keepers),
            Row::new(
                "… renewals in one read of the server's",
                format!("{:.0}", renewals as f64 / reads as f64),
            )
            .bound("pipelined", renewals >= reads * 2),
            Row::new(
                "… processor of the holder",
                format!("{:.1} %", used / seconds * 100.0),
            ),
            Row::new(
                "… processor of the server",
                format!("{:.1} %", counters.processor() / seconds * 100.0),
            ),
        ]
    })
}

async fn take(manager: &LockManager, count: usize) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(count);
    for first in (0..count).step_by(TAKEN_AT_ONCE) {
        let last = count.min(first + TAKEN_AT_ONCE);
        let taken: tokio::task::JoinSet<_> = (first..last)
            .map(|number| manager.lock(format!("held:{number}")).acquire())
            .collect();
        let taken = taken.join_all().await.into_iter();
        guards.extend(taken.map(|guard| guard.expect("the lock")));
    }
    guards
}

/// Seconds of processor time of this process.
fn processor_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the usage of this process");
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// The numbers of the threads that dlock has started and that still run.
fn threads_of_dlock() -> HashSet<OsString> {
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let threads = threads.filter_map(Result::ok);
    let of_dlock = threads.filter(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("dlock-"))
    });
    of_dlock.map(|thread| thread.file_name()).collect()
}
