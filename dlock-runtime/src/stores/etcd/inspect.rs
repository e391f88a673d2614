//! What is known of locks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use etcd_client::{Client, GetOptions, KeyValue};

use super::errors::Failed;
use super::members::Members;
use super::names::mode_of;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::deadline::Deadline;
use crate::store::Failure;

/// Keys are read so many at a time: an answer of the client's own limit of 4 MB
/// has room for more.
const PAGE: i64 = 2_000;

/// So many leases are asked for in one go.
const LEASES_AT_ONCE: usize = 100;

/// A list as far as it was read.
#[derive(Default)]
pub(crate) struct Listing {
    /// All keys that begin with the prefix, in the order of their names.
    found: Vec<KeyValue>,
    is_read: bool,
    /// How long the leases of holders last. `None` for a key without a lease, or
    /// one whose lease has just ended.
    remaining: HashMap<i64, Option<Duration>>,
}

/// A place in a queue.
struct Place {
    created: i64,
    mode: Mode,
    /// Whose it is: what dlock writes into it; and of others, its name.
    owner: String,
    lease: i64,
}

impl Listing {
    /// The next part of it. `None`: there is more to ask.
    pub(super) async fn go_on(
        &mut self,
        members: &Members,
        prefix: &str,
        deadline: Deadline,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        if !self.is_read {
            self.read_page(members, prefix, deadline).await?;
            return Ok(None);
        }
        let queues = self.queues(members);
        let holders = queues.values().flat_map(|queue| holders(queue));
        let missing: Vec<i64> = holders
            .map(|place| place.lease)
            .filter(|lease| *lease != 0 && !self.remaining.contains_key(lease))
            .take(LEASES_AT_ONCE)
            .collect();
        let all = missing.len() < LEASES_AT_ONCE;
        for lease in missing {
            if self.remaining.contains_key(&lease) {
                continue;
            }
            let ask =
                |mut client: Client| async move { client.lease_time_to_live(lease, None).await };
            let answer = members.ask(deadline, ask).await;
            let left = answer.map_err(Failed::of_a_read)?.value.ttl();
            let left = u64::try_from(left).ok().map(Duration::from_secs);
            self.remaining.insert(lease, left);
        }
        Ok(all.then(|| self.locks(queues)))
    }

    async fn read_page(
        &mut self,
        members: &Members,
        prefix: &str,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let mut start = prefix.as_bytes().to_vec();
        if let Some(last) = self.found.last() {
            start = last.key().to_vec();
            start.push(0);
        }
        let options = GetOptions::new().with_range(end).with_limit(PAGE);
        let read = |mut client: Client| async move { client.get(start, Some(options)).await };
        let answer = members.ask(deadline, read).await;
        let mut page = answer.map_err(Failed::of_a_read)?.value;
        self.is_read = !page.more();
        self.found.extend(page.take_kvs());
        Ok(())
    }

    /// The places by the keys of their locks, each queue in its order.
    fn queues(&self, members: &Members) -> BTreeMap<String, Vec<Place>> {
        let mut queues: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for key in &self.found {
            let Ok(text) = key.key_str() else { continue };
            // What dlock did not write, and `etcdctl lock` would not have, is none
            // of ours.
            if let Some((lock, place)) = members.settings.names.read(text) {
                let owner = match key.value() {
                    [] => place.to_owned(),
                    owner => String::from_utf8_lossy(owner).into_owned(),
                };
                let place = Place {
                    created: key.create_revision(),
                    mode: mode_of(place),
                    owner,
                    lease: key.lease(),
                };
                queues.entry(lock).or_default().push(place);
            }
        }
        for queue in queues.values_mut() {
            queue.sort_unstable_by_key(|place| place.created);
        }
        queues
    }

    fn locks(&self, queues: BTreeMap<String, Vec<Place>>) -> Vec<LockInfo> {
        let shown = |place: &Place| {
            let left = self.remaining.get(&place.lease).copied().flatten();
            HolderInfo::new(place.owner.clone(), left)
        };
        let locks = queues.into_iter().map(|(key, queue)| {
            let mode = queue.first().map_or(Mode::Write, |place| place.mode);
            let holders: Vec<_> = holders(&queue).iter().map(shown).collect();
            let waiters = queue.len() - holders.len();
            LockInfo::new(key, mode, holders, waiters)
        });
        locks.collect()
    }
}

/// Those who hold the lock: the first, or all readers before a writer.
fn holders(queue: &[Place]) -> &[Place] {
    let readers = queue.iter().take_while(|place| place.mode == Mode::Read);
    &queue[..readers.count().max(1).min(queue.len())]
}
