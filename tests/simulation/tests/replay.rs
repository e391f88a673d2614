//! A seed decides a run: it is the same in every process, to the byte.

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    let simulation = Command::new(env!("CARGO_BIN_EXE_dlock-simulation"))
        .args(arguments)
        .output();
    simulation.expect("the simulation runs")
}

#[test]
fn a_seed_is_replayed_to_the_byte() {
    for store in ["queue", "polling", "sessions", "database", "quorum"] {
        for seed in ["3", "20", "88", "1712"] {
            let replay = || simulate(&["--store", store, "--seed", seed, "--trace"]);
            let [one, other] = [replay(), replay()];
            assert!(one.stdout.len() > 10_000, "there is something to compare");
            assert!(one.stdout == other.stdout, "seed {seed} on {store}");
        }
    }
}

#[test]
fn some_seeds_hold() {
    let run = simulate(&["--seeds", "40", "--from", "1000"]);
    let shown = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{shown}");
}

/// Threads share nothing but the list of seeds.
#[test]
fn seeds_run_side_by_side_as_alone() {
    let shown = |jobs| {
        let run = simulate(&["--seeds", "16", "--from", "2000", "--jobs", jobs]);
        assert!(run.status.success(), "{run:?}");
        run.stdout
    };
    assert!(shown("1") == shown("3"));
}

#[test]
fn what_is_asked_wrongly_is_told() {
    let run = simulate(&["--store", "no such store"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("Usage"));
}
