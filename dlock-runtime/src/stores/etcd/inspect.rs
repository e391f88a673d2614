//! What is known of locks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use etcd_client::{Client, GetOptions, KeyValue};
use futures_util::future::try_join_all;

use super::errors::Failed;
use super::members::Members;
use super::names::mode_of;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::deadline::Deadline;
use crate::store::Failure;

/// So many leases are asked for at a time.
const LEASES_AT_ONCE: usize = 100;

/// A list as far as it was read.
#[derive(Default)]
pub(crate) struct Listing {
    /// All keys that begin with the prefix.
    found: Option<Vec<KeyValue>>,
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
        let Some(found) = &self.found else {
            let options = GetOptions::new().with_prefix();
            let read = |client: Client| async move {
                // However long the answer is.
                let mut client = client.kv_client().max_decoding_message_size(usize::MAX);
                client.get(prefix, Some(options)).await
            };
            let mut answer = members.ask(deadline, read).await?;
            self.found = Some(answer.take_kvs());
            return Ok(None);
        };
        let queues = queues(members, found);
        let holders = queues.values().flat_map(|queue| holders(queue));
        let leases = holders.map(|place| place.lease);
        let missing = leases.filter(|lease| *lease != 0 && !self.remaining.contains_key(lease));
        let missing: HashSet<_> = missing.take(LEASES_AT_ONCE).collect();
        if missing.is_empty() {
            return Ok(Some(self.locks(queues)));
        }
        let ask = missing.into_iter().map(async |lease| {
            let ask =
                |mut client: Client| async move { client.lease_time_to_live(lease, None).await };
            let left = members.ask(deadline, ask).await?.ttl();
            Ok::<_, Failed>((lease, u64::try_from(left).ok().map(Duration::from_secs)))
        });
        let known = try_join_all(ask).await?;
        self.remaining.extend(known);
        Ok(None)
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

/// The places by the keys of their locks, each queue in its order.
fn queues(members: &Members, found: &[KeyValue]) -> BTreeMap<String, Vec<Place>> {
    let mut queues: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for key in found {
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
