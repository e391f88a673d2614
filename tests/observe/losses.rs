//! Renewals, losses, and releases that the store did not take.

use std::time::Duration;

use dlock::OnLost;

use crate::collector::collector;
use crate::support::alone::alone;
use crate::support::locks::{is_lost, is_unavailable};
use crate::{memory, ms, settle};

fn number(name: &str, template: &str, more: &[(&str, &str)]) -> Option<f64> {
    collector().number(name, template, more)
}

fn losses(template: &str, reason: &str) -> Option<f64> {
    number("dlock_losses_total", template, &[("reason", reason)])
}

fn renewals(template: &str, outcome: &str) -> Option<f64> {
    number("dlock_renewals_total", template, &[("outcome", outcome)])
}

#[tokio::test(start_paused = true)]
async fn renewals_are_counted_and_traced() {
    let (_memory, manager) = memory().await;
    let key = "losses/renewed";
    let lock = manager.lock(key).template(key).ttl(Duration::from_secs(3));
    let body = tokio::time::sleep(Duration::from_secs(10));
    lock.run(body).await.expect("it is renewed");

    let renewed = renewals(key, "renewed").expect("it is counted");
    // Every second or a little sooner.
    assert!((9.0..=14.0).contains(&renewed), "{renewed}");
    let lines = collector().of_target(key, "dlock::renewal");
    assert_eq!(lines.len() as f64, renewed);
    assert_eq!(lines[0].level(), "TRACE");
    assert_eq!(lines[0].span("template"), key);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_a_warning_inside_the_span() {
    let (memory, manager) = memory().await;
    let key = "losses/taken";
    let lock = manager.lock(key).template(key);
    let body = async {
        assert!(memory.faults().take_away(key));
        tokio::time::sleep(Duration::from_secs(100)).await;
    };
    is_lost(lock.run(body).await);

    let loss = collector().line(key, "dlock::loss");
    assert_eq!((loss.level(), loss.message()), ("WARN", "lease lost"));
    assert_eq!(loss.span("template"), key);
    assert!(loss.field("reason").contains("no longer knows"));
    assert_eq!(losses(key, "gone"), Some(1.0));
    // It has been told; the release says no more than that it is done.
    settle().await;
    let releases = collector().of_target(key, "dlock::release");
    assert!(releases.iter().all(|line| line.level() == "DEBUG"));
}

#[tokio::test(start_paused = true)]
async fn each_way_to_lose_has_its_reason() {
    let (_memory, manager) = memory().await;
    let second = Duration::from_secs(1);
    let long = || tokio::time::sleep(Duration::from_secs(60));
    let lock = |key: &'static str| manager.lock(key).template(key).ttl(second);
    assert!(lock("losses/fixed").renew(false).run(long()).await.is_err());
    let limited = lock("losses/limited").max_hold(second * 2);
    assert!(limited.run(long()).await.is_err());
    for (key, reason) in [("losses/fixed", "overran"), ("losses/limited", "max_hold")] {
        assert_eq!(losses(key, reason), Some(1.0), "{key}");
    }
}

#[test]
fn an_outage_is_one_warning_and_many_failed_renewals() {
    let name = "losses::an_outage_is_one_warning_and_many_failed_renewals";
    alone(name, &[], outage);
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn outage() {
    let (memory, manager) = memory().await;
    let key = "losses/outage";
    let lock = manager.lock(key).template(key).ttl(Duration::from_secs(30));
    let body = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        memory.faults().set_unavailable(true);
        tokio::time::sleep(Duration::from_secs(12)).await;
        memory.faults().set_unavailable(false);
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    lock.run(body).await.expect("it heals before the deadline");
    let failed = renewals(key, "failed");
    assert!(failed > Some(2.0), "{failed:?}");
    assert_eq!(collector().store_errors(key, "renew"), failed);
    // Told once for all leases of the manager, so outside of any span.
    let said = collector().of_no_section("dlock::renewal");
    let levels: Vec<_> = said.iter().map(|line| line.level()).collect();
    assert_eq!(levels, ["WARN", "INFO"], "{said:#?}");
    assert!(said[0].field("error").contains("unavailable"));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_gone_at_the_end_is_a_loss() {
    let (memory, manager) = memory().await;
    let key = "losses/at-the-end";
    let lock = manager.lock(key).template(key).on_lost(OnLost::Continue);
    // Blocks until the end, so that nothing else learns of the loss first.
    let body = async { assert!(memory.faults().take_away(key)) };
    lock.run(body).await.expect("the body went on");
    let release = collector().line(key, "dlock::release");
    assert_eq!(release.level(), "WARN");
    assert_eq!(losses(key, "gone"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_told_and_tried_again() {
    let (memory, manager) = memory().await;
    let key = "losses/release";
    let lock = manager.lock(key).template(key).ttl(Duration::from_secs(30));
    let body = async { memory.faults().set_unavailable(true) };
    lock.run(body).await.expect("the body ended well");
    let failed = collector().line(key, "dlock::release");
    assert_eq!(failed.level(), "WARN");
    assert!(failed.field("error").contains("unavailable"));
    assert!(collector().store_errors(key, "release") >= Some(1.0));

    memory.faults().set_unavailable(false);
    manager.shutdown().await;
    let lines = collector().of_target(key, "dlock::release");
    let last = lines.last().expect("a line");
    assert_eq!((last.level(), last.message()), ("DEBUG", "released"));
    assert_eq!(lines.iter().filter(|l| l.level() == "WARN").count(), 1);
}

/// The first of two fixed leases is made to last again before the work begins.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_made_to_last_is_a_store_error() {
    let (memory, manager) = memory().await;
    let both = manager.lock(["losses/fresh:1", "losses/fresh:2"]);
    let both = both.template("losses/fresh").renew(false).run(async {});
    // Two answers, and on the way to the third.
    memory.faults().set_delay(Some(ms(1000)));
    let outage = async {
        tokio::time::sleep(ms(2500)).await;
        memory.faults().set_unavailable(true);
    };
    let (refused, ()) = tokio::join!(both, outage);
    is_unavailable(refused);
    let errors = collector().store_errors("losses/fresh", "renew");
    assert_eq!(errors, Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_speaks_of_whom_it_serves() {
    let (_memory, manager) = memory().await;
    let key = "losses/served";
    let served = |template, time| {
        let lock = manager.lock(key).template(template);
        lock.run(tokio::time::sleep(time))
    };
    // A lease goes on to those who queued when it came: let them queue.
    let (before, first, second) = tokio::join!(
        served("losses/before", ms(10)),
        served("losses/first", ms(10)),
        served("losses/second", ms(60_000)),
    );
    before.and(first).and(second).expect("the turn of each");
    let handovers = number("dlock_handovers_total", "losses/first", &[]);
    assert_eq!(handovers, Some(1.0));
    assert_eq!(renewals("losses/first", "renewed"), Some(0.0));
    assert!(renewals("losses/second", "renewed") > Some(3.0));
}

/// A store is asked again and again before it counts as failed. The log does not
/// wait for that.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_late_is_told_while_it_is() {
    let (memory, manager) = memory().await;
    let lock = manager.lock("losses/late").ttl(Duration::from_secs(40));
    let guard = lock.acquire().await.expect("it is free");
    memory.faults().set_delay(Some(Duration::from_secs(3600)));
    // The first renewal is due before a third of the ttl has passed.
    tokio::time::sleep(Duration::from_secs(16)).await;
    let said = collector().of_no_section("dlock::renewal");
    let late = |line: &&crate::collector::Line| {
        line.level() == "WARN" && line.field("error").contains("not answered for 1s")
    };
    assert!(said.iter().any(|line| late(&line)), "{said:#?}");
    assert!(guard.is_held());
    memory.faults().set_delay(None);
}
