//! What may stand in a label, and what is said of each metric.

use dlock::{LockError, LockKey, distributed_lock};

use crate::collector::collector;
use crate::{memory, ms};

#[distributed_lock(key = ["labels/account:<from>", "labels/account:<to>"])]
async fn transfer(from: &str, to: &str) -> Result<(), LockError> {
    Ok(())
}

fn report_key(name: &str) -> LockKey {
    LockKey::from(format!("labels/report:{name}"))
}

#[distributed_lock(key = report_key(name))]
async fn report(name: &str) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_key_stands_in_no_label() {
    let (_memory, manager) = memory().await;
    let marked = "needle-in-the-key";
    let work = async {
        transfer(marked, "other").await?;
        report(marked).await?;
        dlock::lock(marked).run(async {}).await
    };
    manager.scope(work).await.expect("every lock is free");

    let scraped = collector().scrape();
    assert!(!scraped.contains(marked), "{scraped}");
    assert!(!collector().lines(marked).is_empty());
    for template in [
        "labels/account:<from>, labels/account:<to>",
        "report_key(name)",
        "unnamed",
    ] {
        let granted = collector().calls(template, "write", "granted");
        assert!(granted >= Some(1.0), "{template}:\n{scraped}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_metric_says_what_it_is() {
    let (memory, manager) = memory().await;
    // Something of everything.
    let lock = || manager.lock("labels/help").template("labels/help");
    let one = lock().run(tokio::time::sleep(ms(60_000)));
    let two = lock().run(async {
        memory.faults().take_away("labels/help");
        std::future::pending::<()>().await;
    });
    // The second lease goes on to the third.
    let three = lock().run(async {});
    let (one, three, two) = tokio::join!(one, three, two);
    assert!(one.is_ok() && two.is_err() && three.is_ok());
    memory.faults().set_unavailable(true);
    assert!(lock().acquire().await.is_err());

    let scraped = collector().scrape();
    for (name, kind) in [
        ("dlock_acquisitions_total", "counter"),
        ("dlock_waiting", "gauge"),
        ("dlock_held", "gauge"),
        ("dlock_wait_seconds", "summary"),
        ("dlock_hold_seconds", "summary"),
        ("dlock_handovers_total", "counter"),
        ("dlock_renewals_total", "counter"),
        ("dlock_losses_total", "counter"),
        ("dlock_store_errors_total", "counter"),
    ] {
        assert!(
            scraped.contains(&format!("# TYPE {name} {kind}\n")),
            "{scraped}"
        );
        assert!(scraped.contains(&format!("# HELP {name} ")), "{name}");
    }
}
