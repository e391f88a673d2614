//! Everything that was logged, as text.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Collects every event and span of the process, at every level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    /// Collects from now on. Works once in a process.
    pub(crate) fn capture() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).expect("the only subscriber");
        log
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().expect("the log").clone()
    }

    fn line(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Fields)) {
        let mut fields = Fields(format!("{} {}", metadata.level(), metadata.name()));
        record(&mut fields);
        let mut text = self.0.lock().expect("the log");
        text.push_str(&fields.0);
        text.push('\n');
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.line(span.metadata(), |fields| span.record(fields));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut fields = Fields(String::from("recorded"));
        values.record(&mut fields);
        let mut text = self.0.lock().expect("the log");
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
