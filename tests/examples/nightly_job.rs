//! The example `nightly_job`.

use std::collections::BTreeMap;

use crate::example::{explains, run};

/// How often the job was done at each tick that a copy has seen, as printed.
fn ticks(printed: &str) -> BTreeMap<u64, u32> {
    let mut ticks = BTreeMap::new();
    for line in printed.lines() {
        let tick = line.strip_prefix("tick ").and_then(|l| l.split_once(": "));
        let (tick, what) = tick.unwrap_or_else(|| panic!("{line}"));
        let done = ticks.entry(tick.parse().expect("a tick")).or_default();
        *done += u32::from(what.ends_with(" did it"));
    }
    ticks
}

#[test]
fn of_many_copies_one_does_it_at_each_tick() {
    let output = run("nightly_job", &["--copies", "50", "--ticks", "2"]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let ticks = ticks(&printed);
    assert!(ticks.len() >= 2, "{printed}");
    assert!(ticks.values().all(|done| *done == 1), "{printed}");
}

#[test]
fn where_one_fails_another_does_it() {
    let arguments = ["--copies", "5", "--ticks", "2", "--first-fails"];
    let output = run("nightly_job", &arguments);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let ticks = ticks(&printed);
    assert!(ticks.values().all(|done| *done == 1), "{printed}");
    let told = String::from_utf8_lossy(&output.stderr);
    // One that is late misses ticks, so that there may be nobody to do what the first has not.
    assert!(!ticks.is_empty(), "{told}");
    for tick in ticks.keys() {
        let of_tick = format!("tick {tick}: ");
        let failed = told.lines().filter(|line| line.starts_with(&of_tick));
        let failed = failed.filter(|line| line.ends_with("out of paper"));
        assert_eq!(failed.count(), 1, "{tick}: {told}");
    }
}

#[test]
fn what_it_is_told_wrong_it_explains() {
    let wrong: [(&[&str], &[&str]); 4] = [
        (&["--ticks", "-1"], &["--ticks cannot be `-1`", "Usage:"]),
        (&["--copies", "0"], &["a copy and a tick", "Usage:"]),
        (&["--store", "rediss"], &["not a URL", "Usage:"]),
        (&["--weekly"], &["--weekly", "Usage:"]),
    ];
    explains("nightly_job", &wrong);
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use crate::example::example;
    use crate::support::process::command;
    use crate::support::program::Program;
    use crate::support::redis::RedisServer;
    use crate::support::wait::eventually;

    fn start(server: &RedisServer, ticks: &str) -> Program {
        start_with(server, &["--ticks", ticks])
    }

    fn start_with(server: &RedisServer, arguments: &[&str]) -> Program {
        let mut program = command(example("nightly_job"));
        program
            .args(["--job", "shared", "--copies", "3"])
            .args(arguments)
            .env("DLOCK_URL", server.url())
            .env("DLOCK_REQUEST_TIMEOUT", "15s")
            .env("DLOCK_TTL", TTL);
        Program::start(program)
    }

    /// A lock of one that is killed is free after this time. Whoever stands still for longer in
    /// the middle of the job may see it done twice.
    const TTL: &str = "6s";

    /// What the journal has of each tick.
    async fn journal(server: &RedisServer) -> BTreeMap<u64, Vec<String>> {
        let lines: Vec<String> = server
            .command(&["LRANGE", "journal:shared", "0", "-1"])
            .await;
        let mut ticks = BTreeMap::<_, Vec<_>>::new();
        for line in lines {
            let (tick, what) = line.split_once(' ').expect("a tick");
            let of_tick = ticks.entry(tick.parse().expect("a tick")).or_default();
            of_tick.push(what.to_owned());
        }
        ticks
    }

    /// Stops the program at a moment when it has begun the job and not done it,
    /// and gives the tick.
    async fn stop_midway(server: &RedisServer, program: &mut Program) -> u64 {
        let at_it = async || {
            let (tick, lines) = journal(server).await.pop_last()?;
            let done = lines.iter().any(|line| line.starts_with("done"));
            (!done).then_some(tick)
        };
        loop {
            let tick = eventually("the job is begun", at_it).await;
            program.process.pause();
            if at_it().await == Some(tick) {
                return tick;
            }
            // It had just ended.
            program.process.resume();
        }
    }

    /// A program dies in the middle of the job: another one does it.
    #[tokio::test]
    async fn programs_share_the_ticks_also_when_one_is_killed() {
        let server = RedisServer::start().await;
        let mut killed = start(&server, "1000");
        let cut_short = stop_midway(&server, &mut killed).await;
        let mut others = [start(&server, "4"), start(&server, "4")];
        killed.process.kill();

        let mut seen = BTreeMap::new();
        for other in &mut others {
            let output = other.end().await;
            // It fails if a tick was done twice.
            assert!(output.status.success(), "{output:?}");
            seen.append(&mut ticks(&String::from_utf8_lossy(&output.stdout)));
        }
        let journal = journal(&server).await;
        let after = seen.range(cut_short + 1..).count();
        assert!(
            after > 0,
            "the job has ended with {cut_short}: {journal:#?}"
        );
        for tick in seen.keys() {
            let lines = journal.get(tick).cloned().unwrap_or_default();
            let done = lines.iter().filter(|line| line.starts_with("done"));
            assert_eq!(done.count(), 1, "{tick}: {journal:#?}");
        }
    }

    #[tokio::test]
    async fn a_copy_that_comes_when_the_others_are_gone_does_not_repeat_a_tick() {
        let server = RedisServer::start().await;
        let first = start(&server, "1").end().await;
        assert!(first.status.success(), "{first:?}");
        // What was done is there, though nobody is.
        let keys = server.keys().await;
        let marks = keys.iter().filter(|key| key.contains("nightly"));
        let marks: Vec<_> = marks.collect();
        assert!(!marks.is_empty(), "{keys:?}");
        for mark in marks {
            let value: String = server.command(&["GET", mark]).await;
            assert!(value.starts_with("d:"), "{mark}: {value}");
        }
        let before = journal(&server).await;
        for tick in before.keys() {
            let late = ["--tick", &tick.to_string(), "--ticks", "1"];
            let late = start_with(&server, &late).end().await;
            assert!(late.status.success(), "{late:?}");
            let printed = String::from_utf8_lossy(&late.stdout);
            let found = format!("tick {tick}: ");
            let found = |line: &&str| line.starts_with(&found) && line.ends_with(" found it done");
            assert_eq!(printed.lines().filter(found).count(), 3, "{printed}");
        }
        assert_eq!(journal(&server).await, before, "nothing was begun again");
    }
}
