//! One critical section: its span, its events, its numbers.

use dlock::{Config, LockError, distributed_lock};

use crate::collector::collector;
use crate::support::locks::connect;
use crate::{memory, ms, settle};

#[distributed_lock(key = "sections/one:<sku>")]
async fn sell(sku: &str) -> Result<(), LockError> {
    tracing::info!("selling");
    tokio::time::sleep(ms(40)).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_critical_section_is_one_span() {
    let (_memory, manager) = memory().await;
    manager.scope(sell("mug")).await.expect("the lock is free");

    let key = "sections/one:mug";
    let spans = collector().closed_spans(key);
    let [span] = &spans[..] else {
        panic!("one span: {:#?}", collector().lines(key));
    };
    assert_eq!(span.level(), "INFO");
    assert_eq!(span.span("name"), "lock");
    assert_eq!(span.span("template"), "sections/one:<sku>");
    assert_eq!(span.span("mode"), "write");
    assert_eq!(span.span("store"), "memory");
    assert_eq!(span.span("waited"), "0ns");
    assert_eq!(span.span("held"), "40ms");
    let token = span.span("token");
    assert!(!token.is_empty());

    let grant = collector().line(key, "dlock::grant");
    assert_eq!((grant.level(), grant.field("token")), ("DEBUG", token));
    let release = collector().line(key, "dlock::release");
    assert_eq!((release.level(), release.message()), ("DEBUG", "released"));
    // What the body logs is inside the span, with the token to go by.
    let body = collector().line(key, module_path!());
    assert_eq!((body.message(), body.span("token")), ("selling", token));
}

#[tokio::test(start_paused = true)]
async fn numbers_of_one_critical_section() {
    let (_memory, manager) = memory().await;
    let metric = |name| collector().number(name, "sections/numbers", &[]);
    let body = async {
        assert_eq!(metric("dlock_held"), Some(1.0));
        assert_eq!(metric("dlock_waiting"), Some(0.0));
        tokio::time::sleep(ms(250)).await;
    };
    let lock = manager.lock("some key").template("sections/numbers");
    lock.run(body).await.expect("the lock is free");

    assert_eq!(metric("dlock_held"), Some(0.0));
    assert_eq!(metric("dlock_hold_seconds_count"), Some(1.0));
    assert_eq!(metric("dlock_hold_seconds_sum"), Some(0.25));
    assert_eq!(metric("dlock_wait_seconds_count"), Some(1.0));
    assert_eq!(metric("dlock_wait_seconds_sum"), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn waiting_and_handing_over() {
    let (_memory, manager) = memory().await;
    let key = "sections/waiting:1";
    let task = || {
        let lock = manager.lock(key).template("sections/waiting:<id>");
        tokio::spawn(lock.run(async { tokio::time::sleep(ms(100)).await }))
    };
    let tasks = [task(), task(), task()];
    settle().await;
    let metric = |name| collector().number(name, "sections/waiting:<id>", &[]);
    assert_eq!(metric("dlock_waiting"), Some(2.0));
    for task in tasks {
        task.await.expect("no panic").expect("its turn comes");
    }

    assert_eq!(metric("dlock_waiting"), Some(0.0));
    assert_eq!(metric("dlock_wait_seconds_count"), Some(3.0));
    let waited = metric("dlock_wait_seconds_sum").expect("a sum");
    assert!((waited - 0.3).abs() < 1e-9, "{waited}");
    // The first had nobody behind it when it came to the store.
    assert_eq!(metric("dlock_handovers_total"), Some(1.0));

    let waits = collector().of_target(key, "dlock::wait");
    let ahead: Vec<_> = waits.iter().map(|line| line.number("ahead")).collect();
    assert_eq!(ahead, [Some(0), Some(1)], "{waits:#?}");
    let handovers = collector().of_target(key, "dlock::handover");
    let grants = collector().of_target(key, "dlock::grant");
    let ([handover], [_, second, third]) = (&handovers[..], &grants[..]) else {
        panic!("one hand-over, three grants: {handovers:#?} {grants:#?}");
    };
    assert_eq!(handover.level(), "DEBUG");
    // Told by the one who gives.
    assert_eq!(handover.span("token"), second.field("token"));
    assert_eq!(handover.field("token"), third.field("token"));
    // Two leases for three critical sections.
    assert_eq!(collector().of_target(key, "dlock::release").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_another_process() {
    let (memory, manager) = memory().await;
    let other = connect(Config::with_backend(memory)).await;
    let key = "sections/other";
    let guard = other.lock(key).acquire().await.expect("the lock is free");
    let ours = tokio::spawn(manager.lock(key).run(async {}));
    settle().await;
    let wait = collector().line(key, "dlock::wait");
    assert_eq!(wait.message(), "somebody holds the lock");
    drop(guard);
    ours.await.expect("no panic").expect("its turn comes");
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_a_critical_section_too() {
    let (_memory, manager) = memory().await;
    let key = "sections/guard";
    let guard = manager.lock(key).acquire().await.expect("the lock is free");
    tokio::time::sleep(ms(70)).await;
    assert!(collector().closed_spans(key).is_empty());
    guard.release().await.expect("it is held");
    let spans = collector().closed_spans(key);
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].span("held"), "70ms");
    assert_eq!(spans[0].span("template"), "unnamed");
}

#[tokio::test(start_paused = true)]
async fn a_reentry_is_counted_and_no_section_of_its_own() {
    let (_memory, manager) = memory().await;
    let key = "sections/reentry";
    let lock = || dlock::lock(key).template("sections/reentry");
    let inner = async {
        lock().run(async { tracing::info!("inside") }).await?;
        lock().acquire().await?.release().await
    };
    let outer = manager.scope(lock().run(inner)).await;
    outer.expect("the lock is free").expect("it is re-entered");

    assert_eq!(collector().closed_spans(key).len(), 1);
    let inside = collector().line(key, module_path!());
    assert!(!inside.span("token").is_empty());
    let count = |outcome| collector().calls("sections/reentry", "write", outcome);
    assert_eq!(count("granted"), Some(1.0));
    assert_eq!(count("reentered"), Some(2.0));
}
