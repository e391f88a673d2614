//! Looking at locks.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::attempt::{Attempt, Listing};
use super::commands;
use super::connections::Link;
use super::servers::{Route, Servers};
use super::values::LockValue;
use crate::backend::{HolderInfo, LockInfo, Mode};
use crate::deadline::{Deadline, Sending};
use crate::store::{Failure, Next};

impl Servers {
    pub(super) async fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<LockInfo>, Failure> {
        match self.look_at(key, deadline, attempt).await? {
            (Seen::Lock(lock), _) => Ok(Some(lock)),
            (Seen::Free, _) => Ok(None),
            (Seen::Foreign, link) => {
                let foreign = self.foreign(&link, key, deadline).await;
                Err(Failure {
                    next: Next::Stop,
                    ..Failure::refused(foreign)
                })
            }
        }
    }

    async fn look_at(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<(Seen, Link), Failure> {
        let build = |form| commands::inspect(self.space(), form, key);
        let answer = self.ask(key, deadline, attempt, build).await?;
        Ok((read(key, answer.value), answer.link))
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
        let Some(lane) = listing.lanes.front().cloned() else {
            return Ok(Some(std::mem::take(&mut listing.locks)));
        };
        let connection = lane.connection(deadline).await?;
        let link = Link::new(lane, connection);
        let pattern = self.space().locks_with(prefix);
        let scan = commands::scan(listing.cursor, &pattern);
        let at = Sending::now(deadline);
        let answer = link.connection.run(scan, at).await;
        let answer = match self.hear(&link, &mut Attempt::default(), at.at, answer)? {
            Value::ServerError(error) => {
                return Err(self
                    .refused(&link, prefix, error, deadline, &mut Attempt::default())
                    .await);
            }
            answer => answer,
        };
        let Ok((next, names)) = redis::from_redis_value::<(u64, Vec<String>)>(answer) else {
            return Err(self.nonsense(&link));
        };
        let keys: Vec<_> = names
            .iter()
            .filter_map(|name| self.space().key_of(name))
            .filter(|key| key.starts_with(prefix) && !listing.seen.contains(*key))
            .collect();
        // Together, as the connection is busy with the first of them.
        let looks = keys.iter().map(|key| async move {
            let attempt = &mut Attempt::default();
            let looked = self.look_at(key, deadline, attempt).await;
            looked.map(|(seen, _)| seen)
        });
        let mut found = Vec::new();
        for look in join_all(looks).await {
            // What is not a lock is not listed.
            if let Seen::Lock(lock) = look? {
                found.push(lock);
            }
        }
        for lock in found {
            if listing.seen.insert(lock.key.clone()) {
                listing.locks.push(lock);
            }
        }
        listing.cursor = next;
        if next == 0 {
            listing.lanes.pop_front();
        }
        if listing.lanes.is_empty() {
            return Ok(Some(std::mem::take(&mut listing.locks)));
        }
        Ok(None)
    }

    /// Of every server that has locks.
    fn listing(&self) -> Result<Listing, Failure> {
        let lanes = match &self.route {
            Route::One(one)
            | Route::Voter {
                connections: one, ..
            } => [one.connections.here()].into_iter().collect(),
            Route::Cluster { topology, .. } => {
                let masters = topology.masters().into_iter();
                masters.map(|node| node.one.connections.here()).collect()
            }
        };
        let lanes: Result<VecDeque<_>, _> = lanes;
        Ok(Listing {
            lanes: lanes.map_err(Failure::refused)?,
            cursor: 0,
            seen: HashSet::new(),
            locks: Vec::new(),
        })
    }
}
enum Seen {
    Lock(LockInfo),
    Free,
    Foreign,
}

/// Reads the answer of `inspect.lua`.
fn read(key: &str, answer: Value) -> Seen {
    let Value::Array(answer) = answer else {
        return Seen::Free;
    };
    let mut parts = answer.into_iter();
    let (Some(Value::BulkString(value)), Some(Value::Int(expires)), Some(Value::Int(waiters))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Seen::Foreign;
    };
    let Some(LockValue { mode, owner, .. }) = LockValue::parse(&value) else {
        return Seen::Foreign;
    };
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
                return Seen::Free;
            }
            readers
        }
    };
    let waiters = usize::try_from(waiters).unwrap_or(0);
    Seen::Lock(LockInfo::new(key.to_owned(), mode, holders, waiters))
}

fn whole(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
