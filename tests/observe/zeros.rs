//! Counters from zero: who computes an increase sees the first event only if the series
//! was there before it.

use std::collections::BTreeMap;

use dlock::{LockError, LockManager};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::collector::collector;
use crate::support::locks::{is_busy, is_done};
use crate::{memory, ms};

const PAGE: &str = include_str!("../../docs/observing.md");

/// Every counter that the page names, with the labels of its own, of a call in this mode.
fn documented(mode: &str) -> Vec<String> {
    let rows = PAGE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `dlock_")?.split(" | ");
        let name = cells.next()?.trim_matches('`');
        let kind = cells.next()?;
        let labels = cells.next()?.trim_end_matches([' ', '|']);
        kind.starts_with("counter")
            .then(|| (format!("dlock_{name}"), labels))
    });
    let mut all = Vec::new();
    for (name, labels) in rows {
        let mut series = vec![Vec::new()];
        for label in labels.split("; ").filter(|label| !label.is_empty()) {
            let (label, values) = match label.split_once(": ") {
                Some((label, values)) => (label, values.split(", ").filter_map(quoted).collect()),
                None => (label, vec![mode]),
            };
            let label = label.trim_matches('`');
            let with = |series: Vec<String>| {
                let one_more = |value| [&series[..], &[format!("{label}=\"{value}\"")]].concat();
                values.iter().map(one_more).collect::<Vec<_>>()
            };
            series = series.into_iter().flat_map(with).collect();
        }
        all.extend(
            series
                .iter()
                .map(|own| format!("{name}{{{}}}", own.join(","))),
        );
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

/// A value, without what the page says of it.
fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('`')?.split('`').next()
}

/// The counters of a template in what was scraped, in the form of [`documented`].
fn counters(scraped: &str, template: &str) -> BTreeMap<String, u64> {
    let of_every = format!("{{template=\"{template}\",store=\"memory\"");
    let counters = scraped.lines().filter_map(|line| {
        let (name, rest) = line.split_once(&of_every)?;
        let (own, value) = rest.split_once("} ")?;
        let series = format!("{name}{{{}}}", own.trim_start_matches(','));
        name.ends_with("_total")
            .then(|| (series, value.parse().expect("a count")))
    });
    counters.collect()
}

/// All that the page names, and nothing else, at zero but for how the call has ended.
fn are_from_zero(counters: &BTreeMap<String, u64>, mode: &str, outcome: &str) {
    let counted = format!("dlock_acquisitions_total{{mode=\"{mode}\",outcome=\"{outcome}\"}}");
    let expected = documented(mode).into_iter().map(|series| {
        let count = u64::from(series == counted);
        (series, count)
    });
    assert_eq!(counters, &expected.collect());
}

async fn one_call(manager: &LockManager, key: &'static str) {
    let lock = manager.lock(key).template(key);
    lock.run(async {}).await.expect("it is free");
}

/// Who plans for the number of series counts with these.
#[test]
fn the_page_counts_them() {
    let all = documented("write");
    let of_a_mode = all.iter().filter(|series| series.contains("mode="));
    let counted = format!(
        "That is {} series for each template and process, and {} more for each further `mode`.",
        all.len(),
        of_a_mode.count()
    );
    assert!(PAGE.contains(&counted), "{counted}");
}

#[tokio::test(start_paused = true)]
async fn the_first_call_of_a_template_begins_every_counter() {
    let (_memory, manager) = memory().await;
    let now = |key| counters(&collector().scrape(), key);

    let key = "zeros/granted";
    assert_eq!(now(key), BTreeMap::new());
    one_call(&manager, key).await;
    are_from_zero(&now(key), "write", "granted");

    // Each mode has its own.
    let key = "zeros/read";
    let read = manager.lock(key).template(key).read();
    read.run(async {}).await.expect("it is free");
    are_from_zero(&now(key), "read", "granted");
    let key = "zeros/permits";
    let permit = manager.lock(key).template(key).permits(2);
    permit.run(async {}).await.expect("it is free");
    are_from_zero(&now(key), "permits", "granted");

    // One whose work has been done, in this process or in another.
    let key = "zeros/done";
    let once = |template| manager.lock(key).template(template).once(ms(60_000));
    let work = once(key).run(async { Ok::<_, LockError>(()) }).await;
    work.expect("it is free").expect("done");
    are_from_zero(&now(key), "write", "granted");
    is_done(once("zeros/done-again").try_acquire().await);
    are_from_zero(&now("zeros/done-again"), "write", "done");

    // One that is not had, and one that is refused before it is asked for.
    let key = "zeros/busy";
    let _guard = manager.lock(key).acquire().await;
    is_busy(manager.lock(key).template(key).try_acquire().await);
    are_from_zero(&now(key), "write", "busy");
    let key = "zeros/invalid";
    let refused = manager.lock("").template(key).try_acquire().await;
    assert!(refused.is_err());
    are_from_zero(&now(key), "write", "invalid");
}

/// While it waits, there is no outcome yet.
#[tokio::test(start_paused = true)]
async fn they_are_there_before_the_call_has_ended() {
    let (_memory, manager) = memory().await;
    let key = "zeros/waits";
    let _guard = manager.lock(key).acquire().await;
    let waiting = tokio::spawn(manager.lock(key).template(key).acquire());
    tokio::time::sleep(ms(10)).await;
    are_from_zero(&counters(&collector().scrape(), key), "write", "");
    waiting.abort();
}

/// What was called before it came begins with its next call.
#[tokio::test(start_paused = true)]
async fn a_recorder_that_came_late_has_them_too() {
    let (_memory, manager) = memory().await;
    let key = "zeros/late";
    one_call(&manager, key).await;
    let late = PrometheusBuilder::new().build_recorder();
    {
        let _installed = metrics::set_default_local_recorder(&late);
        one_call(&manager, key).await;
        one_call(&manager, "zeros/late-and-new").await;
    }
    let scraped = late.handle().render();
    for template in [key, "zeros/late-and-new"] {
        are_from_zero(&counters(&scraped, template), "write", "granted");
    }
    // And the other one again.
    one_call(&manager, "zeros/afterwards").await;
    let scraped = collector().scrape();
    are_from_zero(&counters(&scraped, "zeros/afterwards"), "write", "granted");
}
