//! The collectors of a user: JSON lines as a log shipper reads them, and what
//! a Prometheus server scrapes.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::Value;
use tracing_subscriber::fmt::format::FmtSpan;

/// Both collectors, installed for the whole process.
pub(crate) struct Collector {
    log: Lines,
    metrics: PrometheusHandle,
}

pub(crate) fn collector() -> &'static Collector {
    static COLLECTOR: OnceLock<Collector> = OnceLock::new();
    COLLECTOR.get_or_init(Collector::install)
}

impl Collector {
    fn install() -> Self {
        let log = Lines::default();
        let lines = log.clone();
        tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
            .with_writer(move || lines.clone())
            .init();
        let metrics = PrometheusBuilder::new()
            .install_recorder()
            .expect("the only recorder");
        Self { log, metrics }
    }

    /// The lines with a span of this key around them, or with this key among
    /// their own fields.
    pub(crate) fn lines(&self, key: &str) -> Vec<Line> {
        let mut lines = self.all_lines();
        lines.retain(|line| line.is_about(key));
        lines
    }

    fn all_lines(&self) -> Vec<Line> {
        let text = self.log.text();
        text.lines()
            .map(|line| Line(serde_json::from_str(line).expect("a line is JSON")))
            .collect()
    }

    /// The only line of this key and target, after how many ever.
    pub(crate) fn line(&self, key: &str, target: &str) -> Line {
        let lines = self.of_target(key, target);
        let [line] = &lines[..] else {
            panic!("one line of {target} on {key}: {:#?}", self.lines(key));
        };
        line.clone()
    }

    pub(crate) fn of_target(&self, key: &str, target: &str) -> Vec<Line> {
        let mut lines = self.lines(key);
        lines.retain(|line| line.target() == target);
        lines
    }

    /// The lines of this target outside of any critical section.
    pub(crate) fn of_no_section(&self, target: &str) -> Vec<Line> {
        let mut lines = self.all_lines();
        lines.retain(|line| line.target() == target && line.span("name").is_empty());
        lines
    }

    /// The `lock` spans of this key that have been closed, with all that was
    /// recorded on them.
    pub(crate) fn closed_spans(&self, key: &str) -> Vec<Line> {
        let mut lines = self.of_target(key, "dlock");
        lines.retain(|line| line.message() == "close");
        lines
    }

    /// The value of a metric whose labels are these, in any order.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.scrape();
        let mut found = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{')?;
            let rest = rest.strip_suffix('}')?;
            let wanted: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
            let all = wanted.iter().all(|label| rest.contains(label));
            let as_long = rest.len() == wanted.join(",").len();
            (found == name && all && as_long).then(|| value.parse().expect("a number"))
        });
        found.next()
    }

    /// The same of a template whose locks are in `memory:`, with these labels besides.
    pub(crate) fn number(&self, name: &str, template: &str, more: &[(&str, &str)]) -> Option<f64> {
        let labels = [("template", template), ("store", "memory")];
        self.metric(name, &[&labels, more].concat())
    }

    /// How many calls have ended like this.
    pub(crate) fn calls(&self, template: &str, mode: &str, outcome: &str) -> Option<f64> {
        let labels = [("mode", mode), ("outcome", outcome)];
        self.number("dlock_acquisitions_total", template, &labels)
    }

    /// How often the store has failed.
    pub(crate) fn store_errors(&self, template: &str, operation: &str) -> Option<f64> {
        let labels = [("operation", operation), ("kind", "unavailable")];
        self.number("dlock_store_errors_total", template, &labels)
    }

    /// The counters of all kinds of failures of the store, as they are scraped.
    pub(crate) fn failures(&self, template: &str) -> Vec<String> {
        let of_template = format!("dlock_store_errors_total{{template=\"{template}\"");
        let scraped = self.scrape();
        let lines = scraped
            .lines()
            .filter(|line| line.starts_with(&of_template));
        lines.map(str::to_owned).collect()
    }

    /// All that a scrape shows.
    pub(crate) fn scrape(&self) -> String {
        self.metrics.render()
    }
}

/// What a subscriber of `tracing` writes.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(crate) fn text(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8(text.clone()).expect("text")
    }
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line of the log.
#[derive(Clone, Debug)]
pub(crate) struct Line(Value);

impl Line {
    fn is_about(&self, key: &str) -> bool {
        let spans = self.0["spans"].as_array().into_iter().flatten();
        spans
            .chain([&self.0["span"], &self.0["fields"]])
            .any(|fields| fields["key"] == key)
    }

    pub(crate) fn target(&self) -> &str {
        self.0["target"].as_str().unwrap_or_default()
    }

    pub(crate) fn level(&self) -> &str {
        self.0["level"].as_str().unwrap_or_default()
    }

    pub(crate) fn message(&self) -> &str {
        self.field("message")
    }

    /// A field of the event, as text.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.0["fields"][name].as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.0["fields"][name].as_u64()
    }

    /// A field of the innermost span around the event, as text.
    pub(crate) fn span(&self, name: &str) -> &str {
        self.0["span"][name].as_str().unwrap_or_default()
    }
}
