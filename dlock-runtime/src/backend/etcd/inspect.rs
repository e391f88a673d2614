//! What is known of locks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, KeyValue};

use super::core::Core;
use super::names::mode_of;
use crate::backend::{BackendError, HolderInfo, LockInfo, Mode};

/// Keys are read so many at a time: an answer of the client's own limit of 4 MB
/// has room for more.
const PAGE: i64 = 2_000;

pub(super) async fn inspect(
    core: Arc<Core>,
    key: String,
) -> Result<Option<LockInfo>, BackendError> {
    let lock = core.members.settings.names.lock(&key);
    let found = read(&core, lock.queue()).await?;
    Ok(locks(&core, found).await?.pop())
}

pub(super) async fn list(core: Arc<Core>, prefix: String) -> Result<Vec<LockInfo>, BackendError> {
    let prefix = core.members.settings.names.beginning_with(&prefix);
    let found = read(&core, &prefix).await?;
    locks(&core, found).await
}

/// All keys that begin with `prefix`, in the order of their names.
async fn read(core: &Core, prefix: &str) -> Result<Vec<KeyValue>, BackendError> {
    let mut all: Vec<KeyValue> = Vec::new();
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    loop {
        let mut start = prefix.as_bytes().to_vec();
        if let Some(last) = all.last() {
            start = last.key().to_vec();
            start.push(0);
        }
        let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
        let answer = core
            .members
            .call(|mut client: Client| {
                let (start, options) = (start.clone(), options.clone());
                async move { client.get(start, Some(options)).await }
            })
            .await?;
        let mut page = answer.value;
        let more = page.more();
        all.extend(page.take_kvs());
        if !more {
            return Ok(all);
        }
    }
}

/// A place in a queue.
struct Place {
    created: i64,
    mode: Mode,
    /// Whose it is: what dlock writes into it; and of others, its name.
    owner: String,
    lease: i64,
}

async fn locks(core: &Core, found: Vec<KeyValue>) -> Result<Vec<LockInfo>, BackendError> {
    let mut queues: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for key in found {
        let Ok(text) = key.key_str() else { continue };
        // What dlock did not write, and `etcdctl lock` would not have, is none
        // of ours.
        if let Some((lock, place)) = core.members.settings.names.read(text) {
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
    let mut remaining = HashMap::new();
    let mut locks = Vec::with_capacity(queues.len());
    for (key, mut queue) in queues {
        queue.sort_unstable_by_key(|place| place.created);
        let mode = queue.first().map_or(Mode::Write, |place| place.mode);
        let readers = queue.iter().take_while(|place| place.mode == Mode::Read);
        let held = match mode {
            Mode::Read => readers.count(),
            Mode::Write => 1,
        };
        let waiters = queue.len() - held;
        let mut holders = Vec::with_capacity(held);
        for Place { owner, lease, .. } in queue.into_iter().take(held) {
            let left = match remaining.get(&lease) {
                Some(left) => *left,
                None => *remaining
                    .entry(lease)
                    .or_insert(time_left(core, lease).await?),
            };
            holders.push(HolderInfo::new(owner, left));
        }
        locks.push(LockInfo::new(key, mode, holders, waiters));
    }
    Ok(locks)
}

/// `None` for a key without a lease, or one whose lease has just ended.
async fn time_left(core: &Core, lease: i64) -> Result<Option<Duration>, BackendError> {
    if lease == 0 {
        return Ok(None);
    }
    let ask = |mut client: Client| async move { client.lease_time_to_live(lease, None).await };
    let answer = core.members.call(ask).await?;
    Ok(u64::try_from(answer.value.ttl())
        .ok()
        .map(Duration::from_secs))
}
