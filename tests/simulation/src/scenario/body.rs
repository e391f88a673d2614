//! The body of a critical section.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock::LockError;

use crate::checker::Resource;
use crate::history::{History, Key};
use crate::world::Process;

/// What is done under a lock. Read from the seed before it is called.
#[derive(Clone)]
pub(crate) struct Body {
    pub(crate) history: Arc<History>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) process: Arc<Process>,
    pub(crate) call: usize,
    pub(crate) keys: Vec<Key>,
    pub(crate) reads: bool,
    /// How often it goes through what it does, and how long it rests before each.
    pub(crate) rounds: u32,
    pub(crate) rests: Duration,
}

impl Body {
    /// Inside the lock: reads, and writes what it has read and one more.
    pub(crate) async fn run(self) -> Result<(), LockError> {
        let tokens = match dlock::current() {
            Some(held) => held.tokens(),
            None => {
                self.history
                    .violation(format!("call {} runs unlocked", self.call));
                return Ok(());
            }
        };
        let keys: Vec<_> = self
            .keys
            .iter()
            .copied()
            .zip(tokens.into_iter().map(u64::from))
            .collect();
        let body = self
            .history
            .enters(self.call, self.process.id, keys.clone(), self.reads);
        let entered = Entered {
            history: Arc::clone(&self.history),
            body,
        };
        Acting {
            entered,
            work: Box::pin(self.work(keys)),
        }
        .await;
        Ok(())
    }

    async fn work(self, keys: Vec<(Key, u64)>) {
        for _ in 0..self.rounds {
            for &(key, token) in &keys {
                let Ok(read) = self.resource.read(key, token).await else {
                    return;
                };
                self.process.sleep(self.rests).await;
                if !self.reads && self.resource.write(key, token, read).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A body, from its first poll until it is dropped.
struct Entered {
    history: Arc<History>,
    body: usize,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.history.leaves(self.body);
    }
}

/// Whenever it is polled, it does something.
struct Acting {
    entered: Entered,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Acting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.entered.history.acts(self.entered.body);
        self.work.as_mut().poll(context)
    }
}
