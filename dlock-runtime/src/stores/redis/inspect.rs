//! Looking at locks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;

use super::commands;
use super::servers::{Attempt, Listing, Route, Servers};
use super::values::LockValue;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::deadline::Deadline;
use crate::store::{Failure, Next};

impl Servers {
    pub(super) async fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<LockInfo>, Failure> {
        let build = || commands::inspect(self.space(), key);
        let answer = self.ask(key, deadline, attempt, build).await?;
        match read(key, answer.value) {
            Some(lock) => Ok(lock),
            None => {
                let foreign = self.foreign(&answer.from, key, deadline).await;
                Err(Failure {
                    next: Next::Stop,
                    ..Failure::refused(foreign)
                })
            }
        }
    }

    /// One more step of a list; `None` if it was not the last.
    pub(super) async fn next_of_list(
        &self,
        prefix: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        let listing = match attempt.listing.take() {
            Some(listing) => listing,
            None => Box::new(self.listing()?),
        };
        // If the step fails, it is made again.
        let listing = attempt.listing.insert(listing);
        let Some(server) = listing.servers.front().cloned() else {
            return Ok(Some(listing.taken()));
        };
        let server = server.connection(deadline).await?;
        let pattern = self.space().locks_with(prefix);
        let scan = commands::pipeline([commands::scan(listing.cursor, &pattern)]);
        let unused = &mut Attempt::default();
        let (mut answers, _) = self.ask_all(&server, &scan, deadline, unused).await?;
        let answer = match answers.pop().unwrap_or_default() {
            Value::ServerError(error) => {
                return Err(self.refused(&server, prefix, error, deadline, unused).await);
            }
            answer => answer,
        };
        let Ok((next, names)) = redis::from_redis_value::<(u64, Vec<String>)>(answer) else {
            return Err(self.nonsense(&server));
        };
        let keys = names.iter().filter_map(|name| self.space().key_of(name));
        let keys = keys.filter(|key| key.starts_with(prefix) && !listing.locks.contains_key(*key));
        // Together, as the connection is busy with the first of them.
        let looks = keys.map(|key| async move {
            let (attempt, build) = (&mut Attempt::default(), || {
                commands::inspect(self.space(), key)
            });
            let answer = self.ask(key, deadline, attempt, build).await?;
            // What is not a lock is not listed.
            Ok::<_, Failure>(read(key, answer.value).flatten())
        });
        for lock in try_join_all(looks).await?.into_iter().flatten() {
            listing.locks.insert(lock.key.clone(), lock);
        }
        listing.cursor = next;
        if next == 0 {
            listing.servers.pop_front();
        }
        if listing.servers.is_empty() {
            return Ok(Some(listing.taken()));
        }
        Ok(None)
    }

    /// Of every server that has locks.
    fn listing(&self) -> Result<Listing, Failure> {
        let servers = match &self.route {
            Route::One(one, _) => VecDeque::from([one.here()?]),
            Route::BySlot(topology) => {
                let masters = topology.map.masters().into_iter();
                let here = masters.map(|node| topology.node(&node).here());
                here.collect::<Result<_, _>>()?
            }
        };
        Ok(Listing {
            servers,
            cursor: 0,
            locks: BTreeMap::new(),
        })
    }
}

impl Listing {
    fn taken(&mut self) -> Vec<LockInfo> {
        std::mem::take(&mut self.locks).into_values().collect()
    }
}

/// Reads the answer of `inspect.lua`: a lock, or that there is none. `None`: dlock did
/// not write it.
fn read(key: &str, answer: Value) -> Option<Option<LockInfo>> {
    let Value::Array(answer) = answer else {
        return Some(None);
    };
    let mut parts = answer.into_iter();
    let (Some(Value::BulkString(value)), Some(Value::Int(expires)), Some(Value::Int(waiters))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let LockValue { mode, owner, .. } = LockValue::parse(&value)?;
    let holders = match mode {
        Mode::Write => vec![HolderInfo::new(owner.to_string(), whole(expires))],
        Mode::Read => {
            let mut readers = Vec::new();
            while let (Some(Value::BulkString(reader)), Some(Value::Int(expires))) =
                (parts.next(), parts.next())
            {
                let reader = String::from_utf8_lossy(&reader).into_owned();
                readers.push(HolderInfo::new(reader, whole(expires)));
            }
            if readers.is_empty() {
                return Some(None);
            }
            readers
        }
    };
    let waiters = usize::try_from(waiters).unwrap_or(0);
    Some(Some(LockInfo::new(key.to_owned(), mode, holders, waiters)))
}

fn whole(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
