//! Contestants that take turns, and how fast each of them was.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use dlock_benches::Locker;
use tokio::task::JoinSet;

use super::Effort;
use super::spread::Spread;

/// A turn of one contestant: how many sections a second it made.
pub(crate) type Turn<'a> = Box<dyn Fn() -> Pin<Box<dyn Future<Output = f64> + 'a>> + 'a>;

/// The rates of each contestant, round by round.
#[derive(Debug)]
pub(crate) struct Rates(pub(crate) Vec<Vec<f64>>);

impl Rates {
    /// How fast a contestant was.
    pub(crate) fn of(&self, contestant: usize) -> Spread {
        Spread::new(self.0[contestant].iter().copied())
    }

    /// How fast the first contestant was beside another, within each round:
    /// what slows the machine down slows them both.
    pub(crate) fn first_beside(&self, other: usize) -> Spread {
        let rounds = self.0[0].iter().zip(&self.0[other]);
        Spread::new(rounds.map(|(first, other)| first / other))
    }
}

/// Lets the contestants take turns, in another order in each round.
pub(crate) async fn take_turns(effort: &Effort, contestants: &[Turn<'_>]) -> Rates {
    let mut rates = vec![Vec::new(); contestants.len()];
    // The first round warms up.
    for round in 0..=effort.rounds {
        for turn in 0..contestants.len() {
            let contestant = (round + turn) % contestants.len();
            let rate = contestants[contestant]().await;
            if round > 0 {
                rates[contestant].push(rate);
            }
        }
    }
    Rates(rates)
}

/// Boxes a turn of [`rate`].
pub(crate) fn turn<'a, L: Locker>(
    locker: &'a L,
    effort: &Effort,
    keys: &'a [&'static str],
) -> Turn<'a> {
    let slice = effort.slice;
    Box::new(move || Box::pin(rate(locker, keys, slice)))
}

/// A task for each key, which runs one empty section after the other: how many
/// sections a second they made together.
async fn rate<L: Locker>(locker: &L, keys: &[&'static str], slice: Duration) -> f64 {
    let end = Instant::now() + slice;
    let mut tasks = JoinSet::new();
    for &key in keys {
        let locker = locker.clone();
        tasks.spawn(async move {
            let mut sections = 0_u32;
            loop {
                locker.section(key, async {}).await;
                if Instant::now() >= end {
                    return sections;
                }
                sections += 1;
            }
        });
    }
    let sections: u32 = tasks.join_all().await.into_iter().sum();
    f64::from(sections) / slice.as_secs_f64()
}
