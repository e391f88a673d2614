//! The log of the process, as text.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};

use super::wait::eventually;

/// Collects the events and spans of the process.
#[derive(Clone, Debug)]
pub struct Log {
    text: Arc<Mutex<String>>,
    level: LevelFilter,
}

impl Log {
    /// Collects everything from now on, at every level. Works once in a process.
    pub fn capture() -> Self {
        Self::of(LevelFilter::TRACE)
    }

    /// The warnings and errors of this process, shared by all tests that ask for them.
    pub fn warnings() -> &'static Self {
        static WARNINGS: OnceLock<Log> = OnceLock::new();
        WARNINGS.get_or_init(|| Self::of(LevelFilter::WARN))
    }

    fn of(level: LevelFilter) -> Self {
        let text = Arc::default();
        let log = Self { text, level };
        tracing::subscriber::set_global_default(log.clone()).expect("the only subscriber");
        log
    }

    /// The warnings and errors of this thread alone, until the guard is dropped.
    pub fn of_this_thread() -> (Self, DefaultGuard) {
        Self::of_this_thread_from(LevelFilter::WARN)
    }

    /// The same, with less important events.
    pub fn of_this_thread_from(level: LevelFilter) -> (Self, DefaultGuard) {
        let log = || Self {
            text: Arc::default(),
            level,
        };
        // While there is one subscriber in the process, tracing asks that of the thread which
        // comes to an event first, for all threads and for good (`Rebuilder::JustOne` in
        // tracing-core's `callsite.rs`). If that thread has none, nobody hears of the event.
        static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| Dispatch::new(log()));
        let log = log();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// The whole text so far.
    pub fn text(&self) -> String {
        self.text.lock().expect("the log").clone()
    }

    /// The whole text since the last call, which is not kept.
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.text.lock().expect("the log"))
    }

    /// The lines that contain `what`.
    pub fn lines_with(&self, what: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(what));
        lines.map(str::to_owned).collect()
    }

    /// Waits until a line has all of these words, and repeats `meanwhile` until then.
    pub async fn says(&self, words: &[&str], mut meanwhile: impl AsyncFnMut()) {
        eventually(&format!("{words:?} is logged"), async || {
            meanwhile().await;
            let text = self.text();
            let mut lines = text.lines();
            let said = lines.any(|line| words.iter().all(|word| line.contains(word)));
            said.then_some(())
        })
        .await;
    }

    fn line(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Fields)) {
        let (level, target) = (metadata.level(), metadata.target());
        let mut fields = Fields(format!("{level} {target} {}", metadata.name()));
        record(&mut fields);
        let mut text = self.text.lock().expect("the log");
        text.push_str(&fields.0);
        text.push('\n');
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.line(span.metadata(), |fields| span.record(fields));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut fields = Fields(String::from("recorded"));
        values.record(&mut fields);
        let mut text = self.text.lock().expect("the log");
        text.push_str(&fields.0);
        text.push('\n');
    }

    fn event(&self, event: &Event<'_>) {
        self.line(event.metadata(), |fields| event.record(fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}
