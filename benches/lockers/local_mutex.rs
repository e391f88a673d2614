//! What a process has without any store: one mutex of tokio's, whatever the key.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::Locker;

/// `tokio::sync::Mutex`.
#[derive(Clone, Debug)]
pub struct LocalMutex(Arc<Mutex<()>>);

impl Locker for LocalMutex {
    const NAME: &'static str = "tokio's Mutex";

    async fn connect(_: &str) -> Self {
        Self(Arc::default())
    }

    async fn section<T: Send>(&self, _: &str, body: impl Future<Output = T> + Send) -> T {
        let _held = self.0.lock().await;
        body.await
    }
}
