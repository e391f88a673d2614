//! Critical sections that notice when the lock around them fails.

use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dlock::FencingToken;
use tokio::time::sleep;

/// Counts the bodies inside, and remembers the highest number.
#[derive(Debug, Default)]
pub struct Section {
    inside: AtomicUsize,
    most: AtomicUsize,
    entries: AtomicUsize,
}

impl Section {
    /// Enters, lets other tasks run, and leaves.
    pub async fn visit(&self) {
        self.during(tokio::task::yield_now()).await;
    }

    /// Is inside while `body` runs. If it is dropped, it leaves.
    pub async fn during<T>(&self, body: impl Future<Output = T>) -> T {
        let inside = self.inside.fetch_add(1, Relaxed) + 1;
        let _leave = Leave(&self.inside);
        self.most.fetch_max(inside, Relaxed);
        self.entries.fetch_add(1, Relaxed);
        body.await
    }

    /// The greatest number of bodies that were inside together.
    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// The number of bodies so far.
    pub fn entries(&self) -> usize {
        self.entries.load(Relaxed)
    }
}

struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A number that offers only read and write: without a lock around it, additions are lost.
#[derive(Debug, Default)]
pub struct PlainCounter(AtomicU64);

impl PlainCounter {
    /// Reads, lets other tasks run, and writes one more.
    pub async fn add_one(&self) {
        let value = self.0.load(Relaxed);
        tokio::task::yield_now().await;
        self.0.store(value + 1, Relaxed);
    }

    /// Like [`add_one`](Self::add_one), but sleeps for `pause` in between.
    pub async fn add_one_slowly(&self, pause: Duration) {
        let value = self.0.load(Relaxed);
        sleep(pause).await;
        self.0.store(value + 1, Relaxed);
    }

    /// The present value.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The tokens of one key in the order of their grants.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<Vec<FencingToken>>);

impl Tokens {
    /// Notes a token. Must be called inside the critical section.
    pub fn note(&self, token: FencingToken) {
        self.0.lock().expect("the tokens").push(token);
    }

    /// Fails unless each token is greater than the one before.
    pub fn check(&self, count: usize) {
        let tokens = self.0.lock().expect("the tokens");
        assert_eq!(tokens.len(), count, "{tokens:?}");
        assert!(
            tokens.is_sorted_by(|before, after| before < after),
            "{tokens:?}"
        );
        assert!(
            tokens.iter().all(|&token| token > FencingToken::NONE),
            "{tokens:?}"
        );
    }
}
