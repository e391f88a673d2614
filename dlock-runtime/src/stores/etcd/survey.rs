//! A list of the first locks only, for who looks again and again.
//!
//! The names of all keys tell which locks there are. They are read in pages, without values. Values
//! and leases are asked for only where a lock is shown.

use std::collections::BTreeSet;

use etcd_client::{Client, GetOptions, KeyValue, TxnOp};

use super::errors::unexpected_answer;
use super::inspect::{Listing, read_all};
use super::members::{KEYS_AT_ONCE, Members};
use super::names::{Range, range_of};
use crate::backend::Listed;
use crate::deadline::Deadline;
use crate::store::Failure;

/// How many names are in one page.
const PAGE: i64 = 5000;

/// How many locks are read in one transaction: their places, and their marks.
const LOCKS_AT_ONCE: usize = KEYS_AT_ONCE / 2;

/// A list of the first locks, as far as it was read.
pub(crate) struct Survey {
    /// The names that have not been read yet. The next are in the last of these.
    ranges: Vec<Range>,
    /// The keys of all locks.
    found: BTreeSet<String>,
    /// The first of them, as far as they have not been read. The next is the last.
    ahead: Vec<String>,
    read: Vec<KeyValue>,
    listing: Option<Listing>,
}

impl Survey {
    pub(super) fn of(members: &Members, prefix: &str) -> Self {
        let names = &members.settings.names;
        let mut ranges = vec![range_of(&names.beginning_with(prefix))];
        // The names of all places include those of marks.
        if !prefix.is_empty() {
            ranges.push(range_of(&names.marks_beginning_with(prefix)));
        }
        Self {
            ranges,
            found: BTreeSet::new(),
            ahead: Vec::new(),
            read: Vec::new(),
            listing: None,
        }
    }

    /// Takes one more step. `None`: it was not the last.
    pub(super) async fn go_on(
        &mut self,
        members: &Members,
        most: usize,
        deadline: Deadline,
    ) -> Result<Option<Listed>, Failure> {
        if !self.ranges.is_empty() {
            self.read_page(members, deadline).await?;
            if self.ranges.is_empty() {
                let first = self.found.iter().take(most).cloned();
                self.ahead = first.collect();
                self.ahead.reverse();
            }
            return Ok(None);
        }
        if let Some(listing) = &mut self.listing {
            let others = self.found.len().saturating_sub(most);
            let locks = listing.go_on(members, deadline).await?;
            return Ok(locks.map(|locks| Listed::with_others(locks, others)));
        }
        let rest = self.ahead.len().saturating_sub(LOCKS_AT_ONCE);
        let looks = self.ahead[rest..].iter().flat_map(|key| {
            let lock = members.settings.names.lock(key);
            let places = GetOptions::new().with_prefix();
            [TxnOp::get(&*lock.queue, Some(places)), lock.get_mark()]
        });
        let read = read_all(members, looks, deadline).await?;
        self.read.extend(read);
        self.ahead.truncate(rest);
        if self.ahead.is_empty() {
            self.listing = Some(Listing::of(members, &self.read));
        }
        Ok(None)
    }

    async fn read_page(&mut self, members: &Members, deadline: Deadline) -> Result<(), Failure> {
        let Some((first, end)) = self.ranges.last().cloned() else {
            return Ok(());
        };
        let page = GetOptions::new().with_range(end).with_keys_only();
        let page = page.with_limit(PAGE);
        let read = |client: Client| async move {
            // Names may be long.
            let mut client = client.kv_client().max_decoding_message_size(usize::MAX);
            client.get(first, Some(page)).await
        };
        let page = members.ask(deadline, read).await?;
        let names = &members.settings.names;
        for key in page.kvs() {
            let Ok(text) = key.key_str() else { continue };
            let place = names.read(text).map(|(lock, _)| lock);
            self.found.extend(place.or_else(|| names.read_mark(text)));
        }
        match (page.kvs().last(), self.ranges.last_mut()) {
            (Some(last), Some(range)) if page.more() => {
                // No server goes back. One that did would be asked for ever.
                if last.key() < &*range.0 {
                    return Err(unexpected_answer(&members.settings.place()));
                }
                // The next page begins with the first name that may follow this one.
                range.0 = [last.key(), b"\0"].concat();
            }
            _ => drop(self.ranges.pop()),
        }
        Ok(())
    }
}
