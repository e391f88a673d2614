//! The commands of a critical section, as Redis counted them.

use dlock_benches::{Bare, Dlock, Locker, Rslock};
use tokio::task::JoinSet;

use crate::Bench;
use crate::counters::Counters;
use crate::report::Row;

const SECTIONS: usize = 1000;

pub(crate) fn per_section(bench: &Bench) -> Vec<Row> {
    bench.block_on(async {
        let url = bench.url();
        let dlock = Dlock::connect(&url).await;
        let bare = Bare::connect(&url).await;
        let rslock = Rslock::connect(&url).await;
        let lone = |_| "counted".to_owned();
        let own = |task| format!("counted:{task}");
        let alone = count(bench, &dlock, 1, lone).await;
        vec![
            Row::new("round trips of a section", format!("{:.2}", alone.reads))
                .bare(format!("{:.2}", count(bench, &bare, 1, lone).await.reads))
                .rslock(format!("{:.2}", count(bench, &rslock, 1, lone).await.reads))
                .bound("2", alone.reads < 2.01),
            Row::new("commands of a section, 1 task", alone.calls)
                .bare(count(bench, &bare, 1, lone).await.calls)
                .rslock(count(bench, &rslock, 1, lone).await.calls),
            Row::new(
                "… 64 tasks, 64 keys",
                count(bench, &dlock, 64, own).await.calls,
            ),
            Row::new(
                "… 64 tasks, one key",
                count(bench, &dlock, 64, lone).await.calls,
            ),
        ]
    })
}

struct Cost {
    reads: f64,
    calls: String,
}

/// What a section costs the server while `tasks` run one after the other.
async fn count<L: Locker>(
    bench: &Bench,
    locker: &L,
    tasks: usize,
    key: fn(usize) -> String,
) -> Cost {
    run(locker, tasks, key).await;
    let before = Counters::of(&bench.server).await;
    // What a connection for counting reads.
    let asking = Counters::of(&bench.server).await.since(&before).reads();
    let before = Counters::of(&bench.server).await;
    run(locker, tasks, key).await;
    let counters = Counters::of(&bench.server).await.since(&before);
    let sections = (tasks * SECTIONS) as f64;
    let calls = counters.calls().iter().filter_map(|(name, calls)| {
        let calls = (*calls as f64 / sections * 100.0).round() / 100.0;
        (calls > 0.0).then(|| format!("{name} {calls}"))
    });
    Cost {
        reads: counters.reads().saturating_sub(asking) as f64 / sections,
        calls: calls.collect::<Vec<_>>().join(", "),
    }
}

async fn run<L: Locker>(locker: &L, tasks: usize, key: fn(usize) -> String) {
    let sections: JoinSet<_> = (0..tasks)
        .map(|task| {
            let (locker, key) = (locker.clone(), key(task));
            async move {
                for _ in 0..SECTIONS {
                    locker.section(&key, async {}).await;
                }
            }
        })
        .collect();
    sections.join_all().await;
}
