//! Looking at locks.

use std::collections::BTreeSet;
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

const FEWEST_WALKS: usize = 3;
const MOST_WALKS: usize = 6;
const PAUSE: Duration = Duration::from_millis(20);

/// The most items that are read in one round trip.
const READ_AT_ONCE: usize = 256;

/// The server does not know the waiters.
const UNKNOWN: Option<usize> = None;

/// A list in progress.
///
/// The server walks through its items, and skips those that are in use at that moment, for
/// example while it moves them from one of its lists to another. So it is asked to walk again, a
/// moment later, until a walk finds nothing new.
#[derive(Default)]
pub(crate) struct Listing {
    names: BTreeSet<Vec<u8>>,
    walks: usize,
    /// The last walk found nothing new.
    complete: bool,
}

impl Server {
    /// One step of a list: a walk, or, after the last walk, reading the first `most` of what all
    /// walks have found.
    pub(super) async fn next_of_list(
        &self,
        prefix: &str,
        most: usize,
        deadline: Deadline,
        listing: &mut Listing,
    ) -> Result<Option<Listed>, Failure> {
        if listing.complete {
            let found = listing.names.iter();
            let mut keys: Vec<_> = found.filter_map(|name| names::key(name)).collect();
            keys.sort_unstable();
            let others = keys.len().saturating_sub(most);
            let first = keys.iter().take(most).map(|key| names::lock(key));
            let locks = self.locks(first.collect(), deadline).await?;
            return Ok(Some(Listed::with_others(locks, others)));
        }
        let time = &self.reach.time;
        if listing.walks > 0 {
            time.sleep(time.after(PAUSE)).await;
        }
        let prefix = names::lock(prefix);
        let by = time.after(time.remaining(deadline).mul_f64(0.8));
        // One long answer, which may take all the time that is left.
        let mut sent = None;
        let names = self.ask(deadline, Duration::MAX, &mut sent, move |c| {
            c.names_like(prefix, by).boxed()
        });
        let (names, _) = names.await?;
        let before = listing.names.len();
        listing.names.extend(names);
        listing.walks += 1;
        listing.complete = listing.walks >= MOST_WALKS
            || (listing.walks >= FEWEST_WALKS && listing.names.len() == before);
        Ok(None)
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
