//! The orders and forms of `dlock ls`.

use serde_json::Value;

use crate::support::dir::TempDir;
use crate::support::program::Program;
use crate::support::wait::until;
use crate::{column, dlock, holder, json, printed, ran, sqlite, stdout};

async fn listed(url: &str, options: &[&str]) -> String {
    stdout(&ran(dlock(url, &[&["ls"], options].concat())).await)
}

#[tokio::test]
async fn the_longest_queue_comes_first() {
    let dir = TempDir::default();
    let url = sqlite(&dir);
    let mut programs = Vec::new();
    for (key, waiters) in [("a", 0), ("b", 2), ("c", 1)] {
        programs.push(holder(&url, key).await);
        for _ in 0..waiters {
            programs.push(Program::start(dlock(&url, &["wait", key])));
        }
    }
    let list = async || listed(&url, &["--sort", "waiters"]).await;
    let all = |list: &String| {
        column(list, "WAITERS")
            .iter()
            .filter_map(|n| n.parse::<usize>().ok())
            .sum::<usize>()
    };
    let list = until("all wait", list, |list| all(list) == 3).await;
    assert_eq!(column(&list, "KEY"), ["b", "c", "a"], "{list}");
    assert_eq!(column(&list, "WAITERS"), ["2", "1", "0"], "{list}");
    assert_eq!(column(&listed(&url, &[]).await, "KEY"), ["a", "b", "c"]);
}

#[tokio::test]
async fn the_oldest_comes_first() {
    let dir = TempDir::default();
    let url = sqlite(&dir);
    let mut programs = Vec::new();
    for key in ["b", "c", "a"] {
        programs.push(holder(&url, key).await);
    }
    let list = listed(&url, &["--sort", "age"]).await;
    assert_eq!(column(&list, "KEY"), ["b", "c", "a"], "{list}");
    let list = json(&url, &["ls", "--sort", "age"]).await;
    let keys = list.as_array().expect("an array").iter();
    assert!(keys.map(|lock| &lock["key"]).eq(["b", "c", "a"]), "{list}");
}

/// A line for each, with all that is known of it.
#[tokio::test]
async fn a_wide_list_has_each_holder() {
    let dir = TempDir::default();
    let url = sqlite(&dir);
    let reads = [
        "run",
        "--read",
        "k",
        "--",
        "sh",
        "-c",
        "echo pid $$; sleep 1000",
    ];
    let programs = [0, 1].map(|_| Program::start(dlock(&url, &reads)));
    for program in &programs {
        printed(program, "pid ").await;
    }
    let table = listed(&url, &[]).await;
    assert_eq!(column(&table, "KEY"), ["k"], "{table}");
    assert_eq!(column(&table, "OWNER"), [""; 0], "{table}");
    assert!(table.contains(" sh +1 "), "{table}");

    let lock = &json(&url, &["ls"]).await[0];
    let holders = lock["holders"].as_array().expect("an array");
    let of_each = |field: &str| -> Vec<Value> {
        let fields = holders.iter().map(|holder| holder[field].clone());
        fields.collect()
    };
    let wide = listed(&url, &["-o", "wide"]).await;
    assert_eq!(column(&wide, "KEY"), ["k", "k"], "{wide}");
    assert_eq!(column(&wide, "HOLDER"), ["sh", "sh"], "{wide}");
    assert_eq!(column(&wide, "OWNER"), *of_each("owner"), "{wide}{lock}");
    let pids = of_each("pid");
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    assert_eq!(column(&wide, "PID"), pids, "{wide}");
    let mut started = programs.map(|program| program.process.id().to_string());
    let mut pids = pids;
    started.sort();
    pids.sort();
    assert_eq!(pids, started, "{wide}");
}
