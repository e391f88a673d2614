//! The server: a row for each lock, its holders and its queue, and one for each process
//! with waiters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner};
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::{Holder as Holding, Pushed, Service, Visit};
use crate::stores::listing::{Listed, Mark, fits};
use crate::world::ProcessId;

/// Who has not said for so long that it is alive loses its places.
pub(super) const ALIVE: Duration = Duration::from_secs(8);
/// A lock that has been free for so long goes to whoever asks.
const GOES_TO_ANYBODY: Duration = Duration::from_millis(1_500);

#[derive(Clone, Default)]
pub(crate) struct DatabaseServer {
    rows: BTreeMap<Arc<str>, Row>,
    last_token: u64,
    alive: BTreeMap<ProcessId, Duration>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    holders: Vec<Holder>,
    queue: Vec<Asked>,
    done: Option<Mark>,
    /// Since when nobody has the lock.
    free: Duration,
}

#[derive(Clone, Debug)]
struct Holder {
    asked: Asked,
    token: u64,
    until: Duration,
}

/// Who asks, and for what.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) key: Arc<str>,
    pub(crate) owner: Owner,
    pub(crate) process: ProcessId,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Those of these locks that are free, and that nobody waits for.
    Take(Vec<Asked>),
    /// The lock, or a place if one is wanted.
    Ask {
        asked: Asked,
        waits: bool,
        beat: bool,
    },
    Renew(Vec<(Arc<str>, Owner, Duration)>),
    /// The lock; and with `left`, the place.
    Release {
        key: Arc<str>,
        owner: Owner,
        left: bool,
        done: Option<Duration>,
    },
    Forget(Arc<str>),
    /// Gives up places of nobody.
    Leave(Vec<(Arc<str>, Owner)>),
    /// Who may ask, of this process.
    Look {
        keys: Vec<Arc<str>>,
        process: ProcessId,
        beat: bool,
    },
    Farewell(ProcessId),
    List,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Taken(Vec<Took>),
    Took(Took),
    Done(bool),
    Renewed(Vec<bool>),
    /// Of each lock, who has cause to ask; and all places of the process.
    Seen(Vec<Vec<Owner>>, Vec<(Arc<str>, Owner)>),
    Locks(Vec<Listed>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Took {
    Granted(u64),
    Busy,
    Queued,
    Remembered,
}

impl Service for DatabaseServer {
    type Command = Command;
    type Answer = Answer;

    fn run(&mut self, visit: &mut Visit, command: Command) -> Answer {
        match command {
            Command::Take(asked) => {
                let asked = asked.into_iter();
                Answer::Taken(asked.map(|asked| self.take(visit, asked)).collect())
            }
            Command::Ask { asked, waits, beat } => {
                if beat {
                    self.alive.insert(asked.process, visit.now);
                }
                Answer::Took(self.ask(visit, asked, waits))
            }
            Command::Renew(leases) => {
                let leases = leases.into_iter();
                let renewed = leases.map(|(key, owner, ttl)| {
                    visit.knows(owner);
                    let until = visit.now + ttl;
                    let holder = self.row(visit, &key).holder(owner);
                    holder.map(|holder| holder.until = until).is_some()
                });
                Answer::Renewed(renewed.collect())
            }
            Command::Release {
                key,
                owner,
                left,
                done,
            } => Answer::Done(self.release(visit, &key, owner, left, done)),
            Command::Forget(key) => {
                let mark = self.row(visit, &key).done.take();
                if mark.is_some() {
                    visit.unmarked(&key);
                }
                self.tell(visit, &key);
                self.clean(&key);
                Answer::Done(mark.is_some())
            }
            Command::Leave(places) => {
                for (key, owner) in places {
                    self.row(visit, &key)
                        .leave(visit, &key, |place| place.owner != owner);
                    self.tell(visit, &key);
                }
                Answer::Done(true)
            }
            Command::Look {
                keys,
                process,
                beat,
            } => {
                if beat {
                    self.alive.insert(process, visit.now);
                }
                let may_ask = keys.iter().map(|key| {
                    let rows = self.next(visit, key).into_iter();
                    rows.filter(|place| place.process == process)
                        .map(|place| place.owner)
                        .collect()
                });
                let may_ask = may_ask.collect();
                let rows = self.rows.values().flat_map(|row| &row.queue);
                let places = rows.filter(|place| place.process == process);
                let places = places.map(|place| (Arc::clone(&place.key), place.owner));
                Answer::Seen(may_ask, places.collect())
            }
            Command::Farewell(process) => {
                self.alive.remove(&process);
                Answer::Done(true)
            }
            Command::List => {
                let keys: Vec<_> = self.rows.keys().cloned().collect();
                let listed = keys.iter().map(|key| {
                    let row = self.row(visit, key);
                    let holders = row.holders.iter();
                    Listed {
                        key: Arc::clone(key),
                        holders: holders
                            .map(|holder| (holder.asked.owner, holder.asked.mode))
                            .collect(),
                        waiters: Some(row.queue.len()),
                        done: row.done,
                    }
                });
                Answer::Locks(listed.collect())
            }
        }
    }

    fn left(&mut self, visit: &mut Visit) -> Vec<String> {
        let keys: Vec<_> = self.rows.keys().cloned().collect();
        for key in &keys {
            // As who cleans the tables does it.
            self.bury(visit, key);
            self.clean(key);
        }
        let rows = self.rows.iter();
        rows.map(|(key, row)| format!("{key}: {row:?}")).collect()
    }

    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool {
        let key = Arc::from(key);
        self.bury(visit, &key);
        let row = self.row(visit, &key);
        // Who waits is in the way of who only tries.
        let is_held = !row.holders.is_empty() || (row.done.is_none() && !row.queue.is_empty());
        self.clean(&key);
        is_held
    }

    fn holders(&self, now: Duration, key: &str) -> Option<Vec<Holding>> {
        let row = self.rows.get(key).into_iter();
        let holders = row.flat_map(|row| row.holders.iter().filter(|one| one.until > now));
        let holders = holders.map(|holder| Holding {
            token: holder.token,
            process: Some(holder.asked.process),
            owner: holder.asked.owner,
            lasts: Some(holder.until.saturating_sub(now)),
        });
        Some(holders.collect())
    }
}

impl DatabaseServer {
    /// Locks the row, and ends in it what has run out.
    fn row(&mut self, visit: &mut Visit, key: &Arc<str>) -> &mut Row {
        let now = visit.now;
        let row = self.rows.entry(Arc::clone(key)).or_insert_with(|| Row {
            free: now,
            ..Row::default()
        });
        if let Some(mark) = row.done.take_if(|mark| mark.until <= now) {
            row.free = mark.until;
            visit.unmarked(key);
        }
        let before = row.holders.len();
        let last = row.holders.iter().map(|holder| holder.until).max();
        row.holders.retain(|holder| holder.until > now);
        if row.holders.len() < before {
            visit.freed(key);
            row.free = last.unwrap_or(now);
        }
        row
    }

    /// Removes the places of those who are not alive.
    fn bury(&mut self, visit: &mut Visit, key: &Arc<str>) {
        let (now, alive) = (visit.now, self.alive.clone());
        let lives = |place: &Asked| {
            let said = alive.get(&place.process);
            said.is_some_and(|said| *said + ALIVE > now)
        };
        self.row(visit, key).leave(visit, key, lives);
    }

    fn clean(&mut self, key: &Arc<str>) {
        let is_idle =
            |row: &Row| row.holders.is_empty() && row.queue.is_empty() && row.done.is_none();
        if self.rows.get(key).is_some_and(is_idle) {
            self.rows.remove(key);
        }
    }

    fn take(&mut self, visit: &mut Visit, asked: Asked) -> Took {
        let row = self.row(visit, &asked.key);
        if row.done.is_some() {
            return Took::Remembered;
        }
        if let Some(took) = row.has(visit, &asked) {
            return took;
        }
        match row.holders.is_empty() && row.queue.is_empty() {
            true => self.grant(visit, asked),
            false => Took::Busy,
        }
    }

    fn ask(&mut self, visit: &mut Visit, asked: Asked, waits: bool) -> Took {
        let key = Arc::clone(&asked.key);
        self.bury(visit, &key);
        let now = visit.now;
        let row = self.row(visit, &key);
        if row.done.is_some() {
            // Its place is of no use any more.
            row.queue.retain(|place| place.owner != asked.owner);
            return Took::Remembered;
        }
        if let Some(took) = row.has(visit, &asked) {
            return took;
        }
        let place = row.queue.iter().position(|one| one.owner == asked.owner);
        let is_left = row.is_left(now);
        let is_next = match place {
            Some(place) => row.line().count() > place,
            None => row.has_room_behind_all(asked.mode),
        };
        if is_next || is_left {
            let is_shared = asked.mode.is_shared();
            row.queue.retain(|one| one.owner != asked.owner);
            let took = self.grant(visit, asked);
            if let (false, Took::Granted(token)) = (is_next, took) {
                visit.passed(&key, token);
            }
            if is_shared {
                // There may be room beside it.
                self.tell(visit, &key);
            }
            return took;
        }
        if place.is_none() && !waits {
            return Took::Busy;
        }
        if place.is_none() {
            row.queue.push(asked);
        }
        Took::Queued
    }

    fn grant(&mut self, visit: &mut Visit, asked: Asked) -> Took {
        self.last_token += TOKENS_PER_GRANT;
        let token = self.last_token;
        visit.granted(&asked.key, token, asked.owner);
        visit.knows(asked.owner);
        let until = visit.now + asked.ttl;
        let key = Arc::clone(&asked.key);
        self.row(visit, &key).holders.push(Holder {
            asked,
            token,
            until,
        });
        Took::Granted(token)
    }

    fn release(
        &mut self,
        visit: &mut Visit,
        key: &Arc<str>,
        owner: Owner,
        left: bool,
        done: Option<Duration>,
    ) -> bool {
        visit.knows(owner);
        let now = visit.now;
        let row = self.row(visit, key);
        if left {
            row.leave(visit, key, |place| place.owner != owner);
        }
        let mut holders = row.holders.iter();
        let had = holders.position(|holder| holder.asked.owner == owner);
        let had = had.map(|index| row.holders.remove(index));
        if let Some(holder) = &had {
            row.free = now;
            visit.freed(key);
            match done {
                Some(time) => {
                    let until = now + time;
                    row.done = Some(Mark { owner, until });
                    visit.marked(key, holder.token, time);
                }
                None => visit.given_back(key, holder.token),
            }
        }
        // It may have been marked by the same command, sent before.
        let marked = done.is_some() && row.done.is_some_and(|mark| mark.owner == owner);
        self.tell(visit, key);
        self.clean(key);
        had.is_some() || marked
    }

    /// Who has cause to ask: for whom there is room; and all, once it has been done, or was
    /// left for long.
    fn next(&mut self, visit: &mut Visit, key: &Arc<str>) -> Vec<Asked> {
        self.bury(visit, key);
        let now = visit.now;
        let row = self.row(visit, key);
        let goes_to_all = row.done.is_some() || row.is_left(now);
        let next = match goes_to_all {
            true => row.queue.clone(),
            false => row.line().cloned().collect(),
        };
        self.clean(key);
        next
    }

    /// Their processes are told. A lock that is had by one of them is not granted by that.
    fn tell(&mut self, visit: &mut Visit, key: &Arc<str>) {
        for place in self.next(visit, key) {
            let pushed = Pushed {
                key: Arc::clone(key),
                owner: Some(place.owner),
            };
            visit.tell(place.process, pushed);
        }
    }
}

impl Row {
    fn holder(&mut self, owner: Owner) -> Option<&mut Holder> {
        self.holders
            .iter_mut()
            .find(|holder| holder.asked.owner == owner)
    }

    /// It is free, and whoever is first has not asked for long.
    fn is_left(&self, now: Duration) -> bool {
        self.holders.is_empty() && self.free + GOES_TO_ANYBODY <= now
    }

    /// Only these places stay. Nobody is in the way of others any more, if there are none.
    fn leave(&mut self, visit: &mut Visit, key: &str, stays: impl FnMut(&Asked) -> bool) {
        let before = self.queue.len();
        self.queue.retain(stays);
        if self.queue.len() < before && self.queue.is_empty() && self.holders.is_empty() {
            visit.freed(key);
        }
    }

    /// Who has it already is told so, from now on.
    fn has(&mut self, visit: &mut Visit, asked: &Asked) -> Option<Took> {
        let holder = self.holder(asked.owner)?;
        holder.until = visit.now + asked.ttl;
        visit.knows(asked.owner);
        Some(Took::Granted(holder.token))
    }

    /// The first in the queue for whom there is room, each beside those before it.
    fn line(&self) -> impl Iterator<Item = &Asked> {
        let mut held = self.modes();
        self.queue.iter().take_while(move |place| {
            let has_room = fits(place.mode, held.iter().copied());
            held.push(place.mode);
            has_room
        })
    }

    fn has_room_behind_all(&self, mode: Mode) -> bool {
        let waiting = self.queue.iter().map(|place| place.mode);
        let all = self.modes().into_iter().chain(waiting);
        self.line().count() == self.queue.len() && fits(mode, all)
    }

    fn modes(&self) -> Vec<Mode> {
        let holders = self.holders.iter();
        holders.map(|holder| holder.asked.mode).collect()
    }
}
