//! The example `transfer`.

use std::process::Output;

use crate::example::{explains, run};

/// The number behind this label.
fn number(output: &Output, label: &str) -> i64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix(label)?.trim_start();
        let number = rest.split(|end: char| !end.is_ascii_digit()).next()?;
        number.parse().ok()
    });
    lines
        .next()
        .unwrap_or_else(|| panic!("no `{label}` in {text}"))
}

#[test]
fn transfers_in_all_directions_end_and_add_up() {
    let output = run("transfer", &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(number(&output, "stuck, gave up"), 0);
    assert_eq!(number(&output, "money after"), 4000);
    let ended = number(&output, "done") + number(&output, "not enough money");
    assert_eq!(ended, 1600);
}

#[test]
fn one_lock_after_the_other_gets_stuck() {
    let output = run("transfer", &["--one-by-one"]);
    assert!(output.status.success(), "{output:?}");
    assert!(number(&output, "stuck, gave up") > 0, "{output:?}");
    assert_eq!(number(&output, "money after"), 4000);
}

#[test]
fn without_locks_it_does_not_add_up() {
    // What is lost and what is made of nothing may come to the same, once.
    let adds_up = || {
        let output = run("transfer", &["--without-lock", "--tasks", "64"]);
        assert!(output.status.success(), "{output:?}");
        number(&output, "money after") == 4000
    };
    assert!((0..3).any(|_| !adds_up()));
}

#[test]
fn what_it_is_told_wrong_it_explains() {
    let wrong: [(&[&str], &[&str]); 5] = [
        (&["--tasks", "all"], &["--tasks cannot be `all`", "Usage:"]),
        (&["--accounts", "1"], &["two accounts", "Usage:"]),
        (&["--tasks", "0"], &["it takes a task", "Usage:"]),
        (&["--store", "rediss"], &["not a URL", "Usage:"]),
        (&["--twice"], &["--twice", "Usage:"]),
    ];
    explains("transfer", &wrong);
}

#[cfg(feature = "redis")]
mod on_redis {
    use std::process::Stdio;

    use crate::example::example;
    use crate::support::process::{Process, command};
    use crate::support::redis::RedisServer;
    use crate::support::wait::eventually;

    fn start(server: &RedisServer, transfers: &str) -> Process {
        let mut program = command(example("transfer"));
        program
            .args(["--bank", "shared", "--tasks", "8", "--transfers", transfers])
            .env("DLOCK_URL", server.url())
            .env("DLOCK_REQUEST_TIMEOUT", "15s")
            .env("DLOCK_TTL", "3s")
            .stdout(Stdio::null());
        Process::spawn(program).expect("the example")
    }

    async fn end(mut program: Process) {
        let status = program.end().await;
        assert!(status.success(), "{status}");
    }

    #[tokio::test]
    async fn programs_that_are_killed_and_paused_cost_no_money() {
        let server = RedisServer::start().await;
        let clients = async || {
            let clients: String = server.command(&["CLIENT", "LIST"]).await;
            clients.lines().count()
        };
        // Paused while it connects, it would be told of an outage.
        let paused = start(&server, "200");
        eventually("it has made a transfer", async || {
            let tokens: u32 = server.command(&["HLEN", "shared:tokens"]).await;
            (tokens > 0).then_some(())
        })
        .await;
        // Before it has made them all.
        paused.pause();
        let before = clients().await;
        let mut killed = start(&server, "100000");
        eventually("the other one has connected", async || {
            (clients().await > before).then_some(())
        })
        .await;
        killed.kill();
        // Gets the locks of both when their ttl has passed.
        end(start(&server, "20")).await;
        // And may have been overtaken.
        paused.resume();
        end(paused).await;

        let balances: Vec<i64> = server.command(&["HVALS", "shared:balances"]).await;
        assert_eq!(balances.iter().sum::<i64>(), 4000, "{balances:?}");
        eventually("no lock is left", async || {
            let keys = server.keys().await;
            let left = keys.iter().any(|key| key.contains("account"));
            (!left).then_some(())
        })
        .await;
    }
}
