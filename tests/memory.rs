//! The `memory:` store: the conformance suite, and what only it can do.

mod conformance;
mod support;

use dlock::Config;
use dlock::backend::memory::Memory;

use conformance::{Store, conformance};

struct MemoryStore(Memory);

impl Store for MemoryStore {
    async fn start() -> Self {
        Self(Memory::new())
    }

    fn config(&self) -> Config {
        Config::with_backend(self.0.clone())
    }

    async fn take_away(&self, key: &str) {
        assert!(self.0.faults().take_away(key), "nobody held `{key}`");
    }

    async fn set_outage(&self, outage: bool) {
        self.0.faults().set_unavailable(outage);
    }

    async fn restart(&mut self) -> bool {
        false
    }

    async fn records(&self) -> Option<usize> {
        None
    }
}

conformance!(crate::MemoryStore);
