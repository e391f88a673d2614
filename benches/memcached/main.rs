//! What dlock costs on memcached, beside a bare `add` and `delete`, in one run.
//!
//!     cargo bench -p dlock-benches --features memcached --bench memcached
//!
//! It starts a `memcached` of its own. Contestants take turns in short slices;
//! shown is the median of their ratios with the quartiles. Without `--bench`,
//! which `cargo bench` adds, each row is run for a moment.

#[path = "../beside.rs"]
mod beside;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use beside::{Effort, Other, compare};
use dlock_benches::{BareMemcached, Dlock, Locker};
use support::memcached::MemcachedServer;
use tokio::runtime::Runtime;

fn main() {
    let effort = Effort::asked_for(Duration::from_millis(60));
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let server = MemcachedServer::start().await;
        let url = server.url();
        let dlock = Dlock::connect(&url).await;
        let bare = BareMemcached::connect(&url).await;
        compare(&dlock, &bare, Other::DoesNotWait, &effort, 64).await;
    });
}
