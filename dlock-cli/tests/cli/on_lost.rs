//! `dlock run --on-lost signal|ignore`, when its lock is lost.

use std::path::Path;

use crate::losing::{Fault, STANDS_STILL, ends_well, short, take_away};
use crate::support::calm::unless_it_stands_still;
use crate::support::dir::TempDir;
use crate::support::proxy::Proxy;
use crate::support::wait::eventually;
use crate::{code, dlock, lives, nobody_watches, printed, ran, redis, stderr, stdout, watchers};

/// What tells each TERM, and goes on until there is a file.
fn until_there_is(end: &Path) -> String {
    let dir = end.parent().expect("a folder");
    // Nor does it outlive a test that has failed.
    format!(
        "trap 'echo told' TERM; echo pid $$
        while [ -d {} ] && [ ! -e {} ]; do sleep 0.05; done; echo by itself; exit 5",
        dir.display(),
        end.display()
    )
}

#[tokio::test]
async fn what_comes_of_a_loss_may_be_chosen() {
    for (on_lost, expected) in [("ignore", 5), ("signal", 74)] {
        let comes = async || comes_of_a_loss(on_lost, expected).await;
        unless_it_stands_still(STANDS_STILL, comes).await;
    }
}

async fn comes_of_a_loss(on_lost: &str, expected: i32) {
    let server = redis().await;
    let dir = TempDir::default();
    let end = dir.path().join("end");
    let script = until_there_is(&end);
    let mut tool = short(&server.url(), &["--on-lost", on_lost], &script);
    printed(&tool, "pid ").await;
    take_away(&server).await;
    eventually("the loss is told", async || {
        tool.errors().contains("lost").then_some(())
    })
    .await;
    if on_lost == "signal" {
        printed(&tool, "told").await;
    }
    std::fs::write(&end, "").expect("a file");
    let ended = tool.end().await;
    assert_eq!(code(&ended), expected, "{on_lost}: {}", stderr(&ended));
    assert_eq!(stdout(&ended).contains("told"), on_lost == "signal");
}

/// Nobody kills it: not the tool, nor who watches in its place.
#[tokio::test]
async fn who_is_only_told_is_told_early_and_goes_on_in_an_outage() {
    unless_it_stands_still(STANDS_STILL, async || is_only_told(Fault::Outage).await).await;
}

#[tokio::test]
async fn who_is_only_told_is_told_early_and_goes_on_without_the_tool() {
    unless_it_stands_still(STANDS_STILL, async || is_only_told(Fault::Killed).await).await;
}

#[tokio::test]
async fn who_is_only_told_is_told_early_and_goes_on_beside_a_tool_that_stands_still() {
    unless_it_stands_still(STANDS_STILL, async || is_only_told(Fault::Stopped).await).await;
}

async fn is_only_told(fault: Fault) {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let dir = TempDir::default();
    let end = dir.path().join("end");
    let signal = ["--on-lost", "signal"];
    let url = server.url_through(proxy.port());
    let mut tool = ends_well(&url, &signal, &until_there_is(&end));
    let command = printed(&tool, "pid ").await;
    assert_eq!(watchers(&command).len(), 1);
    fault.happens(&proxy, &mut tool);
    printed(&tool, "told").await;
    // Three seconds before the loss, of which this machine may take two.
    let left: i64 = server.command(&["PTTL", "dlock:{k}"]).await;
    assert!(left > 1_000, "{fault:?}: it is told early: {left}");
    // Behind the deadline there is nobody left who could kill it.
    let next = ran(dlock(&server.url(), &["run", "k", "--", "echo", "next"])).await;
    assert_eq!(stdout(&next), "next\n", "{}", stderr(&next));
    nobody_watches(&command).await;
    if fault == Fault::Stopped {
        tool.process.resume();
    }
    if fault != Fault::Killed {
        let told = async || tool.errors().contains("told to end").then_some(());
        eventually("it is told", told).await;
    }
    assert!(lives(&command), "{fault:?}");
    std::fs::write(&end, "").expect("a file");
    let ended = tool.end().await;
    assert_eq!(stdout(&ended).matches("told").count(), 1, "{fault:?}");
    let said = stderr(&ended);
    assert!(stdout(&ended).ends_with("by itself\n"), "{fault:?}: {said}");
    match fault {
        Fault::Killed => assert_eq!(ended.status.code(), None),
        _ => assert_eq!(code(&ended), 74, "{fault:?}: {said}"),
    }
}

/// It has its own end, and its own code.
#[tokio::test]
async fn who_ignores_a_loss_is_not_told_of_an_outage() {
    unless_it_stands_still(STANDS_STILL, ignores_an_outage).await;
}

async fn ignores_an_outage() {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let dir = TempDir::default();
    let end = dir.path().join("end");
    let ignore = ["--on-lost", "ignore"];
    let url = server.url_through(proxy.port());
    let mut tool = short(&url, &ignore, &until_there_is(&end));
    let command = printed(&tool, "pid ").await;
    assert_eq!(watchers(&command), [""; 0]);
    proxy.stall(true);
    let next = ran(dlock(&server.url(), &["run", "k", "--", "echo", "next"])).await;
    assert_eq!(stdout(&next), "next\n", "{}", stderr(&next));
    let told = async || tool.errors().contains("goes on without it").then_some(());
    eventually("the loss is told", told).await;
    assert!(lives(&command));
    std::fs::write(&end, "").expect("a file");
    let ended = tool.end().await;
    assert_eq!(code(&ended), 5, "{}", stderr(&ended));
    let printed = stdout(&ended);
    assert!(
        !printed.contains("told") && printed.ends_with("by itself\n"),
        "{printed}"
    );
}
