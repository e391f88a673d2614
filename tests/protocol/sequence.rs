//! Sequences of steps, drawn from a seed. Each step means something after whatever
//! came before it, so that any of them may be left out.

use std::time::Duration;

use dlock::backend::Mode;
use dlock::store::{Ending, Want};
use fastrand::Rng;

pub(crate) const KEYS: [&str; 2] = ["stock:1", "stock:2"];
pub(crate) const PROCESSES: usize = 3;
/// Each belongs to one process, in turns, and has one request at a time.
pub(crate) const CLIENTS: usize = 9;

const LENGTH: usize = 45;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Asks for the lock; if its last request has not ended, once more for that.
    Take {
        client: usize,
        key: usize,
        mode: Mode,
        ttl: u64,
        want: Want,
    },
    /// A question that comes late: its request has ended.
    TakeLate {
        client: usize,
        want: Want,
    },
    /// All that this process has ever asked for, in one go.
    Renew {
        process: usize,
    },
    /// Whatever became of its last request.
    Release {
        client: usize,
        ending: Ending,
    },
    /// A process looks at what it waits for, and may show that it is alive.
    Look {
        process: usize,
        beat: bool,
    },
    Farewell {
        process: usize,
    },
    /// Its connections break, and it does nothing any more.
    Die {
        process: usize,
    },
    /// This one and those in the mask are known to their process no more, which was told
    /// of a grant to the one.
    Disown {
        client: usize,
        unknown: u16,
    },
    /// What has been done.
    Forget {
        key: usize,
    },
    Inspect {
        key: usize,
    },
    List,
    Pass {
        ms: u64,
    },
}

/// Those in which a store differed once, as short as they were then.
pub(crate) fn differed() -> Vec<Vec<Step>> {
    let take = |client, has_place: bool| Step::Take {
        client,
        key: 0,
        mode: Mode::Write,
        ttl: 60_000,
        want: Want::Queue {
            beat: client == 8 && !has_place,
            has_place,
        },
    };
    let release = Step::Release {
        client: 6,
        ending: Ending::Released,
    };
    // The turn of 8 comes when 1, of a process without a sign of life, waits behind it.
    vec![vec![
        take(6, false),
        take(8, false),
        release,
        take(1, false),
        take(8, true),
    ]]
}

pub(crate) fn draw(seed: u64) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    // Some sequences have nothing but writers.
    let readers = rng.u8(0..3);
    (0..LENGTH).map(|_| draw_step(&mut rng, readers)).collect()
}

fn draw_step(rng: &mut Rng, readers: u8) -> Step {
    let client = rng.usize(..CLIENTS);
    let process = rng.usize(..PROCESSES);
    let key = usize::from(rng.u8(0..10) == 0);
    match rng.u8(0..100) {
        0..34 => Step::Take {
            client,
            key,
            mode: match rng.u8(0..4) < readers {
                true => pick(
                    rng,
                    &[
                        Mode::Read,
                        Mode::Permits(1),
                        Mode::Permits(2),
                        Mode::Permits(3),
                    ],
                ),
                false => Mode::Write,
            },
            ttl: pick(rng, &[2_000, 5_000, 10_000, 30_000, 60_000]),
            want: want(rng),
        },
        34..37 => Step::TakeLate {
            client,
            want: want(rng),
        },
        37..43 => Step::Renew { process },
        43..63 => Step::Release {
            client,
            ending: match rng.u8(0..10) {
                0 => Ending::Left,
                1 => Ending::Outvoted,
                2 | 3 => Ending::Done(Duration::from_millis(pick(
                    rng,
                    &[2_000, 5_000, 20_000, 100_000],
                ))),
                _ => Ending::Released,
            },
        },
        63..71 => Step::Look {
            process,
            beat: rng.u8(0..3) > 0,
        },
        71..73 => Step::Farewell { process },
        73..75 => Step::Die { process },
        75..78 => Step::Disown {
            client,
            unknown: rng.u16(..),
        },
        78..82 => Step::Inspect { key },
        82 => Step::List,
        83 => Step::Forget { key },
        _ => Step::Pass {
            ms: match rng.u8(0..8) {
                0..3 => rng.u64(100..1_500),
                3..5 => rng.u64(1_000..5_000),
                5 | 6 => rng.u64(3_000..12_000),
                _ => rng.u64(10_000..70_000),
            },
        },
    }
}

fn want(rng: &mut Rng) -> Want {
    match rng.u8(0..10) {
        0..3 => Want::First,
        3..5 => Want::Try,
        _ => Want::Queue {
            beat: rng.bool(),
            has_place: rng.bool(),
        },
    }
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// Looks for shorter sequences that fail too: pieces are left out for as long as that
/// helps, within so many tries.
pub(crate) async fn shrink(
    mut steps: Vec<Step>,
    mut tries: usize,
    mut fails: impl AsyncFnMut(&[Step]) -> bool,
) {
    let mut piece = steps.len() / 2;
    while piece > 0 {
        let (mut at, mut shorter) = (0, false);
        while at < steps.len() && tries > 0 {
            let mut without = steps.clone();
            without.drain(at..(at + piece).min(steps.len()));
            tries -= 1;
            if fails(&without).await {
                steps = without;
                shorter = true;
            } else {
                at += piece;
            }
        }
        if piece > 1 || !shorter {
            piece /= 2;
        }
    }
}
