//! What a call needs of memory, as counted by a program of its own.

use std::collections::HashMap;

use tokio::process::Command;

use crate::Bench;
use crate::report::Row;

pub(crate) fn of_a_call(bench: &Bench) -> Vec<Row> {
    let output = bench.block_on(async {
        let counted = Command::new(env!("CARGO_BIN_EXE_footprint"))
            .env("DLOCK_URL", bench.url())
            .kill_on_drop(true)
            .output();
        counted.await.expect("the program that counts")
    });
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    let figures: HashMap<(&str, &str), Vec<&str>> = printed
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_default();
            ((word(), word()), words.collect())
        })
        .collect();
    let size = |what| figures[&("size", what)][0].to_owned();
    let calls = |what| match figures[&("calls", what)][..] {
        [calls, bytes] => format!("{calls} ({bytes} bytes)"),
        _ => panic!("not understood: {printed}"),
    };
    vec![
        Row::new(
            "future of an annotated function, and of its body",
            format!("{} and {} bytes", size("annotated"), size("body")),
        ),
        Row::new("allocations of a section on Redis", calls("dlock"))
            .bare(calls("bare"))
            .rslock(calls("rslock")),
        Row::new("… on `memory:`", calls("memory")),
        Row::new("… on `memory:`, annotated", calls("annotated")),
        Row::new("… of a re-entry", calls("reentry")),
    ]
}
