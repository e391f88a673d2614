//! Rows beside a peer that is no Rust: a program of its own, which
//! `benches/peers/build.sh` builds.

use std::path::Path;

use dlock_benches::Dlock;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::beside::contest::Turn;
use crate::beside::{Effort, compare_with_program};
use crate::program::Program;

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
    let program = Program::start(Command::new(path), "mutex", address).await;
    let name = format!("{name} {}", program.version());
    let program = Mutex::new(program);
    let theirs = |tasks| runs(&program, tasks, effort);
    compare_with_program(dlock, &name, theirs, effort, tasks).await;
    let status = program.into_inner().end().await;
    assert!(status.success(), "{name} failed: {status}");
}

fn runs<'a>(program: &'a Mutex<Program>, tasks: usize, effort: &Effort) -> Turn<'a> {
    let slice = effort.slice;
    Box::new(move || {
        Box::pin(async move { program.lock().await.rate("peer", tasks, tasks, slice).await })
    })
}
