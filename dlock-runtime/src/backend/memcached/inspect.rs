//! Looking at locks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Item;
use super::core::Core;
use super::expiry::lease_left;
use super::names;
use super::watch::READ_AT_ONCE;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, HolderInfo, LockInfo, Mode};

impl Core {
    pub(super) async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let items = self.read([names::lock(key)].into()).await?;
        Ok(items.into_iter().find_map(info))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let found = self.names_like(&names::lock(prefix)).await?;
        let found: Vec<_> = found.into_iter().collect();
        let mut locks = Vec::with_capacity(found.len());
        for names in found.chunks(READ_AT_ONCE) {
            let items = self.read(names.into()).await?;
            locks.extend(items.into_iter().filter_map(info));
        }
        Ok(locks)
    }

    /// The server walks through its items and passes over those that are in
    /// use at this very moment, as they are while it moves them from one of its
    /// lists to another. So it walks again, a moment later, until it finds no
    /// more.
    async fn names_like(&self, prefix: &[u8]) -> Result<BTreeSet<Vec<u8>>, BackendError> {
        const FEWEST_WALKS: usize = 3;
        const MOST_WALKS: usize = 6;
        const PAUSE: Duration = Duration::from_millis(20);
        let mut found = BTreeSet::new();
        for walk in 0..MOST_WALKS {
            if walk > 0 {
                let pause = Deadline::after(PAUSE);
                self.shared.lanes.clock.sleep(pause).await;
            }
            let before = found.len();
            let mut call = self.call()?.patient_to_the_end();
            let most = self.shared.lanes.settings.request_timeout.mul_f64(0.8);
            let names = call.ask(|mut connection| {
                let prefix = prefix.to_vec();
                async move {
                    let names = connection.names_like(&prefix, Deadline::after(most)).await;
                    (connection, names)
                }
            });
            found.extend(names.await?.value);
            if walk + 1 >= FEWEST_WALKS && found.len() == before {
                break;
            }
        }
        Ok(found)
    }

    async fn read(&self, names: Arc<[Vec<u8>]>) -> Result<Vec<Item>, BackendError> {
        let mut call = self.call()?;
        let read = call.ask(|mut connection| {
            let names = Arc::clone(&names);
            async move {
                let read = connection.read(&names).await;
                (connection, read)
            }
        });
        Ok(read.await?.value)
    }
}

fn info(item: Item) -> Option<LockInfo> {
    // Another program's value may be long, and a secret.
    let owner = if names::is_owner(&item.value) {
        String::from_utf8_lossy(&item.value).into_owned()
    } else {
        "(a value that dlock did not write)".to_owned()
    };
    let holder = HolderInfo::new(owner, lease_left(item.seconds_left));
    // Nobody but the waiters themselves knows of them.
    let waiters = 0;
    Some(LockInfo::new(
        names::key(&item.name)?,
        Mode::Write,
        vec![holder],
        waiters,
    ))
}
