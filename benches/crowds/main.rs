//! Processes that want one key, on every store: how much of the time somebody has the lock, how
//! long they wait, and how long it lies free between two processes.
//!
//!     cargo bench -p dlock-benches --features databases,etcd,memcached,zookeeper --bench crowds [-- <store>…]
//!
//! It starts servers of its own, which do not wait for the disk. The stores take turns, so that
//! what else the machine does hits all of them. Shown is the median of the rounds. Without
//! `--bench`, which `cargo bench` adds, each row is run for a moment.

#[path = "../crowd.rs"]
mod crowd;
#[cfg(feature = "databases")]
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/databases"]
mod databases {
    pub(crate) mod server;
}
#[path = "../heat.rs"]
mod heat;
#[cfg(feature = "databases")]
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/mysql/kind.rs"]
mod mysql;
#[cfg(feature = "databases")]
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/postgres/kind.rs"]
mod postgres;
#[path = "../program.rs"]
mod program;
#[allow(dead_code, reason = "the table of Redis uses more of it")]
#[path = "../table/spread.rs"]
mod spread;
mod stores;
#[path = "../../tests/support/mod.rs"]
mod support;
#[allow(dead_code, reason = "the table of Redis uses more of it")]
#[path = "../table/units.rs"]
mod units;

use std::time::Duration;

use crowd::{Crowd, Work};
use dlock_benches::{Dlock, Locker};
use heat::Heat;
use spread::Spread;
use stores::Site;
use tokio::process::Command;
use tokio::runtime::Runtime;
use units::time;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    warm_up: Duration,
    heat: Duration,
}

const FULL: Effort = Effort {
    rounds: 5,
    warm_up: Duration::from_millis(500),
    heat: Duration::from_secs(3),
};

const SMOKE: Effort = Effort {
    rounds: 1,
    warm_up: Duration::ZERO,
    heat: Duration::from_millis(200),
};

/// The heats of one store.
struct Measured {
    site: Site,
    contended: Vec<Heat>,
    in_turn: Vec<Heat>,
    /// Like `in_turn`, with a long body. A waiter that is not notified then looks less often.
    slow_in_turn: Vec<Heat>,
}

fn main() {
    let arguments = || std::env::args().skip(1);
    let effort = match arguments().any(|argument| argument == "--bench") {
        true => FULL,
        false => SMOKE,
    };
    let wanted: Vec<_> = arguments().filter(|word| !word.starts_with("--")).collect();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let sites = stores::start(|name| wanted.is_empty() || wanted.iter().any(|one| one == name));
        let measured = sites.await.into_iter().map(|site| Measured {
            site,
            contended: Vec::new(),
            in_turn: Vec::new(),
            slow_in_turn: Vec::new(),
        });
        let mut measured: Vec<_> = measured.collect();
        for _ in 0..effort.rounds {
            for Measured {
                site,
                contended,
                in_turn,
                slow_in_turn,
            } in &mut measured
            {
                let body = Duration::from_millis(2);
                contended.push(contend(&site.url, "contended", 4, 16, body, effort).await);
                let body = Duration::from_millis(1);
                in_turn.push(contend(&site.url, "in-turn", 2, 1, body, effort).await);
                let body = Duration::from_millis(100);
                slow_in_turn.push(contend(&site.url, "slow", 2, 1, body, effort).await);
            }
        }
        show(&measured);
    });
}

async fn contend(
    url: &str,
    key: &str,
    processes: usize,
    tasks: usize,
    body: Duration,
    effort: Effort,
) -> Heat {
    let command = || Command::new(env!("CARGO_BIN_EXE_contender"));
    let mut crowd = Crowd::start(processes, command, Dlock::NAME, url).await;
    let work = Work {
        tasks,
        body,
        warm_up: effort.warm_up,
        heat: effort.heat,
    };
    let heat = crowd.contend(key, work).await;
    crowd.end().await;
    heat
}

fn show(measured: &[Measured]) {
    println!(
        "| store | 4 × 16 tasks, 2 ms: lock in use | wait, p50 | wait, p99 | p99 ÷ p50 | 2 in turn, 1 ms: hand-over, p50 | p99 | 2 in turn, 100 ms: hand-over, p50 | p99 |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for one in measured {
        let median =
            |heats: &[Heat], of: &dyn Fn(&Heat) -> f64| Spread::new(heats.iter().map(of)).median();
        let wait = |part: f64| median(&one.contended, &|heat| heat.waits().quantile(part));
        let spread = median(&one.contended, &|heat| {
            heat.waits().quantile(0.99) / heat.waits().median()
        });
        let hand_over =
            |heats: &[Heat], part: f64| median(heats, &|heat| heat.hand_overs().quantile(part));
        println!(
            "| {} | {:.1} % | {} | {} | {spread:.1} | {} | {} | {} | {} |",
            one.site.name,
            100.0 * median(&one.contended, &Heat::in_use),
            time(wait(0.5)),
            time(wait(0.99)),
            time(hand_over(&one.in_turn, 0.5)),
            time(hand_over(&one.in_turn, 0.99)),
            time(hand_over(&one.slow_in_turn, 0.5)),
            time(hand_over(&one.slow_in_turn, 0.99)),
        );
    }
}
