//! The bare pair of memcached: `add`, and a `delete` that looks at nothing. Who
//! came too late deletes somebody else's lock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_memcached::{AsciiProtocol, Client, Error, Status};
use tokio::sync::{Mutex, MutexGuard};

use crate::{Locker, TTL};

/// As many connections as dlock has: the client sends one command at a time.
const CONNECTIONS: usize = 16;

/// The longest pause before a held key is asked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// The bare pair through the client that dlock has underneath.
#[derive(Clone)]
pub struct BareMemcached {
    connections: Arc<[Mutex<Client>]>,
}

impl BareMemcached {
    async fn connection(&self) -> MutexGuard<'_, Client> {
        for connection in &*self.connections {
            if let Ok(connection) = connection.try_lock() {
                return connection;
            }
        }
        self.connections[fastrand::usize(..CONNECTIONS)]
            .lock()
            .await
    }
}

impl Locker for BareMemcached {
    const NAME: &'static str = "bare pair";

    async fn connect(url: &str) -> Self {
        let address = url.replacen("memcached:", "tcp:", 1);
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = Client::new(&address).await.expect("a connection");
            connections.push(Mutex::new(client));
        }
        Self {
            connections: connections.into(),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let ttl = Some(TTL.as_secs() as i64);
        loop {
            let added = self.connection().await.add(key, "owner", ttl, None).await;
            match added {
                Ok(()) => break,
                Err(Error::Protocol(Status::NotStored)) => {}
                Err(error) => panic!("{error}"),
            }
            tokio::time::sleep(PAUSE.mul_f64(fastrand::f64())).await;
        }
        let value = body.await;
        let deleted = self.connection().await.delete(key).await;
        deleted.expect("the lock");
        value
    }
}
