//! One node, as Redis's scripts make it one: locks, and a counter. Nobody queues at it,
//! as it may hand nothing on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner};
use dlock_runtime::TOKENS_PER_GRANT;

use super::ledger::{Forgot, Ledger};
use crate::network::{Pushed, RanOut, ServerId, Service, Visit};
use crate::world::{At, ProcessId};

/// A lease that is kept beyond its body is asked for once more, for less than this.
const KEEPS: Duration = Duration::from_millis(900);

#[derive(Clone)]
pub(crate) struct Node {
    number: usize,
    /// Not of this world: what becomes of the node leaves it alone.
    ledger: Arc<Ledger>,
    locks: BTreeMap<Arc<str>, Vec<Holder>>,
    /// The last number that was drawn.
    counter: u64,
    /// Which locks a process hears of.
    listens: BTreeMap<ProcessId, BTreeSet<Arc<str>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) asked: Asked,
    until: Duration,
    /// When it was last asked for, and for how long.
    since: At,
    ttl: Duration,
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
    /// Its vote, and a block of numbers above this one.
    Vote(Arc<str>, Asked, u64),
    Renew(Vec<(Arc<str>, Owner, Duration)>),
    Release {
        key: Arc<str>,
        owner: Owner,
        tells: bool,
    },
    Raise(u64),
    /// Whose each of these is.
    Look(Vec<Arc<str>>),
    Listen(ProcessId, BTreeSet<Arc<str>>),
    List,
    Ping,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The last number of the block.
    Yes(u64),
    No(Option<(Mode, Owner)>),
    Done(bool),
    Renewed(Vec<bool>),
    Holders(Vec<Option<(Mode, Owner)>>),
    Locks(Vec<(Arc<str>, Vec<Holder>)>),
}

impl Node {
    pub(super) fn new(number: usize, ledger: Arc<Ledger>) -> Self {
        Self {
            number,
            ledger,
            locks: BTreeMap::new(),
            counter: TOKENS_PER_GRANT - 1,
            listens: BTreeMap::new(),
        }
    }

    fn vote(&mut self, visit: &mut Visit, key: Arc<str>, asked: Asked, above: u64) -> Answer {
        self.expire(visit, &key);
        let until = visit.now + asked.ttl;
        let holders = self.locks.entry(Arc::clone(&key)).or_default();
        let known = holders
            .iter()
            .position(|holder| holder.asked.owner == asked.owner);
        let owner = asked.owner;
        let holder = Holder {
            until,
            since: visit.at,
            ttl: asked.ttl,
            asked,
        };
        match known {
            Some(known) => holders[known] = holder,
            None if !lets_in(holders, holder.asked.mode) => return Answer::No(last(holders)),
            None => holders.push(holder),
        }
        // As the slot of a cluster does it: a counter that was lost goes on from the clock.
        let floor = by_clock(visit.now).max(above).max(self.counter);
        self.counter = floor + TOKENS_PER_GRANT;
        visit.granted(&key, self.counter + 1 - TOKENS_PER_GRANT, owner);
        let until = visit.clock.when(until);
        self.ledger
            .voted(self.number, &key, owner, until, self.counter);
        Answer::Yes(self.counter)
    }

    fn renew(&mut self, visit: &mut Visit, key: &Arc<str>, owner: Owner, ttl: Duration) -> bool {
        self.expire(visit, key);
        let mut holders = self.locks.get_mut(key).into_iter().flatten();
        let Some(holder) = holders.find(|holder| holder.asked.owner == owner) else {
            return false;
        };
        (holder.since, holder.ttl, holder.until) = (visit.at, ttl, visit.now + ttl);
        let until = visit.clock.when(holder.until);
        self.ledger.extended(self.number, owner, until);
        true
    }

    fn release(&mut self, visit: &mut Visit, key: &Arc<str>, owner: Owner, tells: bool) -> bool {
        self.expire(visit, key);
        self.ledger.given_back(self.number, owner);
        let Some(holders) = self.locks.get_mut(key) else {
            return false;
        };
        let before = holders.len();
        holders.retain(|holder| holder.asked.owner != owner);
        let had = holders.len() < before;
        if had {
            visit.freed(key);
        }
        if holders.is_empty() {
            self.locks.remove(key);
            if had && tells {
                self.tell(visit, key);
            }
        }
        had
    }

    fn tell(&self, visit: &mut Visit, key: &Arc<str>) {
        let listen = self.listens.iter().filter(|(_, keys)| keys.contains(key));
        for (&process, _) in listen {
            let pushed = Pushed {
                key: Arc::clone(key),
                owner: None,
            };
            visit.tell(process, pushed);
        }
    }

    fn expire(&mut self, visit: &mut Visit, key: &Arc<str>) {
        let Some(holders) = self.locks.get_mut(key) else {
            return;
        };
        let now = visit.now;
        for holder in holders.extract_if(.., |holder| holder.until <= now) {
            visit.freed(key);
            if holder.ttl < KEEPS {
                // So it is kept.
                continue;
            }
            self.ledger.runs_out(RanOut {
                process: holder.asked.process,
                server: ServerId(self.number as u32),
                what: format!("{key}: {:?}", holder.asked.owner),
                since: holder.since,
                at: visit.at,
            });
        }
        if holders.is_empty() {
            self.locks.remove(key);
        }
    }

    /// From which number, once it can be asked.
    fn goes_on(&self, visit: &Visit, back: At) -> u64 {
        self.counter.max(by_clock(visit.clock.shows(back)))
    }

    fn look(&mut self, visit: &mut Visit, key: &Arc<str>) -> Option<(Mode, Owner)> {
        self.expire(visit, key);
        last(self.locks.get(key)?)
    }

    fn list(&mut self, visit: &mut Visit) -> Vec<(Arc<str>, Vec<Holder>)> {
        let keys: Vec<_> = self.locks.keys().cloned().collect();
        keys.iter().for_each(|key| self.expire(visit, key));
        let locks = self.locks.iter();
        locks
            .map(|(key, holders)| (Arc::clone(key), holders.clone()))
            .collect()
    }
}

impl Service for Node {
    type Command = Command;
    type Answer = Answer;

    fn run(&mut self, visit: &mut Visit, command: Command) -> Answer {
        match command {
            Command::Vote(key, asked, above) => self.vote(visit, key, asked, above),
            Command::Renew(leases) => {
                let leases = leases.iter();
                let renewed = leases.map(|(key, owner, ttl)| self.renew(visit, key, *owner, *ttl));
                Answer::Renewed(renewed.collect())
            }
            Command::Release { key, owner, tells } => {
                Answer::Done(self.release(visit, &key, owner, tells))
            }
            Command::Raise(last) => {
                self.counter = self.counter.max(last);
                self.ledger.counts(self.number, self.counter);
                Answer::Done(true)
            }
            Command::Look(keys) => {
                let holders = keys.iter().map(|key| self.look(visit, key));
                Answer::Holders(holders.collect())
            }
            Command::Listen(process, keys) => {
                self.listens.insert(process, keys);
                Answer::Done(true)
            }
            Command::List => Answer::Locks(self.list(visit)),
            Command::Ping => Answer::Done(true),
        }
    }

    fn left(&mut self, visit: &mut Visit) -> Vec<String> {
        let locks = self.list(visit).into_iter();
        locks
            .map(|(key, holders)| format!("{key}: {holders:?}"))
            .collect()
    }

    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool {
        self.look(visit, &Arc::from(key)).is_some()
    }

    fn broke(&mut self, before: &Self, visit: &mut Visit, back: At) {
        let has = |owner: Owner| {
            let mut holders = self.locks.values().flatten();
            let holder = holders.find(|holder| holder.asked.owner == owner);
            let until = holder.map_or(At::ZERO, |holder| visit.clock.when(holder.until));
            // Nobody else can have it while the node is away.
            until.max(back)
        };
        self.ledger.forgot(&Forgot {
            node: self.number,
            at: visit.at,
            lasts: has,
            counted: before.counter,
            goes_on: self.goes_on(visit, back),
        });
    }

    /// If it has lost its counter, and nobody has drawn from it since.
    fn clock_went_back(&self, visit: &Visit, back: At) {
        self.ledger.goes_on(self.number, self.goes_on(visit, back));
    }
}

/// Numbers are microseconds, in blocks.
fn by_clock(now: Duration) -> u64 {
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    now - now % TOKENS_PER_GRANT + TOKENS_PER_GRANT - 1
}

fn lets_in(holders: &[Holder], mode: Mode) -> bool {
    let reads = |holder: &Holder| holder.asked.mode == Mode::Read;
    holders.is_empty() || (mode == Mode::Read && holders.iter().all(reads))
}

/// The writer, or the reader who was let in last.
fn last(holders: &[Holder]) -> Option<(Mode, Owner)> {
    let Asked { mode, owner, .. } = &holders.last()?.asked;
    Some((*mode, *owner))
}
