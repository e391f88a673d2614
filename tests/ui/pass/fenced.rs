//! `fenced`, on a store that has no tokens.

use async_trait::async_trait;
use dlock::backend::{
    Backend, BackendError, Capabilities, Grant, LockInfo, Released, Renewed, Request,
};
use dlock::{Config, LockError, LockManager, distributed_lock};

#[distributed_lock(key = "fenced", fenced)]
async fn fenced() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "not fenced")]
async fn not_fenced() -> Result<(), LockError> {
    Ok(())
}

#[derive(Debug)]
struct WithoutTokens;

#[async_trait]
impl Backend for WithoutTokens {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("without tokens")
    }

    async fn try_acquire(&self, _: &Request) -> Result<Option<Grant>, BackendError> {
        Err(BackendError::unavailable("asked"))
    }

    async fn acquire(&self, _: &Request) -> Result<Grant, BackendError> {
        Err(BackendError::unavailable("asked"))
    }

    async fn renew(&self, _: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        Vec::new()
    }

    async fn release(&self, _: &Request) -> Result<Released, BackendError> {
        Err(BackendError::unavailable("asked"))
    }

    async fn inspect(&self, _: &str) -> Result<Option<LockInfo>, BackendError> {
        Ok(None)
    }

    async fn list(&self, _: &str) -> Result<Vec<LockInfo>, BackendError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn is_refused_and_the_store_not_asked() {
    let config = Config::with_backend(WithoutTokens);
    let manager = LockManager::connect(config)
        .await
        .expect("nothing to connect to");
    let refused = manager.scope(fenced()).await;
    assert!(
        matches!(refused, Err(LockError::Unsupported { .. })),
        "{refused:?}"
    );
    let asked = manager.scope(not_fenced()).await;
    assert!(
        matches!(asked, Err(LockError::Unavailable { .. })),
        "{asked:?}"
    );
}
