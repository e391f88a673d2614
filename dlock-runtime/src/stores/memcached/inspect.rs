//! Looking at locks.

use std::time::Duration;

use async_memcached::MetaValue;
use futures_util::FutureExt;

use super::expiry::lease_left;
use super::names;
use super::server::Server;
use crate::backend::{HolderInfo, Listed, LockInfo, Mode};
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::since;

/// The most items that are read in one round trip.
const READ_AT_ONCE: usize = 256;

/// The server does not know the waiters.
const UNKNOWN: Option<usize> = None;

impl Server {
    /// The first `most` locks and marks whose key has this prefix, and how many others there are.
    pub(super) async fn list(
        &self,
        prefix: &str,
        most: usize,
        deadline: Deadline,
    ) -> Result<Listed, Failure> {
        let time = &self.reach.time;
        let prefix = names::lock(prefix);
        // The first of them are still to be read.
        let by = time.after(time.remaining(deadline).mul_f64(0.8));
        // One long answer, which may take all the time that is left.
        let mut sent = None;
        let time = time.clone();
        let names = self.ask(deadline, Duration::MAX, &mut sent, move |c| {
            c.names_like(prefix, by, time).boxed()
        });
        let (names, _) = names.await?;
        let mut keys: Vec<_> = names.iter().filter_map(|name| names::key(name)).collect();
        keys.sort_unstable();
        let others = keys.len().saturating_sub(most);
        let first = keys.iter().take(most).map(|key| names::lock(key));
        let locks = self.locks(first.collect(), deadline).await?;
        Ok(Listed::with_others(locks, others))
    }

    /// The locks and marks among these items.
    pub(super) async fn locks(
        &self,
        names: Vec<Vec<u8>>,
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, Failure> {
        let items = self.read(names, deadline).await?;
        Ok(items.into_iter().filter_map(info).collect())
    }

    /// Those of these items that exist.
    pub(super) async fn read(
        &self,
        names: Vec<Vec<u8>>,
        deadline: Deadline,
    ) -> Result<Vec<MetaValue>, Failure> {
        let mut items = Vec::new();
        for names in names.chunks(READ_AT_ONCE) {
            let names = names.to_vec();
            let read = self.exchange(deadline, move |c| c.read(names).boxed());
            items.extend(read.await?);
        }
        Ok(items)
    }
}

fn info(item: MetaValue) -> Option<LockInfo> {
    let key = names::key(&item.key?)?;
    let value = item.data.unwrap_or_default();
    let expires_in = item.ttl_remaining.and_then(lease_left);
    if let Some(owner) = names::done_by(&value) {
        let done = HolderInfo::new(owner.to_owned(), expires_in);
        return Some(LockInfo {
            waiters: UNKNOWN,
            ..LockInfo::of_done(key, done)
        });
    }
    // The value of another program is not shown: it may be long, and secret.
    let (owner, since) =
        since::holder(&value).unwrap_or(("(a value that dlock did not write)", None));
    let holder = HolderInfo::new(owner.to_owned(), expires_in);
    let holder = holder.since_by_holder(since.and_then(since::time));
    Some(LockInfo::new(key, Mode::Write, vec![holder], UNKNOWN))
}
