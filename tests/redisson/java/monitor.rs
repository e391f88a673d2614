//! What a server does, command by command.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::process::command;
use crate::support::program::Program;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// What owners of dlock's have in them.
pub(crate) const DLOCK: &str = "-00646c6f636b:";

pub(crate) struct Monitor(Program);

impl Monitor {
    pub(crate) async fn of(server: &RedisServer) -> Self {
        let mut client = command("redis-cli");
        client.args(["-p", &server.port().to_string(), "monitor"]);
        let monitor = Self(Program::start(client));
        monitor.all(server, "begin").await;
        monitor
    }

    /// All so far, up to this mark.
    pub(crate) async fn all(&self, server: &RedisServer, mark: &str) -> String {
        eventually("the server tells what it does", async || {
            server.command::<String>(&["ECHO", mark]).await;
            let printed = self.0.printed();
            printed.contains(&format!("\"{mark}\"")).then_some(printed)
        })
        .await
    }
}

/// How often `key` came free and was then taken by one of dlock's, who had asked for it
/// before and now asked again *without a look*: it has heard of it. Who has not looks
/// first, sooner or later.
pub(crate) fn heard(log: &str, key: &str) -> usize {
    let mut heard = 0;
    // When each of ours has asked first.
    let mut asked = HashMap::new();
    // When it was told that the lock is free, and how many questions came behind that.
    let mut freed = None;
    for (number, line) in log.lines().enumerate() {
        let Some((from, command)) = line.split_once("] ") else {
            continue;
        };
        let words: Vec<_> = command.split('"').skip(1).step_by(2).collect();
        // A reader is in the name of its key too, which stands before it.
        let ours = words.iter().rfind(|word| word.contains(DLOCK));
        let is_script = from.ends_with("lua");
        match (is_script, &*words[0].to_uppercase()) {
            (true, "PUBLISH") => freed = Some((number, 0)),
            (true, "HSET") if words[1] == key => {
                let (Some(ours), Some((at, questions))) = (ours, freed) else {
                    continue;
                };
                let waited = asked.get(ours).is_some_and(|&asked| asked < at);
                heard += usize::from(waited && questions == 1);
                freed = None;
            }
            (false, "EVAL" | "EVALSHA" | "EXISTS") => {
                if let Some((_, questions)) = &mut freed {
                    *questions += 1;
                }
                if let Some(ours) = ours {
                    asked.entry(ours.to_owned()).or_insert(number);
                }
            }
            _ => {}
        }
    }
    heard
}

/// From each time that `key` came free until one of dlock's, or of Java's, had it who waited, by
/// the server's clock; the shortest first.
pub(crate) fn delays(log: &str, key: &str, of_ours: bool) -> Vec<Duration> {
    let mut delays = Vec::new();
    let mut freed = None;
    for line in log.lines() {
        let Some((from, command)) = line.split_once("] ") else {
            continue;
        };
        let words: Vec<_> = command.split('"').skip(1).step_by(2).collect();
        let at = from.split(' ').next().and_then(|at| at.parse::<f64>().ok());
        let (Some(at), true) = (at, from.ends_with("lua")) else {
            continue;
        };
        match (&*words[0].to_uppercase(), words.get(1)) {
            ("PUBLISH", _) => freed = Some(at),
            // A lock's field counts how often its owner has it.
            ("HSET" | "HINCRBY", Some(of)) if *of == key && words.last() == Some(&"1") => {
                let is_ours = words.iter().any(|word| word.contains(DLOCK));
                let delay = freed.take().map(|freed| at - freed);
                delays.extend(delay.filter(|_| is_ours == of_ours));
            }
            _ => {}
        }
    }
    delays.sort_by(f64::total_cmp);
    let delays = delays.into_iter().map(|delay| delay.max(0.0));
    delays.map(Duration::from_secs_f64).collect()
}

#[test]
fn a_delay_is_from_the_release_until_it_is_taken_on_either_side() {
    let at = |at, command| format!("{at} [0 lua] {command}\n");
    let log = [
        at("9.0", "\"HSET\" \"key\" \"a\" \"1\""),
        at("10.5", "\"publish\" \"channel\" \"0\""),
        at("10.5", "\"hincrby\" \"other\" \"a\" \"1\""),
        at("12.5", "\"hincrby\" \"key\" \"b:1\" \"1\""),
        at("13.0", "\"hincrby\" \"key\" \"b:1\" \"-1\""),
        at("13.0", "\"PUBLISH\" \"channel\" \"0\""),
        at("13.5", "\"HSET\" \"key\" \"a-00646c6f636b:1\" \"1\""),
    ];
    let log = log.concat();
    assert_eq!(delays(&log, "key", false), [Duration::from_secs(2)]);
    assert_eq!(delays(&log, "key", true), [Duration::from_millis(500)]);
}

#[test]
fn who_looks_first_has_not_heard() {
    let waits = "1 [0 127.0.0.1:1] \"EVALSHA\" \"1f\" \"1\" \"key\" \"a-00646c6f636b:1\" \"9\"\n\
                 1 [0 lua] \"EXISTS\" \"key\"\n";
    let freed = "1 [0 127.0.0.1:2] \"EVAL\" \"return\" \"2\" \"key\" \"channel\" \"b:1\"\n\
                 1 [0 lua] \"hincrby\" \"key\" \"b:1\" \"-1\"\n\
                 1 [0 lua] \"publish\" \"channel\" \"0\"\n";
    let looks = "1 [0 127.0.0.1:3] \"EXISTS\" \"key\"\n";
    let takes = format!("{waits}1 [0 lua] \"HSET\" \"key\" \"a-00646c6f636b:1\" \"1\"\n");
    assert_eq!(heard(&[waits, freed, &takes].concat(), "key"), 1);
    assert_eq!(heard(&[waits, freed, looks, &takes].concat(), "key"), 0);
    // It did not wait.
    assert_eq!(heard(&[freed, &takes].concat(), "key"), 0);
}
