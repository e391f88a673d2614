//! Inspecting and listing locks, for operators.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use redis::Value;

use super::commands;
use super::connection::Connection;
use super::errors::{RetryPolicy, classify};
use super::names::{Keyspace, Part};
use super::redisson;
use super::scan::Cursor;
use super::servers::{Answer, Answering, Listing, Notes, RedisStore, Route, unexpected_answer};
use super::values::{LockValue, UNCLAIMED, done_by};
use crate::apart::try_all;
use crate::backend::{HolderInfo, Listed, LockInfo, Mode, WaiterInfo};
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::stores::since;
use crate::stores::stored_owner::StoredOwner;
use crate::token::FencingToken;

/// The most locks of a list that are looked at in one step, which has the time of one answer.
const LOOKS_AT_ONCE: usize = 1000;

impl RedisStore {
    /// Looks at a lock, and at up to `waiters` of its waiters.
    pub(super) fn look_at<'a>(
        &'a self,
        key: &'a str,
        waiters: usize,
        deadline: Deadline,
    ) -> Answering<'a, Option<LockInfo>> {
        Box::pin(async move {
            match self.what_is_at(key, waiters, deadline).await? {
                (Ok(lock), _) => Ok(lock),
                (Err(value), from) => {
                    let foreign = self.foreign(&from, key, value, deadline).await;
                    Err(Failure::refused(foreign))
                }
            }
        })
    }

    /// The result of [`read`], and the connection from which it came.
    fn what_is_at<'a>(
        &'a self,
        key: &'a str,
        waiters: usize,
        deadline: Deadline,
    ) -> Answering<'a, (Result<Option<LockInfo>, Part>, Connection)> {
        Box::pin(async move {
            let build = || commands::inspect(self.space(), key, self.votes, waiters);
            let Answer { value, from, .. } = self.ask(key, deadline, &build).await?;
            if let Value::Array(parts) = &value {
                for part in parts {
                    if let Value::ServerError(error) = part
                        && classify(error) != RetryPolicy::Foreign
                    {
                        let (error, unused) = (error.clone(), &mut Notes::default());
                        return Err(self.refused(&from, key, error, deadline, unused).await);
                    }
                }
            }
            let read = match self.space() {
                Keyspace::Redisson(_) => {
                    redisson::inspect::read(key, value).map_err(|()| Part::Lock)
                }
                _ => read(key, value),
            };
            Ok((read, from))
        })
    }

    /// One more step of a list. `None`: it was not the last. Each key is looked at by a script of
    /// its own, so only the first `most` are.
    pub(super) fn next_of_list<'a>(
        &'a self,
        prefix: &'a str,
        most: usize,
        deadline: Deadline,
        notes: &'a mut Notes,
    ) -> Answering<'a, Option<Listed>> {
        Box::pin(async move {
            let listing = self.listing_of(notes)?;
            if self.scans_on(prefix, deadline, listing).await? {
                if listing.servers.is_empty() {
                    listing.ahead = listing.found.iter().take(most).cloned().collect();
                }
                return Ok(None);
            }
            let some = listing.ahead.len().min(LOOKS_AT_ONCE);
            let looked = self.look_at_all(listing.ahead.range(..some), deadline);
            let looked = looked.await?;
            listing.locks.extend(looked);
            listing.ahead.drain(..some);
            if !listing.ahead.is_empty() {
                return Ok(None);
            }
            let others = listing.found.len().saturating_sub(most);
            let locks = std::mem::take(&mut listing.locks);
            Ok(Some(Listed::with_others(locks, others)))
        })
    }

    /// The keys of all locks. `None`: this was not the last step.
    pub(super) async fn next_keys(
        &self,
        prefix: &str,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<Option<BTreeSet<String>>, Failure> {
        let listing = self.listing_of(notes)?;
        self.scans_on(prefix, deadline, listing).await?;
        let is_last = listing.servers.is_empty();
        Ok(is_last.then(|| std::mem::take(&mut listing.found)))
    }

    /// Takes one more step of finding the keys, if there is one left.
    fn scans_on<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Deadline,
        listing: &'a mut Listing,
    ) -> Answering<'a, bool> {
        Box::pin(async move {
            let Some(server) = listing.servers.front() else {
                return Ok(false);
            };
            let server = server.connection(deadline).await?;
            let scan = commands::scan(self.space(), listing.cursor.at, prefix);
            let answer = self.ask_over(&server, prefix, scan, deadline).await?;
            let Ok((next, names)) = redis::from_redis_value::<(u64, Vec<Vec<u8>>)>(answer) else {
                return Err(unexpected_answer(&server));
            };
            // A name that is no text is somebody else's.
            let names = names
                .iter()
                .filter_map(|name| std::str::from_utf8(name).ok());
            let keys = names.filter_map(|name| self.space().key_of(name));
            let keys = keys.filter(|key| key.starts_with(prefix));
            listing.found.extend(keys.map(ToOwned::to_owned));
            if !listing.cursor.goes_on(next) {
                return Err(unexpected_answer(&server));
            }
            if next == 0 {
                listing.servers.pop_front();
            }
            Ok(true)
        })
    }

    /// What is known of these locks. A key that is not a lock is left out.
    pub(super) async fn look_at_all(
        &self,
        keys: impl IntoIterator<Item = &String>,
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, Failure> {
        // Concurrently, so that the batcher sends them together.
        let looks = keys.into_iter().map(|key| async move {
            let (lock, _) = self.what_is_at(key, 0, deadline).await?;
            Ok::<_, Failure>(lock.ok().flatten())
        });
        let looked = try_all(looks).await?;
        Ok(looked.into_iter().flatten().collect())
    }

    /// The list in these notes. It stays there, so that a failed step can be repeated.
    fn listing_of<'a>(&self, notes: &'a mut Notes) -> Result<&'a mut Listing, Failure> {
        let listing = match notes.listing.take() {
            Some(listing) => listing,
            None => Box::new(self.listing()?),
        };
        Ok(notes.listing.insert(listing))
    }

    /// Starts a list of all servers that have locks.
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
            cursor: Cursor::default(),
            found: BTreeSet::new(),
            ahead: VecDeque::new(),
            locks: Vec::new(),
        })
    }
}

/// Reads the answer of `inspect.lua`: a lock, or none. The error is the key whose value dlock did
/// not write, unless one of the keys has a wrong type.
fn read(key: &str, answer: Value) -> Result<Option<LockInfo>, Part> {
    type Readers = Vec<(Vec<u8>, i64)>;
    type Answer = (
        Vec<u8>,
        i64,
        usize,
        Readers,
        Vec<Vec<u8>>,
        Vec<Option<Vec<u8>>>,
        Vec<Option<Vec<u8>>>,
    );
    let answer = redis::from_redis_value::<Option<Answer>>(answer).map_err(|_| Part::Lock)?;
    let Some((value, expires, waiters, readers, places, since_of_readers, tokens)) = answer else {
        return Ok(None);
    };
    if let Some(owner) = done_by(&value) {
        let done = HolderInfo::new(owner.to_owned(), in_ms(expires));
        return Ok(Some(LockInfo::of_done(key.to_owned(), done)));
    }
    let found = LockValue::parse(&value).ok_or(Part::Lock)?;
    let mut tokens = tokens.iter().map(|token| fencing_token(token.as_deref()?));
    let mut next_token = || tokens.next().flatten();
    let holders: Option<Vec<_>> = match found.mode.is_shared() {
        false => {
            let owner = std::str::from_utf8(&value).ok().and_then(writer);
            let since = found.since.and_then(since::time);
            owner.map(|owner| {
                let holder = HolderInfo::new(owner.to_owned(), in_ms(expires)).since(since);
                vec![(found.mode, holder.token(next_token()))]
            })
        }
        true => {
            let readers = readers.into_iter().zip(since_of_readers);
            let readers = readers.map(|((reader, expires), since)| {
                let reader = String::from_utf8(reader).ok()?;
                let mode = StoredOwner::read(&reader)?.mode;
                let holder = HolderInfo::new(reader, in_ms(expires));
                let since = since.and_then(|since| moment(&since));
                Some((mode, holder.since(since).token(next_token())))
            });
            readers.collect()
        }
    };
    let holders = holders.ok_or(Part::Readers)?;
    let mode = Mode::shown(holders.iter().map(|(mode, _)| *mode));
    let holders = holders.into_iter().map(|(_, holder)| holder).collect();
    let queue = places.iter().filter_map(|entry| waiter(entry)).collect();
    let lock = |mode| LockInfo::new(key.to_owned(), mode, holders, waiters).with_queue(queue);
    Ok(mode.map(lock))
}

/// The owner in the value of a writer's lock.
fn writer(value: &str) -> Option<&str> {
    let (_, owner) = value.split_once(':')?;
    owner.split([';', '+', UNCLAIMED]).next()
}

/// The time that a reader's key says, if it is one.
fn moment(ms: &[u8]) -> Option<SystemTime> {
    since::time(std::str::from_utf8(ms).ok()?.parse().ok()?)
}

/// The token that a holder's key has, if it is one.
fn fencing_token(number: &[u8]) -> Option<FencingToken> {
    let token = std::str::from_utf8(number).ok()?.parse().ok();
    token.filter(|token| *token != FencingToken::NONE)
}

/// The waiter of a queue entry.
fn waiter(entry: &[u8]) -> Option<WaiterInfo> {
    let mut parts = std::str::from_utf8(entry).ok()?.split(':');
    let (mode, owner) = (parts.next()?, parts.next()?);
    let stored = StoredOwner::read(owner)?;
    let mode = match mode {
        "w" => Mode::Write,
        _ => stored.mode,
    };
    Some(WaiterInfo::new(owner.to_owned(), mode))
}

/// The time that is left, if there is an end.
fn in_ms(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_millis)
}
