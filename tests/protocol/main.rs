//! The scripts and statements themselves, held against what `memory:` means.
//!
//! A sequence of steps is drawn from a seed, and run at a real server without an engine.
//! After each step everything is compared with the reference: the answer, who was told
//! of what, who holds the locks and until when, the queue. Nothing is slept through: all
//! times that the server keeps are moved.
//!
//! - `DLOCK_PROTOCOL_SEQUENCES`: how many sequences, for each store
//! - `DLOCK_PROTOCOL_SEED`: one sequence again

#[path = "../support/mod.rs"]
mod support;

mod at_memory;
#[cfg(all(feature = "redis-cluster", feature = "redis-redlock"))]
mod at_redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod at_tables;
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[path = "../databases"]
#[allow(dead_code, reason = "nothing here waits for the disk")]
mod databases {
    pub(crate) mod server;
}
mod late;
#[cfg(feature = "mysql")]
#[path = "../mysql/kind.rs"]
mod mysql;
#[cfg(feature = "postgres")]
#[path = "../postgres/kind.rs"]
mod postgres;
mod reference;
#[allow(dead_code, reason = "not each build has every store")]
mod rules;
mod run;
mod sequence;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite",
    all(feature = "redis-cluster", feature = "redis-redlock")
))]
#[allow(dead_code, reason = "not each store votes")]
mod stores;

use std::time::Duration;

use crate::run::{Outcome, Scene, run};
use crate::sequence::{KEYS, Step, differed, draw, shrink};
use crate::support::wait::HANG;

/// So many of each store, if nothing else is said. A database takes longer.
const SEQUENCES: u64 = 300;
const IN_TABLES: u64 = 100;

/// A sequence that got too late is run again, until it has been run so often.
const ATTEMPTS: u32 = 5;

/// So many shorter ones of one that differs.
const TRIES: usize = 300;

/// In those, what is to be said is waited for this long: it is missing, as a rule.
const SHORT: Duration = Duration::from_millis(500);

fn set(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// What became of the sequences.
#[derive(Debug, Default)]
struct Tally {
    agreed: u64,
    /// Too late each time.
    not_judged: u64,
    /// Times that one was too late.
    late: u64,
    /// Steps of those that agreed.
    steps: usize,
}

/// Draws sequences until one differs, and shows the shortest that does.
async fn agrees(mut scene: impl Scene) -> Tally {
    let name = scene.rules().name;
    let (first, count) = match set("DLOCK_PROTOCOL_SEED") {
        Some(seed) => (seed, 1),
        None => {
            let sequences = match scene.rules().reserved {
                Some(_) => IN_TABLES,
                None => SEQUENCES,
            };
            let sequences = set("DLOCK_PROTOCOL_SEQUENCES").unwrap_or(sequences);
            (fastrand::u64(..1 << 48), sequences)
        }
    };
    let (mut processes, mut tokens, mut tally) = (Vec::new(), [0; KEYS.len()], Tally::default());
    let began = std::time::Instant::now();
    let drawn = (first..first + count).map(|seed| (format!("seed {seed}"), draw(seed)));
    let differed = differed().into_iter().enumerate();
    let differed: Vec<_> = differed
        .map(|(number, steps)| (format!("that differed, {number}"), steps))
        .collect();
    let all = count + differed.len() as u64;
    for (before, (which, steps)) in differed.into_iter().chain(drawn).enumerate() {
        let mut attempts = 0;
        let outcome = loop {
            let outcome = run(&mut scene, &mut processes, &mut tokens, &steps, HANG).await;
            if outcome != Outcome::TooLate {
                break outcome;
            }
            tally.late += 1;
            // These may be told something yet, and clean the tables.
            processes.clear();
            attempts += 1;
            if attempts == ATTEMPTS {
                break outcome;
            }
        };
        match outcome {
            Outcome::Agreed { steps } => {
                tally.agreed += 1;
                tally.steps += steps;
            }
            Outcome::TooLate => tally.not_judged += 1,
            Outcome::Differs(how) => {
                let mut shortest = how.clone();
                let fails = async |steps: &[Step]| {
                    let outcome = run(&mut scene, &mut processes, &mut tokens, steps, SHORT).await;
                    let Outcome::Differs(how) = outcome else {
                        return false;
                    };
                    // What these are told yet is not what the next try is about.
                    processes.clear();
                    shortest = how;
                    true
                };
                shrink(steps, TRIES, fails).await;
                panic!(
                    "{name}, {which}, {before} sequences before it:\n{shortest}\nas it was drawn:\n{how}"
                );
            }
        }
    }
    println!(
        "{name}: {count} sequences from seed {first} in {:?}, {tally:?}",
        began.elapsed()
    );
    // What got too late says nothing, whatever the store does.
    assert!(
        2 * tally.agreed > all && (count > 1 || tally.not_judged == 0),
        "{name}: most sequences from seed {first} got too late, each of {ATTEMPTS} times: {tally:?}"
    );
    tally
}

#[cfg(all(feature = "redis-cluster", feature = "redis-redlock"))]
mod redis_agrees {
    use super::{agrees, at_redis};

    #[tokio::test]
    async fn as_one_server() {
        agrees(at_redis::server().await).await;
    }

    #[tokio::test]
    async fn as_a_cluster() {
        agrees(at_redis::cluster().await).await;
    }

    #[tokio::test]
    async fn as_a_voter() {
        agrees(at_redis::voter().await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_agrees() {
    agrees(at_memory::scene()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres_agrees() {
    agrees(at_tables::postgres().await).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn mysql_agrees() {
    agrees(at_tables::mysql().await).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_agrees() {
    agrees(at_tables::sqlite().await).await;
}
