//! The server, as Redis's scripts make it one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner};
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::{Holder as Holding, Pushed, Service, Visit};
use crate::stores::listing::{Listed, Mark, fits};
use crate::world::ProcessId;

/// A lock that was handed over waits for its new holder for so long.
pub(super) const CLAIM: Duration = Duration::from_secs(3);
/// Who has not said for so long that it is alive loses its places.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(8);

#[derive(Clone, Default)]
pub(crate) struct QueueServer {
    locks: BTreeMap<Arc<str>, Lock>,
    last_token: u64,
    alive: BTreeMap<ProcessId, Duration>,
}

#[derive(Clone, Default)]
struct Lock {
    holders: Vec<Holder>,
    queue: VecDeque<Asked>,
    /// Its body has been done.
    done: Option<Mark>,
}

#[derive(Clone, Debug)]
struct Holder {
    asked: Asked,
    token: u64,
    until: Duration,
    /// It has asked or renewed since it was let in, and so has answered its grant.
    claimed: bool,
}

/// Who asks, and for what.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) owner: Owner,
    pub(crate) process: ProcessId,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// The lock if nobody has it and nobody waits. It does not know its owner.
    First(Arc<str>, Asked),
    /// The lock, or a place if one is wanted.
    Ask {
        key: Arc<str>,
        asked: Asked,
        waits: bool,
        beat: bool,
    },
    Renew(Arc<str>, Owner, Duration),
    Release {
        key: Arc<str>,
        owner: Owner,
        place_too: bool,
        /// For so long it is remembered that the body has been done.
        done: Option<Duration>,
    },
    Forget(Arc<str>),
    /// Whose each of these is.
    Look {
        keys: Vec<Arc<str>>,
        alive: Option<ProcessId>,
    },
    /// The places of a process.
    Places(Arc<str>, ProcessId),
    /// The place of one that its process does not know, and a grant that it has not answered.
    Disown(Arc<str>, Owner),
    Farewell(ProcessId),
    List,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted(u64),
    Busy,
    Queued,
    /// Its body has been done.
    Remembered,
    Done(bool),
    /// Who holds each.
    Holders(Vec<Vec<Owner>>),
    /// Who holds each, and who waits for it.
    Seen(Vec<(Vec<Owner>, Vec<Owner>)>),
    Locks(Vec<Listed>),
}

impl Service for QueueServer {
    type Command = Command;
    type Answer = Answer;

    fn run(&mut self, visit: &mut Visit, command: Command) -> Answer {
        match command {
            Command::First(key, asked) => {
                self.advance(visit, &key);
                let lock = self.locks.entry(Arc::clone(&key)).or_default();
                match lock.is_free() {
                    true => self.grant(visit, &key, asked),
                    false => Answer::Busy,
                }
            }
            Command::Ask {
                key,
                asked,
                waits,
                beat,
            } => {
                if beat {
                    self.alive.insert(asked.process, visit.now);
                }
                self.ask(visit, &key, asked, waits)
            }
            Command::Renew(key, owner, ttl) => {
                self.advance(visit, &key);
                let lock = self.locks.get_mut(&key);
                let held = lock.and_then(|lock| lock.holder(owner));
                let is_held = held
                    .map(|holder| holder.lasts_until(visit.now + ttl))
                    .is_some();
                // Either way it has what this server says from now on.
                visit.knows(owner);
                Answer::Done(is_held)
            }
            Command::Release {
                key,
                owner,
                place_too,
                done,
            } => {
                visit.knows(owner);
                self.expire(visit, &key);
                let Some(lock) = self.locks.get_mut(&key) else {
                    return Answer::Done(false);
                };
                if place_too {
                    lock.queue.retain(|place| place.owner != owner);
                }
                let had = lock.take_back(owner);
                // It may have been done by the same command, sent before.
                let marked = done.is_some() && lock.done.is_some_and(|mark| mark.owner == owner);
                if let Some(holder) = &had {
                    visit.freed(&key);
                    match done {
                        Some(time) => self.mark(visit, &key, holder, time),
                        None => visit.given_back(&key, holder.token),
                    }
                }
                self.advance(visit, &key);
                Answer::Done(had.is_some() || marked)
            }
            Command::Forget(key) => {
                self.expire(visit, &key);
                let lock = self.locks.get_mut(&key);
                let mark = lock.and_then(|lock| lock.done.take());
                if mark.is_some() {
                    visit.unmarked(&key);
                }
                self.advance(visit, &key);
                Answer::Done(mark.is_some())
            }
            Command::Look { keys, alive } => {
                if let Some(process) = alive {
                    self.alive.insert(process, visit.now);
                }
                let seen = keys.iter().map(|key| {
                    self.advance(visit, key);
                    let queue = self.locks.get(key).into_iter().flat_map(|lock| &lock.queue);
                    let waiting = queue.map(|place| place.owner).collect();
                    (self.owners(key), waiting)
                });
                Answer::Seen(seen.collect())
            }
            Command::Places(key, process) => {
                let lock = self.locks.get(&key);
                let of_it = |asked: &&Asked| asked.process == process;
                let places = lock.into_iter().flat_map(|lock| &lock.queue);
                Answer::Holders(vec![
                    places.filter(of_it).map(|place| place.owner).collect(),
                ])
            }
            Command::Disown(key, owner) => {
                visit.knows(owner);
                self.expire(visit, &key);
                if let Some(lock) = self.locks.get_mut(&key) {
                    lock.queue.retain(|place| place.owner != owner);
                    let is_claimed = |holder: &mut Holder| holder.claimed;
                    if !lock.holder(owner).is_some_and(is_claimed)
                        && let Some(holder) = lock.take_back(owner)
                    {
                        visit.freed(&key);
                        visit.given_back(&key, holder.token);
                    }
                    self.advance(visit, &key);
                }
                Answer::Done(true)
            }
            Command::Farewell(process) => {
                self.alive.remove(&process);
                Answer::Done(true)
            }
            Command::List => Answer::Locks(self.list(visit)),
        }
    }

    fn left(&mut self, visit: &mut Visit) -> Vec<String> {
        let keys: Vec<_> = self.locks.keys().cloned().collect();
        keys.iter().for_each(|key| self.advance(visit, key));
        let left = self.locks.iter();
        left.map(|(key, lock)| {
            let Lock {
                holders,
                queue,
                done,
            } = lock;
            format!("{key}: {holders:?}, {queue:?}, {done:?}")
        })
        .collect()
    }

    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool {
        let key = Arc::from(key);
        self.advance(visit, &key);
        !self.owners(&key).is_empty()
    }

    fn holders(&self, now: Duration, key: &str) -> Option<Vec<Holding>> {
        let lock = self.locks.get(key).into_iter();
        let holders = lock.flat_map(|lock| lock.holders.iter().filter(|one| one.until > now));
        let holders = holders.map(|holder| Holding {
            token: holder.token,
            process: Some(holder.asked.process),
            owner: holder.asked.owner,
            lasts: Some(holder.until.saturating_sub(now)),
        });
        Some(holders.collect())
    }
}

impl QueueServer {
    fn ask(&mut self, visit: &mut Visit, key: &Arc<str>, asked: Asked, waits: bool) -> Answer {
        self.advance(visit, key);
        let now = visit.now;
        let lock = self.locks.entry(Arc::clone(key)).or_default();
        if lock.done.is_some() {
            return Answer::Remembered;
        }
        if let Some(holder) = lock.holder(asked.owner) {
            holder.lasts_until(now + asked.ttl);
            visit.knows(asked.owner);
            return Answer::Granted(holder.token);
        }
        let waits_already = lock.queue.iter().any(|place| place.owner == asked.owner);
        if lock.queue.is_empty() && lock.lets_in(asked.mode) {
            return self.grant(visit, key, asked);
        }
        if !waits && !waits_already {
            return Answer::Busy;
        }
        if !waits_already {
            lock.queue.push_back(asked);
        }
        Answer::Queued
    }

    fn grant(&mut self, visit: &mut Visit, key: &Arc<str>, asked: Asked) -> Answer {
        let until = visit.now + asked.ttl;
        visit.knows(asked.owner);
        Answer::Granted(self.hold(visit, key, asked, until, true))
    }

    fn hold(
        &mut self,
        visit: &mut Visit,
        key: &Arc<str>,
        asked: Asked,
        until: Duration,
        claimed: bool,
    ) -> u64 {
        self.last_token += TOKENS_PER_GRANT;
        let token = self.last_token;
        visit.granted(key, token, asked.owner);
        let lock = self.locks.entry(Arc::clone(key)).or_default();
        lock.holders.push(Holder {
            asked,
            token,
            until,
            claimed,
        });
        token
    }

    /// Nobody is let in, and all who wait are told to ask again.
    fn mark(&mut self, visit: &mut Visit, key: &Arc<str>, of: &Holder, time: Duration) {
        let lock = self.locks.entry(Arc::clone(key)).or_default();
        lock.done = Some(Mark {
            owner: of.asked.owner,
            until: visit.now + time,
        });
        visit.marked(key, of.token, time);
        for place in lock.queue.drain(..) {
            let pushed = Pushed {
                key: Arc::clone(key),
                owner: Some(place.owner),
            };
            visit.tell(place.process, pushed);
        }
    }

    fn expire(&mut self, visit: &mut Visit, key: &Arc<str>) {
        if let Some(lock) = self.locks.get_mut(key) {
            if lock.done.is_some_and(|mark| mark.until <= visit.now) {
                lock.done = None;
                visit.unmarked(key);
            }
            let before = lock.holders.len();
            lock.holders.retain(|holder| holder.until > visit.now);
            if lock.holders.len() < before {
                visit.freed(key);
            }
        }
    }

    /// Ends what has run out, and lets in who is next. Who holds the lock by the word of
    /// the server before may not hear of that, and so knows nothing new until it asks.
    fn advance(&mut self, visit: &mut Visit, key: &Arc<str>) {
        self.expire(visit, key);
        while let Some(next) = self.next(visit.now, key) {
            let until = visit.now + next.ttl.min(CLAIM);
            let (process, owner) = (next.process, next.owner);
            self.hold(visit, key, next, until, false);
            let pushed = Pushed {
                key: Arc::clone(key),
                owner: Some(owner),
            };
            visit.tell(process, pushed);
        }
        if self.locks.get(key).is_some_and(Lock::is_free) {
            self.locks.remove(key);
        }
    }

    fn next(&mut self, now: Duration, key: &Arc<str>) -> Option<Asked> {
        let lock = self.locks.get_mut(key)?;
        loop {
            let first = lock.queue.front()?;
            let alive = self.alive.get(&first.process);
            if alive.is_none_or(|alive| *alive + DEAD_AFTER < now) {
                lock.queue.pop_front();
                continue;
            }
            return match lock.lets_in(first.mode) {
                true => lock.queue.pop_front(),
                false => None,
            };
        }
    }

    fn owners(&self, key: &Arc<str>) -> Vec<Owner> {
        let holders = self
            .locks
            .get(key)
            .into_iter()
            .flat_map(|lock| &lock.holders);
        holders.map(|holder| holder.asked.owner).collect()
    }

    fn list(&mut self, visit: &mut Visit) -> Vec<Listed> {
        let keys: Vec<_> = self.locks.keys().cloned().collect();
        keys.iter().for_each(|key| self.advance(visit, key));
        let locks = self.locks.iter().map(|(key, lock)| {
            let holders = lock.holders.iter();
            let holders = holders.map(|holder| (holder.asked.owner, holder.asked.mode));
            Listed {
                key: Arc::clone(key),
                holders: holders.collect(),
                waiters: Some(lock.queue.len()),
                done: lock.done,
            }
        });
        locks.collect()
    }
}

impl Holder {
    /// It has the lock until then, and knows so.
    fn lasts_until(&mut self, until: Duration) {
        self.until = until;
        self.claimed = true;
    }
}

impl Lock {
    fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.done.is_none()
    }

    fn holder(&mut self, owner: Owner) -> Option<&mut Holder> {
        self.holders
            .iter_mut()
            .find(|holder| holder.asked.owner == owner)
    }

    fn take_back(&mut self, owner: Owner) -> Option<Holder> {
        let mut holders = self.holders.iter();
        let index = holders.position(|holder| holder.asked.owner == owner)?;
        Some(self.holders.remove(index))
    }

    fn lets_in(&self, mode: Mode) -> bool {
        fits(mode, self.holders.iter().map(|holder| holder.asked.mode))
    }
}
