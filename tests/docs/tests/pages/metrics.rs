//! Metrics that a page names are those that there are.

use std::fs;

use crate::markdown::{pages, root};
use crate::none_wrong;

/// Where their names are.
const SOURCE: &str = "dlock-runtime/src/observe/mod.rs";

/// Names that begin like a metric's, and are those of tables.
const TABLES: &str = "dlock-runtime/src/stores/sql/protocol.sql";

#[test]
fn every_metric_is_one() {
    let source = fs::read_to_string(root().join(SOURCE)).expect("the metrics");
    let tables = fs::read_to_string(root().join(TABLES)).expect("the tables");
    let mut wrong = Vec::new();
    for page in pages() {
        let blocks = page.blocks().into_iter();
        let queries = blocks.filter(|block| block.what.info == ["promql"]);
        let queries = queries.map(|block| (block.line, block.what.text));
        let codes = page.codes().into_iter().map(|code| (code.line, code.what));
        for (line, text) in queries.chain(codes) {
            for name in metrics_in(&text) {
                let is_metric = source.contains(&format!("\"{name}\""));
                let is_table = tables.contains(&format!("TABLE IF NOT EXISTS {name} "));
                if !is_metric && !is_table {
                    wrong.push(format!("{}:{line}: there is no `{name}`", page.path));
                }
            }
        }
    }
    none_wrong(&wrong);
}

/// The metrics that a query is about, without what Prometheus adds to the name
/// of a histogram.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("dlock_"));
    metrics.map(|word| {
        let added = ["_bucket", "_sum", "_count"];
        let base = added.iter().find_map(|added| word.strip_suffix(added));
        base.unwrap_or(word)
    })
}
