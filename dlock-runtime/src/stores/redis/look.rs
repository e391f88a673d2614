//! The second look: at what the locks hold that somebody waits for. A message can
//! be lost, and a holder that dies sends none.
//!
//! On one server, one `MGET` is for all the waiters of a process, and every three
//! seconds the sign goes with it that the process is alive: waiting costs less than
//! two commands a second, however many wait. In a cluster locks are in slots of their
//! own, and one command cannot ask for two of them: it is one for each lock that is
//! waited for, and those of one node go out together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;

use super::commands;
use super::servers::{RedisStore, Route, nonsense};
use super::values::LockValue;
use crate::backend::{HolderInfo, Mode};
use crate::deadline::Deadline;
use crate::store::{Applied, Cause, Failure, Waited};

/// A waiter of a busy key makes sure of its place in the queue this often.
const VERIFY: Duration = Duration::from_secs(10);

/// So many keys are asked for in one command: the server does nothing else
/// meanwhile.
const KEYS_AT_ONCE: usize = 1000;

/// What a lock held when it was last looked at.
#[derive(Default)]
pub(crate) struct Seen {
    value: Option<Vec<u8>>,
    free: bool,
    /// When the first of the leases ends, of those who share it: who waits for a permit
    /// may have it then, and nothing else tells of a holder that has died.
    room_at: Option<Instant>,
}

impl RedisStore {
    /// A node that does not answer must not keep the others from being looked at: its
    /// own waiters find out for themselves. An error if nobody has answered.
    pub(super) async fn look(
        &self,
        waited: &mut [Waited<Self>],
        beats: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let keys: Vec<_> = waited.iter().map(|key| Arc::clone(&key.key)).collect();
        let alive_for = match (beats, &self.route) {
            (false, _) => Vec::new(),
            (true, Route::One(..)) => vec![Arc::from("")],
            (true, Route::BySlot(_)) => keys.clone(),
        };
        let beats = alive_for.iter().map(|key| async move {
            let alive = self.space().alive_key(self.process, key);
            let beat = self.ask(key, deadline, || commands::heartbeat(&alive));
            beat.await.err()
        });
        let (values, beats) = tokio::join!(self.values_of(&keys, deadline), join_all(beats));
        // The one of a server is for all of its locks.
        let mut beats = beats.into_iter().cycle();
        let (mut failed, mut answered) = (None, keys.is_empty());
        let topology = self.topology();
        for (key, value) in waited.iter_mut().zip(values) {
            match beats.next().flatten().map_or(value, Err) {
                Ok(value) => {
                    answered = true;
                    wake(key, value);
                    if topology
                        .is_some_and(|topology| topology.subscriptions.is_disconnected(&key.key))
                    {
                        // Its turn would pass by.
                        key.wake_all();
                    }
                }
                Err(failure) => {
                    key.wake_all();
                    failed = Some(failure);
                }
            }
        }
        self.look_for_room(waited, deadline).await;
        let Some(failure) = failed else {
            return Ok(());
        };
        if let Cause::Error(error) = &failure.cause {
            let said = format_args!("dlock cannot look after its waiters: {error}");
            match failure.applied {
                Applied::Answered => tracing::warn!(target: "dlock::store", "{said}"),
                _ => tracing::debug!(target: "dlock::store", "{said}"),
            }
        }
        if answered { Ok(()) } else { Err(failure) }
    }

    /// Has the first who waits for a permit ask when there may be one: one command for
    /// a lock when the first of its leases ends that were not extended meanwhile.
    async fn look_for_room(&self, waited: &mut [Waited<Self>], deadline: Deadline) {
        let now = Instant::now();
        let looks = waited.iter_mut().filter_map(
            |Waited {
                 key, waiters, seen, ..
             }| {
                let holder = seen.value.as_deref().and_then(LockValue::parse)?;
                let is_due = seen.room_at.is_none_or(|room_at| room_at <= now);
                let mut waiters = waiters.iter_mut();
                let first = waiters.find_map(|waiter| match waiter.mode {
                    Mode::Permits(most) => Some((waiter, usize::try_from(most).ok()?)),
                    Mode::Read | Mode::Write => None,
                });
                let (waiter, most) = first.filter(|_| is_due && holder.mode.is_shared())?;
                Some(async move {
                    // Who fails to find out asks, which tells why.
                    let found = self.look_at(key, deadline).await.ok().flatten();
                    let holders = found.map(|lock| lock.holders).unwrap_or_default();
                    let ends = holders.iter().filter_map(|holder| holder.expires_in).min();
                    seen.room_at = ends.map(|ends| now + ends);
                    let is_holder = |holder: &HolderInfo| holder.shows(waiter.owner);
                    waiter.wake |= holders.len() < most || holders.iter().any(is_holder);
                })
            },
        );
        join_all(looks).await;
    }

    /// What each of these locks holds.
    pub(super) async fn values_of(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> Vec<Result<Value, Failure>> {
        let at_once = match self.route {
            Route::One(..) => KEYS_AT_ONCE,
            Route::BySlot(_) => 1,
        };
        let looks = keys.chunks(at_once).map(|keys| async move {
            let names = || commands::values(self.space(), keys.iter().map(|key| &**key));
            let answer = self.ask(&keys[0], deadline, names).await;
            let values = answer.and_then(|answer| match answer.value {
                Value::Array(values) if values.len() == keys.len() => Ok(values),
                _ => Err(nonsense(&answer.from)),
            });
            match values {
                Ok(values) => values.into_iter().map(Ok).collect(),
                Err(failure) => vec![Err(failure); keys.len()],
            }
        });
        join_all(looks).await.concat()
    }

    /// Nobody in this process waits any more: in a cluster, for this lock.
    pub(super) async fn farewell_to(&self, key: &str, deadline: Deadline) {
        let alive = self.space().alive_key(self.process, key);
        let farewell = self.ask(key, deadline, || commands::farewell(&alive));
        let _ = farewell.await;
    }
}

/// Says who should ask again, by what the lock holds now.
fn wake(key: &mut Waited<RedisStore>, value: Value) {
    let Value::BulkString(value) = value else {
        // It is free, or of another type, which asking shows. The holder has died, or
        // the server has lost its data. Whoever asks makes the server grant the lock to
        // the first in the queue; if one was no help, they may all have lost their
        // places.
        let all = if key.seen.free { usize::MAX } else { 1 };
        let waiters = key.waiters.iter_mut().take(all);
        waiters.for_each(|waiter| waiter.wake = true);
        key.seen.free = true;
        return;
    };
    let now = Instant::now();
    let changed = key.seen.value.as_ref() != Some(&value);
    let holder = LockValue::parse(&value);
    for waiter in &mut key.waiters {
        let cause = match holder {
            // The message that said so was lost; or the holder has overtaken the
            // queue, does not know of it, and would not hand the lock on.
            Some(LockValue {
                mode: Mode::Write,
                owner,
                waited,
            }) => owner == waiter.owner || !waited,
            // Other readers may have been let in, so why not this.
            Some(LockValue { owner, .. }) => {
                owner == waiter.owner || (changed && waiter.mode == Mode::Read)
            }
            // Asking shows what it is.
            None => changed,
        };
        // The lock goes from hand to hand and passes this one by.
        let passed_by = changed && now.saturating_duration_since(waiter.since) >= VERIFY;
        waiter.wake |= cause || passed_by;
    }
    if changed {
        key.seen.room_at = None;
    }
    key.seen.free = false;
    key.seen.value = Some(value);
}
