//! Under which span an event of a lease is told, and when that span ends.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use dlock_runtime::current;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::manager;
use crate::support::locks::held;
use crate::support::log::Log;

/// The spans that are open, each with its key, and the events, each with the key of its span.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    last: u64,
    open: HashMap<u64, (String, usize)>,
    events: Vec<(&'static str, Option<String>)>,
}

impl Spans {
    fn open(&self) -> Vec<String> {
        let seen = self.0.lock().expect("no panic");
        seen.open.values().map(|(key, _)| key.clone()).collect()
    }

    /// The keys of the spans in which there was an event of this target.
    fn around(&self, target: &str) -> Vec<Option<String>> {
        let seen = self.0.lock().expect("no panic");
        let events = seen.events.iter().filter(|(of, _)| *of == target);
        events.map(|(_, key)| key.clone()).collect()
    }
}

struct Key(String);

impl Visit for Key {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "key" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut key = Key(String::new());
        span.record(&mut key);
        let mut seen = self.0.lock().expect("no panic");
        seen.last += 1;
        let id = seen.last;
        seen.open.insert(id, (key.0, 1));
        Id::from_u64(id)
    }
    fn clone_span(&self, id: &Id) -> Id {
        let mut seen = self.0.lock().expect("no panic");
        seen.open.get_mut(&id.into_u64()).expect("open").1 += 1;
        id.clone()
    }
    fn try_close(&self, id: Id) -> bool {
        let mut seen = self.0.lock().expect("no panic");
        let references = &mut seen.open.get_mut(&id.into_u64()).expect("open").1;
        *references -= 1;
        let last = *references == 0;
        if last {
            seen.open.remove(&id.into_u64());
        }
        last
    }
    fn event(&self, event: &Event<'_>) {
        let mut seen = self.0.lock().expect("no panic");
        let parent = event.parent().map(Id::into_u64);
        let key = parent.map(|id| seen.open[&id].0.clone());
        seen.events.push((event.metadata().target(), key));
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_a_lease_is_told_in_the_section_that_it_serves() {
    let (_log, _guard) = Log::of_this_thread();
    let spans = Spans::default();
    let _spans = tracing::subscriber::set_default(spans.clone());
    let (memory, here) = manager().await;
    let guard = held(here.lock("k")).await;
    memory.faults().take_away("k");
    guard.lost().await;
    assert_eq!(spans.around("dlock::loss"), [Some("k".to_owned())]);
    drop(guard);
    held(here.lock("l")).await.release().await.expect("held");
    let released = spans.around("dlock::release");
    assert_eq!(released.last(), Some(&Some("l".to_owned())));
}

/// A span shows how long a lock was held.
#[tokio::test(start_paused = true)]
async fn a_section_ends_with_its_lock_though_somebody_keeps_what_it_saw() {
    let (_log, _guard) = Log::of_this_thread();
    let spans = Spans::default();
    let _spans = tracing::subscriber::set_default(spans.clone());
    let (_, here) = manager().await;
    let body = async {
        assert_eq!(spans.open(), ["k"]);
        current().expect("inside")
    };
    let kept = here.lock("k").run(body).await.expect("free");
    assert!(!kept.is_held());
    assert_eq!(spans.open(), [""; 0]);
}
