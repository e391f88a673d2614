//! Stores that are the `memory:` store, except for some of their answers.

use std::fmt::Debug;
use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::backend::{
    Backend, BackendError, Capabilities, Finding, Grant, HolderInfo, Listed, LockInfo, Owner,
    Released, Renewed, Request, Servers, WaiterInfo,
};
use dlock::{Config, LockManager};

use super::locks::connect;

/// The answers in which such a store differs. All others come from its [`memory`](Self::memory),
/// which is never started.
#[async_trait::async_trait]
#[allow(missing_docs, reason = "as in `Backend`")]
pub trait Otherwise: Debug + Send + Sync + 'static {
    fn memory(&self) -> &Memory;

    fn capabilities(&self) -> Capabilities {
        self.memory().capabilities()
    }

    fn request_timeout(&self) -> Option<Duration> {
        None
    }

    async fn settle(&self) {}

    async fn stop(&self) {}

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        self.memory().try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        self.memory().acquire(request).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.memory().renew(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.memory().release(request).await
    }

    /// Called before each look at its locks.
    async fn before_a_look(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory().list(prefix).await
    }

    async fn next_losses(&self) -> Vec<Owner> {
        std::future::pending().await
    }

    fn has_ended(&self, _: Owner) -> bool {
        false
    }

    /// A manager of this store.
    async fn manager(self) -> LockManager
    where
        Self: Sized,
    {
        connect(self.config()).await
    }

    fn config(self) -> Config
    where
        Self: Sized,
    {
        Config::with_backend(OverMemory(self))
    }
}

#[derive(Debug)]
struct OverMemory<T>(T);

// A default of the trait would answer in place of the memory.
#[deny(clippy::missing_trait_methods)]
#[async_trait::async_trait]
impl<T: Otherwise> Backend for OverMemory<T> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn servers(&self) -> Option<Servers> {
        self.0.memory().servers()
    }

    fn request_timeout(&self) -> Option<Duration> {
        self.0.request_timeout()
    }

    fn call_yourself(&self, label: &str) {
        self.0.memory().call_yourself(label);
    }

    /// Losses come from [`Otherwise::next_losses`].
    async fn start(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn examine(&self) -> Vec<Finding> {
        self.0.memory().examine().await
    }

    async fn settle(&self) {
        self.0.settle().await;
    }

    async fn stop(&self) {
        self.0.stop().await;
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        self.0.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        self.0.acquire(request).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.0.renew(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.0.release(request).await
    }

    async fn forget(&self, key: &str) -> Result<bool, BackendError> {
        self.0.memory().forget(key).await
    }

    async fn raise_tokens(&self, floor: u64) -> Result<(), BackendError> {
        self.0.memory().raise_tokens(floor).await
    }

    async fn break_lock(&self, key: &str, holder: &HolderInfo) -> Result<Released, BackendError> {
        self.0.memory().break_lock(key, holder).await
    }

    async fn break_waiter(&self, key: &str, waiter: &WaiterInfo) -> Result<Released, BackendError> {
        self.0.memory().break_waiter(key, waiter).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.0.before_a_look().await?;
        self.0.memory().inspect(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.before_a_look().await?;
        self.0.list(prefix).await
    }

    async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, BackendError> {
        Ok(Listed::first_of(self.list(prefix).await?, most))
    }

    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        self.0.memory().is_owner(holder, owner)
    }

    async fn next_losses(&self) -> Vec<Owner> {
        self.0.next_losses().await
    }

    fn has_ended(&self, owner: Owner) -> bool {
        self.0.has_ended(owner)
    }
}
