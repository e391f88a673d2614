//! The same bare pair by PostgreSQL's own `pgbench`, with a session for each client.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use dlock_benches::Dlock;
use tokio::process::Command;

use crate::beside::Effort;
use crate::beside::contest::{Turn, take_turns, turn};
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
    println!("| work | dlock | pgbench | dlock ÷ pgbench (quartiles) |");
    println!("| --- | --- | --- | --- |");
    let keys: Vec<&'static str> = (0..tasks)
        .map(|key| &*format!("key:{key}").leak())
        .collect();
    for (work, keys) in [
        ("1 task".to_owned(), &keys[..1]),
        (format!("{tasks} tasks, {tasks} keys"), &keys[..]),
    ] {
        let theirs = runs(&script, port, keys.len());
        let rates = take_turns(&effort, &[turn(dlock, &effort, keys), theirs]).await;
        let [ours, theirs] = [0, 1].map(|who| rates.of(who).median());
        let ratio = rates.first_beside(1);
        println!("| {work} | {ours:.0}/s | {theirs:.0}/s | {ratio} |");
    }
}

fn runs<'a>(script: &Path, port: u16, clients: usize) -> Turn<'a> {
    let clients = clients.to_string();
    let arguments = ["-h", "127.0.0.1", "-U", "postgres", "-n", "-M", "prepared"];
    let seconds = SLICE.as_secs().to_string();
    let arguments = arguments.map(str::to_owned).into_iter().chain(
        [
            "-p",
            &port.to_string(),
            "-c",
            &clients,
            "-j",
            "2",
            "-T",
            &seconds,
            "-f",
        ]
        .map(str::to_owned),
    );
    let arguments: Vec<_> = arguments.collect();
    let script = script.to_owned();
    Box::new(move || {
        let mut pgbench = Command::new("pgbench");
        pgbench.args(&arguments).arg(&script).arg("postgres");
        pgbench.stderr(Stdio::inherit()).kill_on_drop(true);
        Box::pin(async move {
            let output = pgbench.output().await.expect("it starts");
            let text = String::from_utf8(output.stdout).expect("a text");
            let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
            let rate = rate.and_then(|rate| rate.split(' ').next());
            rate.expect("a rate").parse().expect("a number")
        })
    })
}
