//! What the library warns of while it connects.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Where it speaks of its own settings, and of the store's.
const TARGETS: [&str; 2] = ["dlock", "dlock::store"];

/// Runs this, and gives what was warned of meanwhile, if nobody else is to hear it.
pub(super) async fn heard<T>(listens: bool, work: impl Future<Output = T>) -> (T, Vec<String>) {
    let heard = Heard::default();
    // Connecting speaks on a thread of its own, so it is for all of them. Who has asked for
    // a log (`-v`) has set one before, and reads it there.
    let listens = listens && tracing::subscriber::set_global_default(heard.clone()).is_ok();
    let done = work.await;
    let heard = match listens {
        true => std::mem::take(&mut *heard.lock()),
        false => Vec::new(),
    };
    (done, heard)
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_told = *metadata.level() <= Level::WARN && TARGETS.contains(&metadata.target());
        metadata.is_event() && is_told
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(Option<String>);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = Some(format!("{value:?}"));
                }
            }
        }
        let mut message = Message(None);
        event.record(&mut message);
        let mut heard = self.lock();
        if let Some(message) = message.0
            && !heard.contains(&message)
        {
            heard.push(message);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
