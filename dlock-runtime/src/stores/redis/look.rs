//! The recheck: reads the values of the locks that are waited for. A message can be lost, and a
//! holder that dies sends none.
//!
//! On one server, one `MGET` serves all waiters of a process, and every three seconds a heartbeat
//! of the process is sent with it: waiting costs less than two commands a second, however many
//! tasks wait. For a lock whose permits are waited for, there is one more command whenever a
//! lease of its holders may have ended; while permits change hands, one in two seconds. For a
//! shared lock that readers wait for, there is one in eight seconds. In a cluster, locks are in
//! different slots, and one command cannot read two of them: there is one command for each lock
//! that is waited for, and those for one node are sent together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::commands;
use super::redisson;
use super::scripts::ALIVE_FOR;
use super::servers::{RedisStore, unexpected_answer};
use super::values::{LockValue, done_by};
use crate::apart::all;
use crate::backend::Mode;
use crate::deadline::Deadline;
use crate::outlast::outlast;
use crate::store::{Applied, Cause, Failure, Waited, Waiter};

/// How often a lock that is waited for is looked at.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// A waiter that has not asked for this long checks its place in the queue when the lock changes
/// hands.
const VERIFY: Duration = Duration::from_secs(10);

/// What was seen of a lock at the last look.
#[derive(Default)]
pub(crate) struct Seen {
    value: Option<Vec<u8>>,
    pub(super) free: bool,
    /// When the first lease of the holders that share the lock may end. A waiter for a permit may
    /// get it then, and nothing else reveals that a holder has died. `None`: it is not known.
    room_at: Option<Instant>,
    /// When to look again, in Redisson's layout: the holder's lease ends then, or the places of the
    /// waiters have to be kept.
    pub(super) ends: Option<Instant>,
}

impl Seen {
    /// Whether it was shared at the last look.
    fn is_shared(&self) -> bool {
        let holder = self.value.as_deref().and_then(LockValue::parse);
        !self.free && holder.is_some_and(|holder| holder.mode.is_shared())
    }
}

impl RedisStore {
    /// Looks at all locks. A node that does not answer must not delay the others, and its own
    /// waiters find out for themselves. Fails only if no node has answered.
    pub(super) async fn look(
        &self,
        waited: &mut [Waited<Self>],
        beats: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let redisson = self.space().redisson();
        let keys: Vec<_> = waited.iter().map(|key| Arc::clone(&key.key)).collect();
        let alive_for = match (beats, self.one()) {
            (false, _) => Vec::new(),
            // Redisson's layout has no heartbeats.
            _ if redisson.is_some() => Vec::new(),
            (true, Some(_)) => vec![Arc::from("")],
            (true, None) => keys.clone(),
        };
        let beats = alive_for.iter();
        let beats = beats.map(|key| async move { self.beat(key, deadline).await.err() });
        let (values, beats) = match redisson {
            Some(layout) => (self.held(layout, waited, deadline).await, Vec::new()),
            None => tokio::join!(self.values_of(&keys, deadline), all(beats)),
        };
        // On one server, the single heartbeat counts for all locks.
        let mut beats = beats.into_iter().cycle();
        let (mut failed, mut answered) = (None, keys.is_empty());
        let subscriptions = self.subscriptions.as_ref();
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
                            let heard = self.space().topic(&key.key, waiter.owner);
                            subscriptions.is_disconnected(&heard)
                        })
                    }) {
                        // The waiter would miss its turn.
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
            outlast(|| match failure.applied {
                Applied::Answered | Applied::No => tracing::warn!(target: "dlock::store", "{said}"),
                _ => tracing::debug!(target: "dlock::store", "{said}"),
            });
        }
        if answered { Ok(()) } else { Err(failure) }
    }

    /// Wakes a waiter for a permit when one may be free. Sends one command for a lock when the
    /// first of its leases ends that was not extended meanwhile, or when a dead waiter before it
    /// may have been dropped from the queue.
    async fn look_for_room(&self, waited: &mut [Waited<Self>], deadline: Deadline) {
        let now = Instant::now();
        let looks = waited.iter_mut().filter_map(|key| {
            let Waited { waiters, seen, .. } = &*key;
            let holder = seen.value.as_deref().and_then(LockValue::parse)?;
            let is_due = seen.room_at.is_none_or(|room_at| room_at <= now);
            let waits = waiters.iter().any(|waiter| most(waiter).is_some());
            (is_due && waits && holder.mode.is_shared()).then_some(async move {
                // After a failure the waiter asks for the lock, which reports the reason.
                let found = self.look_at(&key.key, 0, deadline).await.ok().flatten();
                let holders = found.map(|lock| lock.holders).unwrap_or_default();
                let ends = holders.iter().filter_map(|holder| holder.expires_in).min();
                key.seen.room_at = ends.map(|ends| now + ends);
                // The message to this waiter was lost.
                key.wake(|owner| holders.iter().any(|holder| holder.shows(owner)));
                // The script grants to the first in the queue, whichever waiter asks. So the
                // waiter with the highest number asks: if there is room for any, there is for
                // this one.
                let highest = key.waiters.iter_mut().max_by_key(|waiter| most(waiter));
                if let Some(waiter) = highest
                    && most(waiter).is_some_and(|most| holders.len() < most)
                {
                    waiter.wake = true;
                    key.seen.room_at = key.seen.room_at.map(|at| at.min(now + ALIVE_FOR));
                }
            })
        });
        all(looks).await;
    }

    /// The values of these locks.
    pub(super) async fn values_of(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> Vec<Result<Value, Failure>> {
        let looks = keys.chunks(self.keys_at_once()).map(|keys| async move {
            let names = || commands::values(self.space(), keys.iter().map(|key| &**key));
            let answer = self.ask(&keys[0], deadline, &names).await;
            let values = answer.and_then(|answer| match answer.value {
                Value::Array(values) if values.len() == keys.len() => Ok(values),
                _ => Err(unexpected_answer(&answer.from)),
            });
            match values {
                Ok(values) => values.into_iter().map(Ok).collect(),
                Err(failure) => vec![Err(failure); keys.len()],
            }
        });
        all(looks).await.concat()
    }

    /// Gives a sign of life of the waiters of this process (in a cluster, of those for this lock).
    async fn beat(&self, key: &str, deadline: Deadline) -> Result<(), Failure> {
        let alive = self.space().alive_key(self.process, key);
        let beat = || commands::heartbeat(&alive);
        if self.ask(key, deadline, &beat).await?.value == Value::Int(0) {
            let again = || commands::heartbeat_again(&alive);
            self.ask(key, deadline, &again).await?;
        }
        Ok(())
    }

    /// Removes the sign of life: nobody in this process waits any more (in a cluster, for this
    /// lock).
    pub(super) async fn farewell_to(&self, key: &str, deadline: Deadline) {
        if self.space().redisson().is_some() {
            return;
        }
        let alive = self.space().alive_key(self.process, key);
        let farewell = || commands::farewell(&alive);
        let _ = self.ask(key, deadline, &farewell).await;
    }
}

/// The number of permits that a waiter goes by.
fn most(waiter: &Waiter) -> Option<usize> {
    match waiter.mode {
        Mode::Permits(most) => Some(usize::try_from(most).unwrap_or(usize::MAX)),
        Mode::Read | Mode::Write => None,
    }
}

/// Wakes one reader if none has asked for as long as a process counts as alive: who stands before
/// them in the queue may have died since. The question of one lets in all of them. Nothing else
/// does while the holders neither renew their leases nor end.
fn wake_a_reader(waiters: &mut [Waiter], now: Instant) {
    let reads = |waiter: &Waiter| waiter.mode == Mode::Read;
    let has_asked = |waiter: &Waiter| now.saturating_duration_since(waiter.since) < ALIVE_FOR;
    if !waiters.iter().any(|it| reads(it) && has_asked(it))
        && let Some(waiter) = waiters.iter_mut().find(|it| reads(it))
    {
        waiter.wake = true;
    }
}

/// Marks the waiters that should ask again, by the present value of the lock.
fn wake(key: &mut Waited<RedisStore>, value: Value) {
    let Value::BulkString(value) = value else {
        // The lock is free, or the key has another type, which the next attempt reports. The
        // holder has died, or the server has lost its data. An attempt of any waiter makes the
        // server grant the lock to the first in the queue. If one attempt did not help, all
        // waiters may have lost their places.
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
            // The mark was announced to all waiters; the message to this one was lost.
            None if done_by(&value).is_some() => true,
            // The message to this waiter was lost; or the holder has overtaken the queue, does
            // not know about it, and would not hand the lock on.
            Some(LockValue {
                mode: Mode::Write,
                owner,
                waited,
                ..
            }) => owner == waiter.owner || !waited,
            // Other readers have been granted the lock, so this one may be too.
            Some(LockValue { owner, .. }) => {
                owner == waiter.owner || (changed && waiter.mode == Mode::Read)
            }
            // An attempt reports what the value is.
            None => changed,
        };
        // The lock goes from holder to holder, and this waiter may have lost its place.
        let passed_by = changed && now.saturating_duration_since(waiter.since) >= VERIFY;
        waiter.wake |= cause || passed_by;
    }
    if holder.is_some_and(|holder| holder.mode.is_shared()) {
        wake_a_reader(&mut key.waiters, now);
    }
    if changed {
        let stays_shared =
            holder.is_some_and(|holder| holder.mode.is_shared()) && key.seen.is_shared();
        // Others were let in beside those who were known. One of them may be a waiter of this process
        // whose message was lost. The next look has to find its grant: that ends after three
        // seconds, and may be as old as the last look.
        let room_at = key.seen.room_at.filter(|_| stays_shared);
        key.seen.room_at = room_at.map(|room_at| room_at.min(now + PERIOD / 2));
    }
    key.seen.free = false;
    key.seen.value = Some(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Owner;

    /// Those who are woken, by their numbers, where each has asked so many seconds ago. The lock is
    /// shared, and has been for long.
    fn woken(waiters: &[(Mode, u64)]) -> Vec<usize> {
        let (now, value) = (Instant::now(), b"r:1.1");
        let waiters = waiters.iter().map(|&(mode, ago)| {
            let since = now.checked_sub(Duration::from_secs(ago));
            let since = since.expect("a machine that has run for a while");
            Waiter::of(Owner::unique(), mode, since)
        });
        let mut key = Waited::<RedisStore> {
            key: Arc::from("key"),
            waiters: waiters.collect(),
            seen: Seen {
                value: Some(value.to_vec()),
                ..Seen::default()
            },
            refused: None,
        };
        wake(&mut key, Value::BulkString(value.to_vec()));
        let woken = key.waiters.iter().enumerate();
        let woken = woken.filter(|(_, waiter)| waiter.wake);
        woken.map(|(number, _)| number).collect()
    }

    /// Who stands before them may have died. Any of them finds that out for all.
    #[test]
    fn one_reader_asks_in_eight_seconds() {
        use Mode::{Permits, Read, Write};
        assert_eq!(woken(&[(Read, 7), (Read, 7)]), [0; 0]);
        assert_eq!(woken(&[(Read, 8), (Read, 9)]).len(), 1);
        assert_eq!(woken(&[(Read, 60), (Read, 1)]), [0; 0]);
        assert_eq!(woken(&[(Write, 60), (Permits(2), 60)]), [0; 0]);
        assert_eq!(woken(&[(Write, 60), (Permits(2), 1), (Read, 8)]), [2]);
    }
}
