//! The advisory locks of PostgreSQL's own sessions.

use std::future::Future;
use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::query;

use crate::Locker;

/// `pg_advisory_lock` and `pg_advisory_unlock`, on a session that is held while
/// the body runs. No token, no ttl: the lock is the session's.
#[derive(Clone, Debug)]
pub struct Advisory {
    pool: PgPool,
}

impl Locker for Advisory {
    const NAME: &'static str = "pg_advisory_lock";

    async fn connect(url: &str) -> Self {
        let url = url.split('?').next().unwrap_or_default();
        let pool = PgPoolOptions::new()
            .max_connections(64)
            .acquire_timeout(Duration::from_secs(60));
        Self {
            pool: pool.connect(url).await.expect("a connection"),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let mut session = self.pool.acquire().await.expect("a session");
        query("SELECT pg_advisory_lock(hashtextextended($1, 0))")
            .bind(key)
            .execute(&mut *session)
            .await
            .expect("the lock");
        let value = body.await;
        query("SELECT pg_advisory_unlock(hashtextextended($1, 0))")
            .bind(key)
            .execute(&mut *session)
            .await
            .expect("an answer");
        value
    }
}
