//! What dlock costs on PostgreSQL, beside the advisory locks of its sessions, in
//! one run.
//!
//!     cargo bench -p dlock-benches --features postgres --bench postgres
//!
//! It starts a server of its own, which does not wait for the disk: what is
//! measured is the protocol. Contestants take turns in short slices; shown is
//! the median of their ratios with the quartiles. Without `--bench`, which
//! `cargo bench` adds, each row is run for a moment.

#[path = "../beside.rs"]
mod beside;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/databases"]
mod databases {
    pub(crate) mod server;
}
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/postgres/kind.rs"]
mod kind;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use beside::{Effort, Other, compare};
use databases::server::{Kind as _, Server};
use dlock_benches::{Advisory, Dlock, Locker};
use kind::PostgreSql;
use tokio::runtime::Runtime;

fn main() {
    let effort = Effort::asked_for(Duration::from_millis(100));
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let server = Server::<PostgreSql>::start(PostgreSql::FAST).await;
        let url = server.url("postgres", server.port()) + "?create_tables=true";
        let (dlock, bare) = (Dlock::connect(&url).await, Advisory::connect(&url).await);
        compare(&dlock, &bare, Other::Waits, &effort, 16).await;
    });
}
