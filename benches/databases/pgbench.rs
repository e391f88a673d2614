//! The same bare pair by PostgreSQL's own `pgbench`, with a session for each client.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use dlock_benches::Dlock;
use tokio::process::Command;

use crate::beside::contest::Turn;
use crate::beside::{Effort, compare_with_program};
use crate::postgres::program;
use crate::support::dir::TempDir;

const PAIR: &str = "\
INSERT INTO bare (name, owner) VALUES ('key:' || :client_id, 'me')
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner;
DELETE FROM bare WHERE name = 'key:' || :client_id AND owner = 'me';
";

/// It runs for whole seconds.
const SLICE: Duration = Duration::from_secs(1);

const ROUNDS: usize = 12;

pub(crate) async fn compare(dlock: &Dlock, port: u16, effort: &Effort, tasks: usize) {
    let folder = TempDir::default();
    let script = folder.path().join("pair.sql");
    std::fs::write(&script, PAIR).expect("our own folder");
    let effort = Effort {
        rounds: effort.rounds.min(ROUNDS),
        slice: SLICE,
        ..*effort
    };
    let theirs = |tasks| runs(&script, port, tasks);
    compare_with_program(dlock, "pgbench", theirs, &effort, tasks).await;
}

fn runs<'a>(script: &Path, port: u16, clients: usize) -> Turn<'a> {
    let seconds = SLICE.as_secs();
    let arguments = format!(
        "-h 127.0.0.1 -p {port} -U postgres -n -M prepared -c {clients} -j 2 -T {seconds} -f"
    );
    let script = script.to_owned();
    Box::new(move || {
        let mut pgbench = Command::new(program("pgbench"));
        pgbench
            .args(arguments.split(' '))
            .arg(&script)
            .arg("postgres");
        pgbench.stderr(Stdio::inherit()).kill_on_drop(true);
        Box::pin(async move {
            let output = pgbench.output().await.expect("it starts");
            let text = String::from_utf8(output.stdout).expect("a text");
            assert!(output.status.success(), "{text}");
            let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
            let rate = rate.and_then(|rate| rate.split(' ').next());
            // It names none if no client got so far, as on a machine that is busy.
            rate.map_or(0.0, |rate| rate.parse().expect("a number"))
        })
    })
}
