//! What dlock costs on PostgreSQL, MariaDB and SQLite, beside a bare upsert and delete
//! of a row, each committed, and on PostgreSQL beside the advisory locks of its
//! sessions, in one run.
//!
//!     cargo bench -p dlock-benches --features databases --bench databases
//!
//! It starts servers of its own, which do not wait for the disk: what is measured is the
//! protocol. Contestants take turns in short slices; shown is the median of their ratios
//! with the quartiles. Without `--bench`, which `cargo bench` adds, each row is run for
//! a moment.

#[path = "../beside.rs"]
mod beside;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/databases"]
mod databases {
    pub(crate) mod server;
}
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/mysql/kind.rs"]
mod mysql;
mod pgbench;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/postgres/kind.rs"]
mod postgres;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use beside::{Effort, Other, compare};
use databases::server::{Kind, Server};
use dlock_benches::{Advisory, BareSql, Dlock, Locker};
use mysql::MariaDb;
use postgres::PostgreSql;
use support::dir::TempDir;
use tokio::runtime::Runtime;

const TASKS: usize = 64;

fn main() {
    let effort = Effort::asked_for(Duration::from_millis(100));
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let server = Server::<PostgreSql>::start(PostgreSql::FAST).await;
        let url = server.url(PostgreSql::OWN, server.port());
        let dlock = beside_bare("PostgreSQL", &url, &effort).await;
        println!();
        pgbench::compare(&dlock, server.port(), &effort, TASKS).await;
        println!();
        let advisory = Advisory::connect(&url).await;
        compare(&dlock, &advisory, Other::Waits, &effort, 16).await;
        println!();

        let server = Server::<MariaDb>::start(MariaDb::FAST).await;
        let url = server.url(MariaDb::OWN, server.port());
        beside_bare("MariaDB", &url, &effort).await;
        println!();

        let folder = TempDir::default();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        beside_bare("SQLite", &url, &effort).await;
    });
}

async fn beside_bare(title: &str, url: &str, effort: &Effort) -> Dlock {
    println!("{title}:\n");
    let is_file = url.starts_with("sqlite:");
    let create = if is_file { "" } else { "?create_tables=true" };
    let dlock = Dlock::connect(&format!("{url}{create}")).await;
    let bare = BareSql::connect(url).await;
    compare(&dlock, &bare, Other::DoesNotWait, effort, TASKS).await;
    dlock
}
