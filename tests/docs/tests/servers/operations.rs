//! `docs/operations.md`: what it says to look at and to free locks with does
//! so.

use dlock::Config;
use tokio::process::Command;

use crate::markdown::pages;
use crate::support::locks::{connect, held, served};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until, within};

/// What the page says to Redis, in order, without what it is for: in its blocks, and then
/// within its text.
fn commands() -> Vec<String> {
    let pages = pages();
    let page = pages.iter().find(|page| page.path == "docs/operations.md");
    let page = page.expect("the page");
    let mut blocks = page.blocks();
    blocks.retain(|block| block.what.info == ["console"]);
    let lines = blocks.iter().flat_map(|block| block.what.text.lines());
    let typed = lines.map(|line| line.strip_prefix("$ ").expect("a command"));
    let codes = page.codes().into_iter().map(|code| code.what);
    let all = typed.map(str::to_owned).chain(codes);
    let redis = all.filter(|command| command.starts_with("redis-cli "));
    redis
        .map(|command| command.split(" # ").next().unwrap_or_default().to_owned())
        .collect()
}

async fn answer(server: &RedisServer, command: &str) -> String {
    let arguments = command.strip_prefix("redis-cli ").expect("redis-cli");
    let command = format!("redis-cli -e -p {} {arguments}", server.port());
    let output = Command::new("sh").args(["-c", &command]).output();
    let output = within(HANG, output).await.expect("a shell");
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

#[tokio::test]
async fn locks_are_seen_and_freed_as_it_says() {
    let server = RedisServer::start().await;
    let config = || Config::from_url(&server.url()).expect("a valid URL");
    let (here, there) = (connect(config()).await, connect(config()).await);
    let commands = commands();
    let [list, get, pttl, queue, readers, free] = &commands[..] else {
        panic!("six commands, not {commands:?}")
    };

    let reader = held(here.lock("stock:42").read()).await;
    assert!(answer(&server, get).await.starts_with("r:"));
    assert_eq!(answer(&server, readers).await.lines().count(), 1);
    reader.release().await.expect("the release");

    let guard = held(here.lock("stock:42")).await;
    let other = held(here.lock("stock:43")).await;
    let alone = answer(&server, get).await;
    assert!(alone.starts_with("w:") && !alone.ends_with('+'), "{alone}");
    let waiting = tokio::spawn(there.lock("stock:42").acquire());
    let queued = async || answer(&server, queue).await;
    until("it waits", queued, |queue| queue.starts_with("w:")).await;
    assert!(answer(&server, get).await.ends_with('+'));
    let listed = answer(&server, list).await;
    let mut listed: Vec<_> = listed.lines().collect();
    listed.sort_unstable();
    assert_eq!(listed, ["dlock:{stock:42}", "dlock:{stock:43}"]);
    let left: u64 = answer(&server, pttl).await.parse().expect("milliseconds");
    assert!((1..=30_000).contains(&left), "{left}");

    assert_eq!(answer(&server, free).await, "1");
    let next = served(waiting).await;
    assert!(next.token() > guard.token());
    drop((next, other));
}
