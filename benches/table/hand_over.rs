//! From the end of one process's body to the begin of another's that waits.

use std::time::Duration;

use dlock_benches::{Bare, Dlock, Locker, Rslock};

use crate::Bench;
use crate::children::Crowd;
use crate::report::Row;
use crate::spread::Spread;
use crate::units::time;

pub(crate) fn between_two(bench: &Bench) -> Vec<Row> {
    let [dlock, bare, rslock] = [Dlock::NAME, Bare::NAME, Rslock::NAME].map(|contestant| {
        let crowd = Crowd {
            contestant,
            processes: 2,
            tasks: 1,
            body: Duration::from_millis(1),
        };
        let heats = (0..bench.effort.heats).map(|_| bench.block_on(crowd.contend(bench)));
        let waits: Vec<Spread> = heats.map(|heat| heat.hand_overs()).collect();
        [0.5, 0.99]
            .map(|part| Spread::new(waits.iter().map(|waits| waits.quantile(part))).median())
            .map(time)
            .join(" / ")
    });
    vec![
        Row::new("hand-over between 2 processes: median / p99", dlock)
            .bare(bare)
            .rslock(rslock),
    ]
}
