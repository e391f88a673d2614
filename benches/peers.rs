//! Peers that are no Rust: programs that run beside dlock.
//!
//! `benches/peers/build.sh` builds them. Each is started with the address of a
//! server, a number of tasks, and for how many milliseconds they run; it prints how
//! many sections a second they made.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use dlock_benches::Dlock;
use tokio::process::Command;

use crate::beside::contest::Turn;
use crate::beside::{Effort, compare_with_program};

/// Starting a program takes longer than a slice, though it does not count: there are
/// fewer and longer ones.
const LONGER: u32 = 5;
const ROUNDS: usize = 16;

/// Rows of one task, and of `tasks` with a key each. None if the program is not built.
pub(crate) async fn compare(
    dlock: &Dlock,
    program: &str,
    name: &str,
    address: &str,
    effort: &Effort,
    tasks: usize,
) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
    let path = path.join(program);
    if !path.exists() {
        println!("(no rows beside {name}: `benches/peers/build.sh` builds it)");
        return;
    }
    let effort = Effort {
        rounds: effort.rounds.min(ROUNDS),
        slice: effort.slice * LONGER,
        ..*effort
    };
    let theirs = |tasks| runs(path.clone(), address.to_owned(), tasks, effort.slice);
    compare_with_program(dlock, name, theirs, &effort, tasks).await;
}

fn runs<'a>(program: PathBuf, address: String, tasks: usize, slice: Duration) -> Turn<'a> {
    Box::new(move || {
        let mut program = Command::new(&program);
        program.args([&address, &tasks.to_string(), &slice.as_millis().to_string()]);
        program.stderr(Stdio::inherit()).kill_on_drop(true);
        Box::pin(async move {
            let output = program.output().await.expect("it starts");
            let rate = String::from_utf8(output.stdout).expect("a text");
            rate.trim().parse().expect("a number of sections a second")
        })
    })
}
