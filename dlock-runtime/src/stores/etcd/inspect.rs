//! What is known of locks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use etcd_client::{Client, GetOptions, KeyValue};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::errors::Failed;
use super::members::Members;
use super::names::mode_of;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::deadline::Deadline;

/// So many leases are asked for at a time.
const LEASES_AT_ONCE: usize = 100;

/// A place in a queue.
struct Place {
    created: i64,
    mode: Mode,
    /// Whose it is: what dlock writes into it; and of others, its name.
    owner: String,
    lease: i64,
}

/// The locks of all places whose keys begin with the prefix.
pub(super) async fn locks(
    members: &Members,
    prefix: &str,
    deadline: Deadline,
) -> Result<Vec<LockInfo>, Failed> {
    let options = GetOptions::new().with_prefix();
    let read = |client: Client| async move {
        // However long the answer is.
        let mut client = client.kv_client().max_decoding_message_size(usize::MAX);
        client.get(prefix, Some(options)).await
    };
    let found = members.ask(deadline, read).await?;
    let queues = queues(members, found.kvs());
    let held_by = queues.values().flat_map(|queue| holders(queue));
    let leases: BTreeSet<_> = held_by.map(|place| place.lease).collect();
    let remaining = stream::iter(leases)
        .filter(|&lease| std::future::ready(lease != 0))
        .map(|lease| async move {
            let ask =
                |mut client: Client| async move { client.lease_time_to_live(lease, None).await };
            let left = members.ask(deadline, ask).await?.ttl();
            // Less than nothing of one that has just ended.
            Ok((lease, u64::try_from(left).ok().map(Duration::from_secs)))
        })
        .buffer_unordered(LEASES_AT_ONCE)
        .try_collect::<HashMap<_, _>>()
        .await?;
    let shown = |place: &Place| {
        let left = remaining.get(&place.lease).copied().flatten();
        HolderInfo::new(place.owner.clone(), left)
    };
    let locks = queues.into_iter().map(|(key, queue)| {
        let mode = queue.first().map_or(Mode::Write, |place| place.mode);
        let holders: Vec<_> = holders(&queue).iter().map(shown).collect();
        let waiters = queue.len() - holders.len();
        LockInfo::new(key, mode, holders, waiters)
    });
    Ok(locks.collect())
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
