//! What the keys show about locks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::take;
use std::time::{Duration, SystemTime};

use etcd_client::{Client, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use futures_util::future::try_join_all;

use super::errors::Failed;
use super::floor;
use super::members::Members;
use super::names::{LockName, mode_of};
use crate::backend::{HolderInfo, LockInfo, Mode, Owner, SHOWN_WAITERS, WaiterInfo};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::stores::since;
use crate::token::{FencingToken, of_transaction};

/// How many leases are asked about at a time.
const LEASES_AT_ONCE: usize = 100;

/// A place in a queue.
pub(super) struct Place {
    pub(super) key: String,
    pub(super) created: i64,
    pub(super) mode: Mode,
    /// The owner, as dlock writes it into the key; for another program's place, its name.
    pub(super) owner: String,
    /// Since when it holds the lock, if the key says so.
    since: Option<SystemTime>,
    lease: i64,
}

/// A list of locks, as far as it was read.
pub(crate) struct Listing {
    queues: BTreeMap<String, Vec<Place>>,
    /// The marks of what has been done.
    marks: BTreeMap<String, Place>,
    /// The leases of holders and marks that have not been asked about yet.
    leases: Vec<i64>,
    /// How long the other leases last. `None`: the lease has just ended.
    remaining: HashMap<i64, Option<Duration>>,
    /// The floor of the tokens. A holder from before it was raised has a lower token than is shown.
    floor: u64,
}

impl Listing {
    /// Reads all places and marks of the locks whose keys begin with `prefix`.
    pub(super) async fn read(
        members: &Members,
        prefix: &str,
        deadline: Deadline,
    ) -> Result<Self, Failed> {
        let names = &members.settings.names;
        let places = names.beginning_with(prefix);
        let marks = names.marks_beginning_with(prefix);
        let all = [places, marks].map(|prefix| {
            let options = GetOptions::new().with_prefix();
            TxnOp::get(prefix, Some(options))
        });
        Self::found(members, all, deadline).await
    }

    /// Reads the places of one lock, and its mark.
    pub(super) async fn of_lock(
        members: &Members,
        lock: &LockName,
        deadline: Deadline,
    ) -> Result<Self, Failed> {
        let places = TxnOp::get(&*lock.queue, Some(GetOptions::new().with_prefix()));
        Self::found(members, [places, lock.get_mark()], deadline).await
    }

    async fn found(
        members: &Members,
        looks: [TxnOp; 2],
        deadline: Deadline,
    ) -> Result<Self, Failed> {
        let found = read_all(members, looks, deadline).await?;
        Ok(Self::of(members, &found))
    }

    /// The places of the only lock that was read, in order.
    pub(super) fn into_queue(self) -> Vec<Place> {
        self.queues.into_values().next().unwrap_or_default()
    }

    /// By the places and marks of some locks, and the floor.
    pub(super) fn of(members: &Members, found: &[KeyValue]) -> Self {
        let name = members.settings.names.floor();
        let floor = found.iter().find(|key| key.key() == name.as_bytes());
        // A floor that is no number counts as 0; a request for a lock reports it.
        let floor = floor.and_then(|key| floor::read(key, "").ok());
        let (queues, marks) = (queues(members, found), marks(members, found));
        let held_by = queues.values().flat_map(|queue| holders(queue));
        let held_by = held_by.chain(marks.values());
        let leases: BTreeSet<_> = held_by.map(|place| place.lease).collect();
        Self {
            leases: leases.into_iter().filter(|&lease| lease != 0).collect(),
            queues,
            marks,
            remaining: HashMap::new(),
            floor: floor.unwrap_or(0),
        }
    }

    /// Asks about some of the leases. `None`: there are more.
    pub(super) async fn go_on(
        &mut self,
        members: &Members,
        deadline: Deadline,
    ) -> Result<Option<Vec<LockInfo>>, Failed> {
        let rest = self.leases.len().saturating_sub(LEASES_AT_ONCE);
        let some = self.leases[rest..].iter();
        let known = try_join_all(some.map(async |&lease| {
            let ask =
                |mut client: Client| async move { client.lease_time_to_live(lease, None).await };
            let left = members.ask(deadline, ask).await?.ttl();
            // The server answers -1 for a lease that has ended.
            Ok::<_, Failed>((lease, u64::try_from(left).ok().map(Duration::from_secs)))
        }));
        self.remaining.extend(known.await?);
        self.leases.truncate(rest);
        Ok((rest == 0).then(|| self.locks()))
    }

    fn locks(&mut self) -> Vec<LockInfo> {
        let shown = |place: &Place| {
            let left = self.remaining.get(&place.lease).copied().flatten();
            let token = of_transaction(place.created, self.floor).map(FencingToken::from);
            HolderInfo::new(place.owner.clone(), left)
                .since_by_holder(place.since)
                .token(token)
        };
        let marks = take(&mut self.marks);
        // If there are places too, their requests are about to be told.
        self.queues.retain(|key, _| !marks.contains_key(key));
        let done = marks
            .into_iter()
            .map(|(key, mark)| LockInfo::of_done(key, shown(&mark)));
        let done: Vec<_> = done.collect();
        let locks = self.queues.iter().map(|(key, queue)| {
            let holding = holders(queue);
            let mode = Mode::shown(holding.iter().map(|place| place.mode));
            let mode = mode.unwrap_or_default();
            let holders: Vec<_> = holding.iter().map(shown).collect();
            let waiting = &queue[holders.len()..];
            let shown = waiting.iter().take(SHOWN_WAITERS);
            let shown = shown.map(|place| WaiterInfo::new(place.owner.clone(), place.mode));
            LockInfo::new(key.clone(), mode, holders, waiting.len()).with_queue(shown.collect())
        });
        locks.chain(done).collect()
    }
}

/// What these look for, and the floor of the tokens, in one transaction.
pub(super) async fn read_all(
    members: &Members,
    looks: impl IntoIterator<Item = TxnOp>,
    deadline: Deadline,
) -> Result<Vec<KeyValue>, Failed> {
    let floor = TxnOp::get(members.settings.names.floor(), None);
    let look = Txn::new().and_then(looks.into_iter().chain([floor]).collect::<Vec<_>>());
    let read = |client: Client| async move {
        // The answer may be longer than the client takes by default.
        let mut client = client.kv_client().max_decoding_message_size(usize::MAX);
        client.txn(look).await
    };
    let answer = members.ask(deadline, read).await?;
    Ok(found(answer.op_responses()).collect())
}

/// The keys that the requests of a transaction have found.
pub(super) fn found(
    answers: impl IntoIterator<Item = TxnOpResponse>,
) -> impl Iterator<Item = KeyValue> {
    answers.into_iter().flat_map(|answer| match answer {
        TxnOpResponse::Get(mut found) => found.take_kvs(),
        _ => Vec::new(),
    })
}

/// The places that hold the lock.
pub(super) fn holders(queue: &[Place]) -> &[Place] {
    &queue[..Mode::holding(queue.iter().map(|place| place.mode))]
}

/// The owner in a value, with a number if the request has asked again, and since when it holds the
/// lock, if the value says so. `None` for another program's value, which may be long, and a secret.
fn owner(value: &[u8]) -> Option<(&str, Option<SystemTime>)> {
    let (value, since) = since::held_by(std::str::from_utf8(value).ok()?)?;
    let is_again =
        |(owner, again): (&str, &str)| Owner::is_one(owner) && again.parse::<u32>().is_ok();
    let is_owner = Owner::is_one(value) || value.rsplit_once('.').is_some_and(is_again);
    let since = since.and_then(since::time);
    is_owner.then_some((value, since))
}

/// The owner in a mark.
pub(super) fn owner_of(mark: &KeyValue) -> Option<&str> {
    mark.value_str().ok().filter(|owner| Owner::is_one(owner))
}

/// The marks, by the keys of their locks.
fn marks(members: &Members, found: &[KeyValue]) -> BTreeMap<String, Place> {
    let marks = found.iter().filter_map(|key| {
        let lock = members.settings.names.read_mark(key.key_str().ok()?)?;
        let place = Place {
            key: lock.clone(),
            created: key.create_revision(),
            mode: Mode::Write,
            owner: owner_of(key)?.to_string(),
            since: None,
            lease: key.lease(),
        };
        Some((lock, place))
    });
    marks.collect()
}

/// The places by the keys of their locks, each queue in order.
fn queues(members: &Members, found: &[KeyValue]) -> BTreeMap<String, Vec<Place>> {
    let mut queues: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for key in found {
        let Ok(text) = key.key_str() else { continue };
        // Keys that neither dlock nor `etcdctl lock` would have written are ignored.
        if let Some((lock, place)) = members.settings.names.read(text) {
            let (owner, since) = match owner(key.value()) {
                Some((owner, since)) => (owner.to_owned(), since),
                None => (Shown(place).to_string(), None),
            };
            let place = Place {
                key: text.to_owned(),
                created: key.create_revision(),
                mode: mode_of(place),
                owner,
                since,
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

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_an_owner_is_shown() {
        for value in ["1.a", "1.a.2", "1.a@host,1,shop,2", "1.a@host,1,shop,2.3"] {
            let shown = owner(value.as_bytes()).map(|(owner, _)| owner);
            assert_eq!(shown, Some(value));
        }
        for value in [
            "hello",
            "1.a.",
            "1.a.\u{1b}[31m",
            "1.a.secret",
            "1.a@host,1,shop,2.secret",
        ] {
            assert_eq!(owner(value.as_bytes()), None, "{value:?}");
        }
    }
}
