//! dlock beside the locks of other languages: Redisson, redsync, bsm/redislock and
//! rueidislock on Redis, and Curator on ZooKeeper.
//!
//!     benches/peers/build.sh
//!     cargo bench -p dlock-benches --features zookeeper --bench peers \
//!         [-- <part of a row's name>… --picture docs/benchmarks.svg]
//!
//! It starts a `redis-server` and a ZooKeeper of its own, which keep nothing on disk
//! safely. Each lock is used in a program of its own, dlock too, and all are told the same
//! (see `program.rs`). They take turns; shown is the median of the rounds, and the median and
//! the quartiles of the ratios within each round. Without `--bench`, which `cargo bench`
//! adds, each row is run for a moment and nothing is shown.

#[allow(dead_code, reason = "dlock is a program here as all others are")]
#[path = "../table/contest.rs"]
mod contest;
mod contestant;
#[path = "../crowd.rs"]
mod crowd;
mod crowds;
#[path = "../heat.rs"]
mod heat;
mod line;
mod page;
mod picture;
#[path = "../program.rs"]
mod program;
mod rates;
mod site;
#[allow(dead_code, reason = "the table of Redis uses more of it")]
#[path = "../table/spread.rs"]
mod spread;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../table/units.rs"]
mod units;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Runtime;

use site::Site;
use support::redis::RedisServer;
use support::zookeeper::Setup;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// What is compiled while it runs is run for so long before it is measured.
    pub(crate) practice: Duration,
    /// Rounds of turns, and how long a turn is.
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// Rounds of a contest of processes, how long they contend in each before it
    /// counts, and how long it does.
    pub(crate) heats: usize,
    pub(crate) warm_up: Duration,
    pub(crate) heat: Duration,
}

impl Effort {
    const FULL: Self = Self {
        practice: Duration::from_secs(3),
        rounds: 16,
        slice: Duration::from_millis(400),
        heats: 5,
        warm_up: Duration::from_millis(400),
        heat: Duration::from_secs(3),
    };

    /// Enough to see that everything works.
    const SMOKE: Self = Self {
        practice: Duration::from_millis(5),
        rounds: 1,
        slice: Duration::from_millis(5),
        heats: 1,
        warm_up: Duration::ZERO,
        heat: Duration::from_millis(200),
    };
}

/// What the command line asks for.
struct Asked {
    measured: bool,
    effort: Effort,
    /// Words of the rows; none are all.
    wanted: Vec<String>,
    picture: Option<PathBuf>,
}

impl Asked {
    fn of(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut asked = Self {
            measured: false,
            effort: Effort::SMOKE,
            wanted: Vec::new(),
            picture: None,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => (asked.measured, asked.effort) = (true, Effort::FULL),
                "--picture" => {
                    let path = arguments.next().expect("a file behind --picture");
                    // A bench is run in the folder of its package.
                    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
                    asked.picture = Some(root.join(path));
                }
                // What `cargo test` passes on is for tests.
                option if option.starts_with('-') => {}
                _ => asked.wanted.push(argument),
            }
        }
        asked
    }

    fn wants(&self, row: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|word| row.contains(word))
    }
}

fn main() {
    let asked = Asked::of(std::env::args().skip(1));
    let runtime = Runtime::new().expect("a runtime");
    let tables = runtime.block_on(async {
        let redis = RedisServer::start().await;
        let on_redis = Site::redis(&redis).await.measure(&asked).await;
        drop(redis);
        let zookeeper = Setup::default().start().await;
        [on_redis, Site::zookeeper(&zookeeper).measure(&asked).await]
    });
    let picture = picture::draw(&tables);
    if !asked.measured {
        let rows: usize = tables.iter().map(|table| table.lines.len()).sum();
        println!("{rows} rows ran; `cargo bench -p dlock-benches --bench peers` measures");
        return;
    }
    page::print(&tables);
    if let Some(path) = asked.picture {
        std::fs::write(&path, picture).expect("a file that can be written");
    }
}
