//! A service that changes its store while it runs, as `docs/migrating.md` says: the versions of
//! it, and a table that refuses a token lower than one it has seen.

use std::sync::{Arc, Mutex};

use dlock::{Config, FencingToken, LockManager, current};
use tokio::task::JoinSet;

use super::critical::Section;
use super::locks::{all_served, config, connect};
use super::wait::HANG;

/// A day of Redis, whose counter goes by its clock's microseconds.
pub(crate) const A_DAY: u64 = 24 * 60 * 60 * 1_000_000;

/// Which locks a version of the service takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    Old,
    /// The new one outside, and the greater token.
    Both,
    New,
}

/// What the service keeps, beside the highest token that wrote.
#[derive(Debug, Default)]
pub(crate) struct Table {
    section: Section,
    mark: Mutex<Option<FencingToken>>,
}

impl Table {
    async fn write(&self, token: FencingToken) {
        let writing = async {
            let mark = self.mark.lock().expect("the mark").replace(token);
            assert!(Some(token) > mark, "{token} behind {mark:?}");
            tokio::task::yield_now().await;
        };
        self.section.during(writing).await;
    }
}

fn token() -> FencingToken {
    current().expect("inside the lock").token()
}

/// Two versions are up: two processes of each, all at work.
pub(crate) async fn both_are_up(table: &Arc<Table>, [old, new]: [&str; 2], versions: [Takes; 2]) {
    const ROUNDS: usize = 15;
    // No store is away: one that is silent is slow.
    let manager = async |url: &str| connect(config(url).request_timeout(HANG)).await;
    let mut working = JoinSet::new();
    for takes in versions.into_iter().cycle().take(4) {
        let (old, new) = (manager(old).await, manager(new).await);
        let table = Arc::clone(table);
        working.spawn(async move {
            for _ in 0..ROUNDS {
                let [old, new] = [&old, &new].map(|manager: &LockManager| manager.lock("stock"));
                match takes {
                    Takes::Old => old.run(async { table.write(token()).await }).await?,
                    Takes::New => new.run(async { table.write(token()).await }).await?,
                    Takes::Both => {
                        let both = async {
                            let outer = token();
                            old.run(async { table.write(outer.max(token())).await })
                                .await
                        };
                        new.run(both).await??;
                    }
                }
            }
            Ok(())
        });
    }
    all_served(working).await;
    assert_eq!(table.section.most(), 1, "two were inside");
}

/// What an operator does once: a process that names the floor.
pub(crate) async fn lift(url: &str, above: u64) {
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}token_floor={above}");
    connect(Config::from_url(&url).expect("a valid URL")).await;
}

/// A store, and what the page says of its highest token.
pub(crate) struct Place<H> {
    pub(crate) url: String,
    pub(crate) highest: H,
}

/// There, in two releases; and back, in two more.
pub(crate) async fn there_and_back(
    one: Place<impl AsyncFn() -> u64>,
    other: Place<impl AsyncFn() -> u64>,
) {
    let table = Arc::new(Table::default());
    change(&table, &one, &other).await;
    change(&table, &other, &one).await;
}

async fn change(
    table: &Arc<Table>,
    from: &Place<impl AsyncFn() -> u64>,
    to: &Place<impl AsyncFn() -> u64>,
) {
    let urls = [&*from.url, &*to.url];
    // Whose tokens count in a release is above the other.
    lift(&from.url, (to.highest)().await + A_DAY).await;
    both_are_up(table, urls, [Takes::Old, Takes::Both]).await;
    lift(&to.url, (from.highest)().await + A_DAY).await;
    both_are_up(table, urls, [Takes::Both, Takes::New]).await;
}
