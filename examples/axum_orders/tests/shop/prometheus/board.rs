//! The board without Grafana: each of its expressions gives series, which have the labels
//! that are shown of them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::server::Prometheus;

const BOARD: &str = include_str!("../../../../../docs/grafana/dlock.json");

/// What Grafana puts in place of its variables.
const VARIABLES: [(&str, &str); 4] = [
    ("$__rate_interval", "1m"),
    ("$__range", "5m"),
    ("$job", ".*"),
    ("$template", ".*"),
];

pub(super) async fn can_be_drawn(prometheus: &Prometheus) {
    let board: Value = serde_json::from_str(BOARD).expect("the board is JSON");
    let names = prometheus.names().await;
    let panels = list(&board["panels"]).filter(|panel| panel["type"] != "row");
    let mut drawn = BTreeSet::new();
    for panel in panels {
        assert!(drawn.insert(panel["id"].as_u64()), "twice: {}", panel["id"]);
        let targets: Vec<_> = list(&panel["targets"]).collect();
        assert!(!targets.is_empty(), "nothing is shown: {}", panel["title"]);
        for target in targets {
            let expression = text(&target["expr"]);
            names_exist(expression, &names);
            let series = prometheus.query(&filled_in(expression)).await;
            assert!(!series.is_empty(), "{}: {expression}", panel["title"]);
            for label in shown(text(&target["legendFormat"])) {
                let has_it = |series: &Value| series["metric"][label].is_string();
                assert!(series.iter().all(has_it), "no `{label}`: {expression}");
            }
        }
    }
    assert!(drawn.len() > 10, "{drawn:?}");
    for variable in list(&board["templating"]["list"]) {
        names_exist(&variable["query"].to_string(), &names);
    }
}

/// Whether the exporter has every metric that the expression names.
pub(super) fn names_exist(expression: &str, names: &BTreeSet<String>) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    for word in expression.split(|c| !is_part(c)) {
        let is_ours = word.starts_with("dlock_") || word.starts_with("dlock:");
        assert!(!is_ours || names.contains(word), "no {word}: {expression}");
    }
}

fn filled_in(expression: &str) -> String {
    let filled = VARIABLES
        .iter()
        .fold(expression.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        });
    assert!(!filled.contains('$'), "a variable is missing: {filled}");
    filled
}

/// The labels of a legend such as `{{template}} p99`.
fn shown(legend: &str) -> impl Iterator<Item = &str> {
    let labels = legend.split("{{").skip(1);
    labels.filter_map(|rest| rest.split("}}").next())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list").iter()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}
