//! Looking at locks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::connection::{Connection, Item};
use super::expiry::lease_left;
use super::names;
use super::server::Server;
use super::watch::READ_AT_ONCE;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::deadline::Deadline;
use crate::store::Failure;

const FEWEST_WALKS: usize = 3;
const MOST_WALKS: usize = 6;
const PAUSE: Duration = Duration::from_millis(20);

/// A list on its way.
///
/// The server walks through its items and passes over those that are in use at
/// this very moment, as they are while it moves them from one of its lists to
/// another. So it walks again, a moment later, until it finds no more.
#[derive(Default)]
pub(crate) struct Listing {
    names: BTreeSet<Vec<u8>>,
    walks: usize,
    /// The last walk found nothing new.
    complete: bool,
    locks: Vec<LockInfo>,
}

impl Server {
    pub(super) async fn info(
        &self,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<LockInfo>, Failure> {
        let items = self.read(vec![names::lock(key)], deadline).await?;
        Ok(items.into_iter().find_map(info))
    }

    /// One walk, or one read of what the walks have found; `None` until there is
    /// no more to do.
    pub(super) async fn next_of_list(
        &self,
        prefix: &str,
        deadline: Deadline,
        listing: &mut Listing,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        if !listing.complete {
            self.walk(prefix, deadline, listing).await?;
            return Ok(None);
        }
        let next: Vec<_> = listing.names.iter().take(READ_AT_ONCE).cloned().collect();
        let Some(last) = next.last().cloned() else {
            return Ok(Some(std::mem::take(&mut listing.locks)));
        };
        let items = self.read(next, deadline).await?;
        listing.locks.extend(items.into_iter().filter_map(info));
        listing.names.retain(|name| *name > last);
        Ok(None)
    }

    async fn walk(
        &self,
        prefix: &str,
        deadline: Deadline,
        listing: &mut Listing,
    ) -> Result<(), Failure> {
        if listing.walks > 0 {
            self.time.sleep(self.time.after(PAUSE)).await;
        }
        let prefix = names::lock(prefix);
        let most = self.time.remaining(deadline).mul_f64(0.8);
        let by = self.time.after(most);
        let walk = |mut connection: Connection| async move {
            let names = connection.names_like(&prefix, by).await;
            (connection, names)
        };
        // One long answer, for which there is all of the time.
        let ticket = self.ticket(deadline).await?;
        let (names, _) = self.send(ticket, deadline, walk).await?;
        let before = listing.names.len();
        listing.names.extend(names);
        listing.walks += 1;
        listing.complete = listing.walks >= MOST_WALKS
            || (listing.walks >= FEWEST_WALKS && listing.names.len() == before);
        Ok(())
    }

    async fn read(&self, names: Vec<Vec<u8>>, deadline: Deadline) -> Result<Vec<Item>, Failure> {
        let read = |mut connection: Connection| async move {
            let read = connection.read(&names).await;
            (connection, read)
        };
        Ok(self.exchange(deadline, read).await?.0)
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
