//! The second look: at what the locks hold that somebody waits for. A message can
//! be lost, and a holder that dies sends none.
//!
//! On one server, one `MGET` is for all the waiters of a process, and every three
//! seconds the sign goes with it that the process is alive: waiting costs less than
//! two commands a second, however many wait. Where permits are waited for, it is one
//! more for each such lock whenever a lease of its holders may have ended. In a
//! cluster locks are in slots of their own, and one command cannot ask for two of
//! them: it is one for each lock that is waited for, and those of one node go out
//! together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;

use super::commands;
use super::redisson;
use super::scripts::ALIVE_FOR;
use super::servers::{RedisStore, Route, nonsense};
use super::values::{LockValue, done_by};
use crate::backend::Mode;
use crate::deadline::Deadline;
use crate::store::{Applied, Cause, Failure, Waited, Waiter};

/// How often a lock is looked at that somebody waits for.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// A waiter of a busy key makes sure of its place in the queue this often.
const VERIFY: Duration = Duration::from_secs(10);

/// So many keys are asked for in one command: the server does nothing else
/// meanwhile.
pub(super) const KEYS_AT_ONCE: usize = 1000;

/// What a lock held when it was last looked at.
#[derive(Default)]
pub(crate) struct Seen {
    value: Option<Vec<u8>>,
    pub(super) free: bool,
    /// When the first of the leases ends, of those who share it: who waits for a permit
    /// may have it then, and nothing else tells of a holder that has died.
    room_at: Option<Instant>,
    /// When the lease of who holds it ends, if it was looked at so closely.
    pub(super) ends: Option<Instant>,
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
        let redisson = self.space().redisson();
        let keys: Vec<_> = waited.iter().map(|key| Arc::clone(&key.key)).collect();
        let alive_for = match (beats, &self.route) {
            (false, _) => Vec::new(),
            // Nobody is asked whether its process is alive.
            _ if redisson.is_some() => Vec::new(),
            (true, Route::One(..)) => vec![Arc::from("")],
            (true, Route::BySlot(_)) => keys.clone(),
        };
        let beats = alive_for.iter().map(|key| async move {
            let alive = self.space().alive_key(self.process, key);
            let beat = self.ask(key, deadline, || commands::heartbeat(&alive));
            beat.await.err()
        });
        let (values, beats) = match redisson {
            Some(layout) => (self.held(layout, waited, deadline).await, Vec::new()),
            None => tokio::join!(self.values_of(&keys, deadline), join_all(beats)),
        };
        // The one of a server is for all of its locks.
        let mut beats = beats.into_iter().cycle();
        let (mut failed, mut answered) = (None, keys.is_empty());
        let subscriptions = self.subscriptions();
        for (key, value) in waited.iter_mut().zip(values) {
            match beats.next().flatten().map_or(value, Err) {
                Ok(value) => {
                    answered = true;
                    match redisson {
                        Some(layout) => redisson::look::wake(layout, key, &value),
                        None => wake(key, value),
                    }
                    if subscriptions.is_some_and(|subscriptions| {
                        let mut waiters = key.waiters.iter();
                        waiters.any(|waiter| {
                            let heard = self.space().heard(&key.key, waiter.owner);
                            subscriptions.is_disconnected(&heard)
                        })
                    }) {
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
        if redisson.is_none() {
            self.look_for_room(waited, deadline).await;
        }
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

    /// Has who waits for a permit ask when there may be one: one command for a lock when
    /// the first of its leases ends that were not extended meanwhile, or when one who is
    /// dead and stands before it has been dropped from the queue.
    async fn look_for_room(&self, waited: &mut [Waited<Self>], deadline: Deadline) {
        let now = Instant::now();
        let looks = waited.iter_mut().filter_map(|key| {
            let Waited { waiters, seen, .. } = &*key;
            let holder = seen.value.as_deref().and_then(LockValue::parse)?;
            let is_due = seen.room_at.is_none_or(|room_at| room_at <= now);
            let waits = waiters.iter().any(|waiter| most(waiter).is_some());
            (is_due && waits && holder.mode.is_shared()).then_some(async move {
                // Who fails to find out asks, which tells why.
                let found = self.look_at(&key.key, 0, deadline).await.ok().flatten();
                let holders = found.map(|lock| lock.holders).unwrap_or_default();
                let ends = holders.iter().filter_map(|holder| holder.expires_in).min();
                key.seen.room_at = ends.map(|ends| now + ends);
                // Its message was lost.
                key.wake(|owner| holders.iter().any(|holder| holder.shows(owner)));
                // The script lets in who is first, whoever asks; so who has the highest
                // number asks, for which there is room if there is for any.
                let highest = key.waiters.iter_mut().max_by_key(|waiter| most(waiter));
                if let Some(waiter) = highest
                    && most(waiter).is_some_and(|most| holders.len() < most)
                {
                    waiter.wake = true;
                    key.seen.room_at = key.seen.room_at.map(|at| at.min(now + ALIVE_FOR));
                }
            })
        });
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
        if self.space().redisson().is_some() {
            return;
        }
        let alive = self.space().alive_key(self.process, key);
        let farewell = self.ask(key, deadline, || commands::farewell(&alive));
        let _ = farewell.await;
    }
}

/// How many may have the lock together, as one who waits for a permit would have it.
fn most(waiter: &Waiter) -> Option<usize> {
    match waiter.mode {
        Mode::Permits(most) => Some(usize::try_from(most).unwrap_or(usize::MAX)),
        Mode::Read | Mode::Write => None,
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
            // All who wait are told; the message to this one was lost.
            None if done_by(&value).is_some() => true,
            // The message that said so was lost; or the holder has overtaken the
            // queue, does not know of it, and would not hand the lock on.
            Some(LockValue {
                mode: Mode::Write,
                owner,
                waited,
                ..
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
