//! Processes of the version before, beside those of this one: while a service is deployed
//! both use the same tables, and neither notices.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dlock::{LockError, LockGuard, LockManager};
use tokio::task::JoinHandle;

use super::Tables;
use crate::support::locks::{connect, held, is_busy, queued, served, shown};
use crate::support::wait::eventually;

/// Who is first in a queue has this time to take a free lock.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// A process that has not beaten for this long has no places any more.
const ALIVE: Duration = Duration::from_secs(4);

/// How one that asks is to be served: to write, or to read.
#[derive(Clone, Copy)]
struct Wants {
    mode: &'static str,
    grant: &'static str,
    renew: &'static str,
    most: i64,
}

const WRITE: Wants = Wants {
    mode: "'w'",
    grant: "{grant_write};",
    renew: "renew_write",
    most: 0,
};

const READ: Wants = Wants {
    mode: "'r'",
    grant: "{grant_read};",
    renew: "renew_read",
    most: i64::MAX,
};

/// A process of the version before. It sends what that version sent, and does what a test
/// tells it to.
pub(crate) struct Old<'a, S> {
    store: &'a S,
    sources: HashMap<&'static str, &'static str>,
}

impl<'a, S: Tables> Old<'a, S> {
    pub(crate) fn of(store: &'a S) -> Self {
        let parts = [include_str!("before.sql"), S::BEFORE];
        let parts = parts.iter().flat_map(|file| file.split("--- ").skip(1));
        Self {
            store,
            sources: parts.filter_map(|part| part.split_once('\n')).collect(),
        }
    }

    fn owner(number: u32) -> String {
        format!("0123456789abcdef.{number}")
    }

    /// Puts what is in braces in its place.
    fn expand(&self, source: &str) -> String {
        let mut pieces = source.trim().split('{');
        let mut out = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (word, rest) = piece.split_once('}').expect("the end of a word");
            let meaning = self.sources.get(word);
            out += &self.expand(meaning.unwrap_or_else(|| panic!("no `{word}`")));
            out += rest;
        }
        out
    }

    /// Runs statements: the rows of so many columns.
    async fn run(
        &self,
        source: &str,
        columns: usize,
        key: &str,
        owner: u32,
        wants: Wants,
    ) -> Vec<Vec<String>> {
        let mut text = self.expand(&source.replace("$grant", wants.grant));
        for (name, value) in [
            // Longer than a test takes: nothing here ends by itself.
            ("$alive", "600000"),
            ("$ttl", "600000"),
            ("$timeout", "60000"),
            ("$seconds", "60"),
            ("$claim", "1500"),
            ("$pause", "0"),
            ("$tokens", "64"),
            ("$room", "72057594037927936"),
            ("$process", "'0123456789abcdef.0'"),
            ("$key", &format!("'{key}'")),
            ("$owner", &format!("'{}'", Self::owner(owner))),
            ("$mode", wants.mode),
            ("$most", &wants.most.to_string()),
            // Of one request alone, and without permits.
            ("[", ""),
            ("]", ""),
            ("$hurry", ""),
            ("$calm", ""),
            ("$beside", ""),
            ("$permits", ""),
        ] {
            text = text.replace(name, value);
        }
        let statements = text.split(';').map(str::trim);
        let statements: Vec<_> = statements.filter(|one| !one.is_empty()).collect();
        let mut rows = self.store.rows(&statements.join(";\n")).await;
        rows.retain(|row| row.len() == columns);
        rows
    }

    pub(crate) async fn makes_its_tables(&self) {
        self.run("{create_tables}", 0, "", 0, WRITE).await;
    }

    /// As it does when it connects.
    async fn finds_its_tables(&self) {
        let rows = self.run("{check}", 5, "", 0, WRITE).await;
        assert_eq!(rows[0][0], "1", "the version that it knows");
    }

    /// In the cheapest way, as it does at first: the token, if nobody has the lock or waits.
    pub(crate) async fn takes(&self, key: &str, owner: u32) -> Option<u64> {
        let rows = self.run(self.sources["take"], 4, key, owner, WRITE).await;
        let row = rows.last().filter(|row| row[3] == "0")?;
        row[1].parse().ok()
    }

    /// In the queue if it has to wait.
    async fn asks(&self, key: &str, owner: u32, wants: Wants) -> Option<u64> {
        let acquire = self.sources["acquire"].replace("$queue", "{wait_alive};");
        let rows = self.run(&acquire, 4, key, owner, wants).await;
        let row = rows.first().filter(|row| row[0] == "1")?;
        row[1].parse().ok()
    }

    async fn renews(&self, key: &str, owner: u32, wants: Wants) -> bool {
        let renew = format!("{{begin_lease}};\n{{{}}};\nCOMMIT", wants.renew);
        let rows = self.run(&renew, 1, key, owner, wants).await;
        rows == [[Self::owner(owner)]]
    }

    /// Whether it was a writer's.
    pub(crate) async fn releases(&self, key: &str, owner: u32) -> bool {
        let rows = self.run("{release}", 1, key, owner, WRITE).await;
        !rows.is_empty()
    }

    /// The same of a reader, or of one that waits.
    async fn leaves(&self, key: &str, owner: u32) -> bool {
        let rows = self.run("{leave}", 1, key, owner, WRITE).await;
        rows == [["1"]]
    }

    /// Says that it is alive: for which of its waiters a lock is free.
    async fn beats(&self) -> Vec<String> {
        let rows = self.run(self.sources["beat"], 3, "", 0, WRITE).await;
        let free = rows.into_iter().filter(|row| row[2] == "1");
        free.map(|mut row| row.swap_remove(0)).collect()
    }

    async fn cleans(&self) {
        self.run("{clean}", 1, "", 0, WRITE).await;
    }
}

/// Runs the SQL of the page while the process of the version before has a lock, a reader and
/// a waiter.
pub(crate) async fn processes_of_the_version_before_go_on_beside<S: Tables>(store: &mut S) {
    let old = Old::of(&*store);
    old.makes_its_tables().await;
    let first = old.takes("key", 1).await.expect("the lock");
    assert_eq!(old.asks("key", 2, WRITE).await, None);
    old.asks("read", 3, READ).await.expect("the lock");
    for statement in S::upgrade() {
        store.execute(statement).await;
    }
    let new = connect(store.as_they_are()).await;
    old.finds_its_tables().await;
    old.cleans().await;
    is_busy(new.lock("key").try_acquire().await);
    is_busy(new.lock("read").try_acquire().await);
    assert!(old.renews("key", 1, WRITE).await);
    assert!(old.renews("read", 3, READ).await);
    // The waiter goes, so that nobody has to be quick.
    assert!(!old.leaves("key", 2).await);
    let waiting = tokio::spawn(new.lock("key").acquire());
    queued(&new, "key", 1).await;
    assert!(old.releases("key", 1).await);
    let guard = served(waiting).await;
    assert!(u64::from(guard.token()) > first);
    // Whom it was of, it cannot renew or give back any more.
    assert!(!old.renews("key", 1, WRITE).await);
    assert!(!old.releases("key", 1).await);
    guard.release().await.expect("it is still held");
    assert!(old.leaves("read", 3).await);
    drop(held(new.lock("read")).await);
}

/// Whoever came first goes first, whichever version it is of.
pub(crate) async fn turns_are_kept_between_versions<S: Tables>(store: &mut S) {
    let old = Old::of(&*store);
    old.makes_its_tables().await;
    for statement in S::upgrade() {
        store.execute(statement).await;
    }
    let new = connect(store.as_they_are()).await;
    let mut rounds = 0;
    eventually("nobody was slow to take what was free", async || {
        rounds += 1;
        take_turns(&old, &new, &format!("key:{rounds}")).await
    })
    .await;
}

/// `None`: one did not take it in its time, and lost its turn.
async fn take_turns<S: Tables>(old: &Old<'_, S>, new: &LockManager, key: &str) -> Option<()> {
    let first = old.takes(key, 1).await.expect("the lock");
    assert_eq!(old.asks(key, 2, WRITE).await, None);
    let begun = Instant::now();
    let waiting = tokio::spawn(new.lock(key).acquire());
    queued(new, key, 2).await;
    assert_eq!(old.asks(key, 3, WRITE).await, None);
    let seen = shown(new, key).await;
    if begun.elapsed() >= ALIVE {
        return leave(old, key, waiting).await;
    }
    assert_eq!(seen.holders[0].owner, Old::<S>::owner(1));
    let queue: Vec<_> = seen.queue.iter().map(|waiter| &*waiter.owner).collect();
    assert_eq!(
        (queue[0], queue[2]),
        (&*Old::<S>::owner(2), &*Old::<S>::owner(3))
    );
    old.cleans().await;

    let begun = Instant::now();
    assert!(old.releases(key, 1).await);
    let free = old.beats().await;
    let second = old.asks(key, 2, WRITE).await;
    if begun.elapsed() >= CLAIM {
        return leave(old, key, waiting).await;
    }
    assert_eq!(free, [Old::<S>::owner(2)], "it alone is first");
    let second = second.expect("its turn");
    assert!(second > first);
    assert!(!waiting.is_finished());

    assert!(old.renews(key, 2, WRITE).await);
    assert!(old.releases(key, 2).await);
    let guard = served(waiting).await;
    assert!(u64::from(guard.token()) > second);
    assert_eq!(old.asks(key, 3, WRITE).await, None);
    assert_eq!(old.beats().await, [""; 0]);
    assert!(!old.renews(key, 3, WRITE).await);

    let third = u64::from(guard.token());
    guard.release().await.expect("the release");
    assert_eq!(old.beats().await, [Old::<S>::owner(3)]);
    let fourth = old.asks(key, 3, WRITE).await.expect("its turn");
    assert!(fourth > third);
    assert!(old.releases(key, 3).await);
    Some(())
}

/// Nobody waits any more.
async fn leave<S: Tables>(
    old: &Old<'_, S>,
    key: &str,
    waiting: JoinHandle<Result<LockGuard, LockError>>,
) -> Option<()> {
    waiting.abort();
    for owner in [2, 3] {
        old.leaves(key, owner).await;
    }
    None
}

/// What a process of the version before waits for stays its own for as long as it beats, and
/// readers of both share a lock.
pub(crate) async fn readers_and_places_are_kept_between_versions<S: Tables>(store: &mut S) {
    let old = Old::of(&*store);
    old.makes_its_tables().await;
    for statement in S::upgrade() {
        store.execute(statement).await;
    }
    let (new, other) = (
        connect(store.as_they_are()).await,
        connect(store.as_they_are()).await,
    );
    let guard = held(new.lock("key").read()).await;
    let beside = old.asks("key", 1, READ).await.expect("readers share it");
    assert!(beside > u64::from(guard.token()));
    assert_eq!(shown(&new, "key").await.holders.len(), 2);
    is_busy(other.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
    assert!(old.renews("key", 1, READ).await);
    is_busy(other.lock("key").try_acquire().await);
    assert!(old.leaves("key", 1).await);

    let guard = held(new.lock("key")).await;
    assert_eq!(old.asks("key", 2, READ).await, None);
    let places = async || store.number("SELECT COUNT(*) FROM dlock_queue").await;
    let last_beat = "UPDATE dlock_process SET alive_until = 1";
    // Whoever asks takes the places of the dead out of the queue.
    assert_eq!(store.execute(last_beat).await, 1);
    assert_eq!(old.beats().await, [""; 0]);
    is_busy(other.lock("key").read().try_acquire().await);
    assert_eq!(places().await, 1, "it has beaten since");
    store.execute(last_beat).await;
    is_busy(other.lock("key").read().try_acquire().await);
    assert_eq!(places().await, 0, "it is dead");
    assert_eq!(old.asks("key", 2, READ).await, None, "a new place");
    guard.release().await.expect("the release");
    old.asks("key", 2, READ).await.expect("it is free");
    assert!(old.leaves("key", 2).await);
}
