//! The recheck in this layout. `MGET` cannot read a hash, so one `EXISTS` counts the held locks
//! among all that a process waits for, and usually all of them are held. The locks themselves are
//! read only when one of them is free. A single lock is also read when its lease should have ended,
//! and at each recheck while a reader waits for it.

use std::time::{Duration, Instant};

use redis::Value;

use super::super::look::PERIOD;
use super::super::servers::{Answer, RedisStore, unexpected_answer};
use super::{Layout, commands};
use crate::apart::all;
use crate::backend::Mode;
use crate::deadline::Deadline;
use crate::store::{Failure, Waited};

/// The shortest time between two looks at a lock.
const LEAST: Duration = Duration::from_millis(20);

impl RedisStore {
    /// The state of each of these locks: the answer of `look.lua`, or only that it is held.
    pub(in super::super) async fn held(
        &self,
        layout: Layout,
        waited: &[Waited<Self>],
        deadline: Deadline,
    ) -> Vec<Result<Value, Failure>> {
        let looks = waited.chunks(self.keys_at_once()).map(|keys| async move {
            match self.held_together(layout, keys, deadline).await {
                Ok(values) => values.into_iter().map(Ok).collect(),
                Err(failure) => vec![Err(failure); keys.len()],
            }
        });
        all(looks).await.concat()
    }

    async fn held_together(
        &self,
        layout: Layout,
        keys: &[Waited<Self>],
        deadline: Deadline,
    ) -> Result<Vec<Value>, Failure> {
        let now = Instant::now();
        let is_due = |key: &&Waited<Self>| {
            let ends = key.seen.ends.is_none_or(|ends| ends <= now);
            // A writer of Redisson that becomes a reader sends no message.
            ends || key.waiters.iter().any(|waiter| waiter.mode == Mode::Read)
        };
        let first = &keys[0].key;
        let (mut looked_at, others): (Vec<_>, Vec<_>) = keys.iter().partition(is_due);
        if !others.is_empty() {
            let names = || others.iter().map(|key| &*key.key);
            let count = || commands::count(layout, names());
            let Answer { value, from, .. } = self.ask(first, deadline, &count).await?;
            let Value::Int(held) = value else {
                return Err(unexpected_answer(&from));
            };
            if held.unsigned_abs() < others.len() as u64 {
                looked_at = keys.iter().collect();
            }
        }
        let mut found = Vec::new();
        if !looked_at.is_empty() {
            let names = || looked_at.iter().map(|key| (&*key.key, &*key.waiters));
            let look = || commands::look(layout, names());
            let Answer { value, from, .. } = self.ask(first, deadline, &look).await?;
            match value {
                Value::Array(values) if values.len() == looked_at.len() => found = values,
                _ => return Err(unexpected_answer(&from)),
            }
        }
        let mut found = looked_at.iter().map(|key| &key.key).zip(found).peekable();
        let values = keys.iter().map(|key| {
            let next = found.next_if(|(looked_at, _)| **looked_at == key.key);
            next.map_or(Value::Okay, |(_, value)| value)
        });
        Ok(values.collect())
    }
}

/// Marks the waiters that should ask again.
pub(in super::super) fn wake(layout: Layout, key: &mut Waited<RedisStore>, value: &Value) {
    let held = match value {
        Value::Okay => {
            key.seen.free = false;
            return;
        }
        Value::BulkString(held) => std::str::from_utf8(held).ok(),
        _ => None,
    };
    let held = held.and_then(|held| held.split_once(':'));
    let held = held.and_then(|(ms, mode)| Some((ms.parse::<i64>().ok()?, mode)));
    let Some((ms, mode)) = held else {
        // The message was lost, or the holder has died. It is enough that one waiter asks.
        let all = if key.seen.free { usize::MAX } else { 1 };
        let waiters = key.waiters.iter_mut().take(all);
        waiters.for_each(|waiter| waiter.wake = true);
        (key.seen.free, key.seen.ends) = (true, None);
        return;
    };
    let Ok(ms) = u64::try_from(ms) else {
        // It is not a lock, which an attempt reports.
        return key.wake_all();
    };
    if mode == "turn" {
        // It is free, and the first of its queue is somewhere else.
        (key.seen.free, key.seen.ends) = (false, None);
        return;
    }
    if mode == "lost" {
        // Places were lost, and no message says so.
        key.wake_all();
    }
    for waiter in &mut key.waiters {
        waiter.wake |= mode == "read" && waiter.mode == Mode::Read;
    }
    let ends = Duration::from_millis(ms);
    let next = layout.recipe.keeps_places_every();
    let next = next.map_or(ends, |next| next.min(ends));
    (key.seen.free, key.seen.ends) = (false, Some(Instant::now() + next));
}

/// How soon to look at a lock again. At `ends`, its holder may have died, or the places of its
/// waiters have to be kept.
pub(in super::super) fn pace(ends: Instant) -> Duration {
    let left = ends.saturating_duration_since(Instant::now());
    left.clamp(LEAST, PERIOD)
}
