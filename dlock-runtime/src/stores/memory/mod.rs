//! The embedded store: locks of this process, with the semantics by which every other store is
//! measured.
//!
//! It uses tokio's clock, so a test with paused time controls its ttls. A test can also [inject
//! faults](Faults): take a lease away, make the store unavailable, delay its answers.

mod faults;
mod store;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use self::faults::Faults;
use self::faults::Shared;
use self::store::{Answer, Turn};

use crate::backend::losses::Losses;
use crate::backend::{
    Backend, BackendError, Capabilities, Grant, HolderInfo, LockInfo, Owner, Released, Renewed,
    Request, TokenTier, WaiterInfo,
};

/// The `memory:` store.
///
/// Clones share their locks, so that several managers, each standing for a
/// process, can contend in one test:
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// use dlock::backend::memory::Memory;
/// use dlock::{Config, LockError, LockManager};
///
/// let memory = Memory::new();
/// let here = LockManager::connect(Config::with_backend(memory.clone())).await?;
/// let there = LockManager::connect(Config::with_backend(memory.clone())).await?;
/// let guard = here.lock("nightly").try_acquire().await?;
/// let refused = there.lock("nightly").try_acquire().await;
/// assert!(matches!(refused, Err(LockError::Busy { .. })));
///
/// memory.faults().take_away("nightly");
/// guard.lost().await;
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct Memory {
    shared: Arc<Shared>,
    /// Every clone that serves a manager receives all losses.
    losses: Arc<Losses>,
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a test can make go wrong in this store and its clones.
    #[must_use]
    pub fn faults(&self) -> Faults {
        let shared = Arc::clone(&self.shared);
        Faults { shared }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            losses: Arc::default(),
        }
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: true,
            permits: true,
            once: true,
            local: true,
            ..Capabilities::new("memory")
        }
    }

    async fn start(&self) -> Result<(), BackendError> {
        self.shared.pass().await?;
        // Not earlier: without a manager, nobody would collect the losses.
        self.shared.tells(&self.losses);
        Ok(())
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        self.shared.pass().await?;
        let answer = self.shared.store().try_acquire(request, Instant::now());
        match answer {
            Answer::Granted(grant) => Ok(Some(grant)),
            Answer::Held((), other) => {
                other.into_iter().for_each(|other| request.note_mode(other));
                Ok(None)
            }
            Answer::Done => Err(BackendError::done()),
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        self.shared.pass().await?;
        // If this future is dropped from here on, the place or the grant is given back.
        let mut place = Place {
            shared: &self.shared,
            request,
            given_up: true,
        };
        // Kept until the store has been asked again: a waiter whose receiver is closed counts as
        // gone.
        let mut told: Option<oneshot::Receiver<Turn>> = None;
        loop {
            let attempt = {
                let mut store = self.shared.store();
                // Messages are sent while the store is locked, so one may have arrived unnoticed.
                let turn = told.as_mut().and_then(|told| told.try_recv().ok());
                if turn == Some(Turn::TakenOut) {
                    return Err(BackendError::taken_out());
                }
                store.acquire(request, Instant::now())
            };
            let queued = match attempt {
                Answer::Granted(grant) => {
                    place.given_up = false;
                    return Ok(grant);
                }
                Answer::Held(queued, other) => {
                    other.into_iter().for_each(|other| request.note_mode(other));
                    queued
                }
                Answer::Done => return Err(BackendError::done()),
            };
            request.note_held();
            // In any case the store is asked again: a grant may have expired before this task got
            // to run, and the holder's lease may have been renewed.
            tokio::select! {
                biased;
                turn = told.insert(queued.told) => {
                    if turn == Ok(Turn::TakenOut) {
                        return Err(BackendError::taken_out());
                    }
                }
                () = tokio::time::sleep_until(queued.until) => {}
                () = self.shared.outage() => {}
            }
            self.shared.pass().await?;
        }
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        match self.shared.pass().await {
            Ok(()) => {
                let mut store = self.shared.store();
                let now = Instant::now();
                requests
                    .iter()
                    .map(|request| Ok(store.renew(request, now)))
                    .collect()
            }
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.shared.pass().await?;
        Ok(self.shared.store().release(request, Instant::now()))
    }

    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        self.shared.pass().await?;
        Ok(self.shared.store().forget(key, Instant::now()))
    }

    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        self.shared.pass().await?;
        self.shared.store().raise_tokens(floor);
        Ok(())
    }

    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        self.shared.pass().await?;
        let now = Instant::now();
        let broken = self.shared.store().break_lock(key, &holder.owner, now);
        self.shared.tell_losses(broken.as_slice());
        Ok(was_there(broken.is_some()))
    }

    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        self.shared.pass().await?;
        let now = Instant::now();
        let taken_out = self.shared.store().break_waiter(key, &waiter.owner, now);
        Ok(was_there(taken_out))
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.shared.pass().await?;
        Ok(self.shared.store().inspect(key, Instant::now()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.shared.pass().await?;
        Ok(self.shared.store().list(prefix, Instant::now()))
    }

    async fn next_losses(&self) -> Vec<Owner> {
        self.losses.next().await
    }
}

fn was_there(was_there: bool) -> Released {
    match was_there {
        true => Released::Released,
        false => Released::NotHeld,
    }
}

/// A place in the queue, or a grant that has not been returned to the caller yet.
struct Place<'a> {
    shared: &'a Shared,
    request: &'a Request,
    given_up: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.given_up {
            self.shared.store().release(self.request, Instant::now());
        }
    }
}
