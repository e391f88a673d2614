//! The bare two round trips, as in Redis's own description of a lock on one
//! server: `SET NX PX`, and a script that deletes the key if it is still ours.
//! No fencing token, no renewal, no queue.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::{Locker, TTL};

const UNLOCK: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0";

/// The longest pause before a held key is asked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// The bare pair over the client's multiplexed connection, which is what dlock
/// has underneath.
#[derive(Clone, Debug)]
pub struct Bare {
    connection: MultiplexedConnection,
    unlock: Arc<redis::Script>,
}

impl Locker for Bare {
    const NAME: &'static str = "bare pair";

    async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("a valid URL");
        Self {
            connection: client
                .get_multiplexed_async_connection()
                .await
                .expect("a connection"),
            unlock: Arc::new(redis::Script::new(UNLOCK)),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let mut connection = self.connection.clone();
        // Of one request only, as that description asks for.
        let owner = fastrand::u128(..).to_ne_bytes();
        loop {
            let taken: Option<()> = redis::cmd("SET")
                .arg(key)
                .arg(&owner)
                .arg("NX")
                .arg("PX")
                .arg(TTL.as_millis() as u64)
                .query_async(&mut connection)
                .await
                .expect("an answer");
            if taken.is_some() {
                break;
            }
            tokio::time::sleep(PAUSE.mul_f64(fastrand::f64())).await;
        }
        let value = body.await;
        let deleted: u32 = self
            .unlock
            .key(key)
            .arg(&owner)
            .invoke_async(&mut connection)
            .await
            .expect("an answer");
        assert_eq!(deleted, 1, "the lock was lost");
        value
    }
}
