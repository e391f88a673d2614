//! Four processes of 16 tasks each, all on one key, with a body of 2 ms.

use std::time::Duration;

use dlock_benches::{Bare, Dlock, Locker, Rslock};

use crate::Bench;
use crate::children::Crowd;
use crate::heat::Heat;
use crate::report::Row;
use crate::spread::Spread;
use crate::units::{per_second, time};

const CONTESTANTS: [&str; 3] = [Dlock::NAME, Bare::NAME, Rslock::NAME];

pub(crate) fn contended(bench: &Bench) -> Vec<Row> {
    let mut heats: [Vec<Heat>; 3] = Default::default();
    for _ in 0..bench.effort.heats {
        for (contestant, heats) in CONTESTANTS.into_iter().zip(&mut heats) {
            let crowd = Crowd {
                contestant,
                processes: 4,
                tasks: 16,
                body: Duration::from_millis(2),
            };
            heats.push(bench.block_on(crowd.contend(bench)));
        }
    }
    // The median over the heats of some figure of each.
    let all = |of: &dyn Fn(&Heat) -> f64| {
        heats
            .each_ref()
            .map(|heats| Spread::new(heats.iter().map(of)).median())
    };
    let row = |work: &str, shown: [String; 3]| {
        let [dlock, bare, rslock] = shown;
        Row::new(work, dlock).bare(bare).rslock(rslock)
    };

    let in_use = all(&Heat::in_use);
    let rates = all(&Heat::rate);
    let wait = |part: f64| all(&|heat| heat.waits().quantile(part));
    let waits = [wait(0.5), wait(0.99), wait(1.0)];
    let spread = all(&|heat| heat.waits().quantile(0.99) / heat.waits().median());
    let least = all(&|heat| heat.shares().min());
    let most = all(&|heat| heat.shares().max());
    vec![
        row(
            "4 processes × 16 tasks, body of 2 ms: lock in use",
            in_use.map(|part| format!("{:.1} %", part * 100.0)),
        )
        .bound("≥ 95 %", in_use[0] >= 0.95),
        row("… sections", rates.map(per_second)),
        row(
            "… wait: median / p99 / longest",
            std::array::from_fn(|who| waits.map(|wait| time(wait[who])).join(" / ")),
        ),
        row(
            "… p99 ÷ median of the waits",
            spread.map(|spread| match spread {
                spread if spread < 100.0 => format!("{spread:.2}"),
                // Some got it at once each time, and others hardly ever.
                _ => "> 100".to_owned(),
            }),
        )
        .bound("≤ 2", spread[0] <= 2.0),
        row(
            "… sections of each process",
            std::array::from_fn(|who| format!("{} to {}", least[who], most[who])),
        ),
    ]
}
