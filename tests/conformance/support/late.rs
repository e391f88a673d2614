//! A store whose answers its callers see late, as on a machine that stands still between a question
//! and its answer.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock::backend::{
    Backend, BackendError, Capabilities, Finding, Grant, HolderInfo, Listed, LockInfo, Owner,
    Released, Renewed, Request, Servers, WaiterInfo,
};
use dlock::{Config, LockError};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::polls::{Polled, leave_at_poll};
use super::wait::HANG;

/// How late an answer is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// By this time, in which the caller is not polled. It is polled so often before, so that the
    /// question is sent.
    By(Duration, usize),
    /// It is sent when the test [ends](LateAnswers::end).
    NotSent,
}

/// How late the next answers of a [`LateBackend`] are seen. All others are in time.
#[derive(Debug)]
pub(crate) struct LateAnswers {
    takes: Mutex<Option<Late>>,
    renewals: Mutex<VecDeque<Late>>,
    /// Closed when the test ends.
    until_end: Semaphore,
}

impl Default for LateAnswers {
    fn default() -> Self {
        Self {
            takes: Mutex::default(),
            renewals: Mutex::default(),
            until_end: Semaphore::new(0),
        }
    }
}

impl LateAnswers {
    /// From now on, the answer to each request for a lock is so late.
    pub(crate) fn of_takes(&self, late: Option<Late>) {
        *self.takes.lock().expect("no panic") = late;
    }

    /// The answers to the next renewals. The last of these stays.
    pub(crate) fn of_renewals(&self, late: impl Into<VecDeque<Late>>) {
        *self.renewals.lock().expect("no panic") = late.into();
    }

    /// Sends what was not sent. A release waits for the renewal of its lease, and a manager for its
    /// releases: it would live on beside the tests that follow.
    pub(crate) fn end(&self) {
        self.until_end.close();
    }

    async fn seen<T: Send>(&self, late: Option<Late>, mut asked: Asked<'_, T>) -> T {
        match late {
            None => asked.await,
            Some(Late::NotSent) => {
                // There is no permit, so this ends when it is closed.
                let _ = self.until_end.acquire().await;
                asked.await
            }
            Some(Late::By(time, polls)) => {
                let polled = leave_at_poll(&mut asked, polls, HANG).await;
                sleep(time).await;
                match polled {
                    Polled::Done(answer) => answer,
                    Polled::Dropped | Polled::Waiting => asked.await,
                }
            }
        }
    }

    fn next_take(&self) -> Option<Late> {
        *self.takes.lock().expect("no panic")
    }

    fn next_renewal(&self) -> Option<Late> {
        let mut renewals = self.renewals.lock().expect("no panic");
        match renewals.len() {
            0 | 1 => renewals.front().copied(),
            _ => renewals.pop_front(),
        }
    }
}

/// A backend of any store, around which time passes.
pub(crate) struct LateBackend {
    backend: Arc<dyn Backend>,
    late: Arc<LateAnswers>,
}

impl LateBackend {
    /// Around the backend of this configuration. The settings of its locks are not taken along.
    ///
    /// # Errors
    ///
    /// The configuration is refused.
    pub(crate) fn around(config: Config, late: &Arc<LateAnswers>) -> Result<Self, LockError> {
        Ok(Self {
            backend: config.into_backend()?,
            late: Arc::clone(late),
        })
    }
}

impl fmt::Debug for LateBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

// A default of the trait would answer in place of the store.
#[deny(clippy::missing_trait_methods)]
#[async_trait::async_trait]
impl Backend for LateBackend {
    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn servers(&self) -> Option<Servers> {
        self.backend.servers()
    }

    fn request_timeout(&self) -> Option<Duration> {
        self.backend.request_timeout()
    }

    fn call_yourself(&self, label: &str) {
        self.backend.call_yourself(label);
    }

    async fn start(&self) -> Result<(), BackendError> {
        self.backend.start().await
    }

    async fn examine(&self) -> Vec<Finding> {
        self.backend.examine().await
    }

    async fn settle(&self) {
        self.backend.settle().await;
    }

    async fn stop(&self) {
        self.backend.stop().await;
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        let late = &self.late;
        let asked = self.backend.try_acquire(request);
        late.seen(late.next_take(), asked).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let late = &self.late;
        let asked = self.backend.acquire(request);
        late.seen(late.next_take(), asked).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let late = &self.late;
        let asked = self.backend.renew(requests);
        late.seen(late.next_renewal(), asked).await
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.backend.release(request).await
    }

    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        self.backend.forget(key).await
    }

    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        self.backend.raise_tokens(floor).await
    }

    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        self.backend.break_lock(key, holder).await
    }

    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        self.backend.break_waiter(key, waiter).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.backend.inspect(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.backend.list(prefix).await
    }

    async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, BackendError> {
        self.backend.list_some(prefix, most).await
    }

    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        self.backend.is_owner(holder, owner)
    }

    async fn next_losses(&self) -> Vec<Owner> {
        self.backend.next_losses().await
    }

    fn has_ended(&self, owner: Owner) -> bool {
        self.backend.has_ended(owner)
    }
}
