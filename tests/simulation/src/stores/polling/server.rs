//! The server: a row for each lock, and a counter of tokens that outlives it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner};
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::{Holder, Service, Visit};
use crate::stores::listing::{Listed, Mark};
use crate::world::ProcessId;

#[derive(Clone, Default)]
pub(crate) struct PollingServer {
    rows: BTreeMap<Arc<str>, Row>,
    last_token: u64,
}

#[derive(Clone, Debug)]
struct Row {
    owner: Owner,
    process: ProcessId,
    token: u64,
    until: Duration,
    /// Its body has been done: the row is the mark.
    done: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Take(Arc<str>, Owner, ProcessId, Duration),
    Renew(Arc<str>, Owner, Duration),
    /// And for how long is remembered that the body has been done.
    Release(Arc<str>, Owner, Option<Duration>),
    Forget(Arc<str>),
    Look(Vec<Arc<str>>),
    List,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted(u64),
    Held,
    /// Its body has been done.
    Remembered,
    Done(bool),
    /// Who holds each.
    Holders(Vec<Option<Owner>>),
    Locks(Vec<Listed>),
}

impl Service for PollingServer {
    type Command = Command;
    type Answer = Answer;

    fn run(&mut self, visit: &mut Visit, command: Command) -> Answer {
        self.expire(visit);
        match command {
            Command::Take(key, owner, process, ttl) => match self.rows.get_mut(&key) {
                Some(row) if row.done => Answer::Remembered,
                Some(row) if row.owner == owner => {
                    row.until = visit.now + ttl;
                    Answer::Granted(row.token)
                }
                Some(_) => Answer::Held,
                None => {
                    self.last_token += TOKENS_PER_GRANT;
                    let (token, until) = (self.last_token, visit.now + ttl);
                    visit.granted(&key, token, owner);
                    visit.knows(owner);
                    self.rows.insert(
                        key,
                        Row {
                            owner,
                            process,
                            token,
                            until,
                            done: false,
                        },
                    );
                    Answer::Granted(token)
                }
            },
            Command::Renew(key, owner, ttl) => {
                let row = self.rows.get_mut(&key);
                let row = row.filter(|row| row.owner == owner && !row.done);
                let until = visit.now + ttl;
                let is_held = row.map(|row| row.until = until).is_some();
                if !is_held {
                    visit.knows(owner);
                }
                Answer::Done(is_held)
            }
            Command::Release(key, owner, done) => {
                visit.knows(owner);
                let row = self.rows.get_mut(&key).filter(|row| row.owner == owner);
                let Some(row) = row else {
                    return Answer::Done(false);
                };
                match done {
                    // Its own mark, by the same command, sent before.
                    _ if row.done => return Answer::Done(done.is_some()),
                    Some(time) => {
                        (row.done, row.until) = (true, visit.now + time);
                        visit.marked(&key, row.token, time);
                    }
                    None => {
                        visit.given_back(&key, row.token);
                        self.rows.remove(&key);
                    }
                }
                visit.freed(&key);
                Answer::Done(true)
            }
            Command::Forget(key) => {
                let is_mark = self.rows.get(&key).is_some_and(|row| row.done);
                if is_mark {
                    self.rows.remove(&key);
                    visit.unmarked(&key);
                }
                Answer::Done(is_mark)
            }
            Command::Look(keys) => {
                let rows = keys.iter().map(|key| self.held(key));
                Answer::Holders(rows.map(|row| row.map(|row| row.owner)).collect())
            }
            Command::List => {
                let locks = self.rows.iter().map(|(key, row)| {
                    let Row { owner, until, .. } = *row;
                    Listed {
                        key: Arc::clone(key),
                        holders: vec![(owner, Mode::Write)],
                        waiters: None,
                        done: row.done.then_some(Mark { owner, until }),
                    }
                });
                Answer::Locks(locks.collect())
            }
        }
    }

    fn left(&mut self, visit: &mut Visit) -> Vec<String> {
        self.expire(visit);
        self.rows
            .iter()
            .map(|(key, row)| format!("{key}: {row:?}"))
            .collect()
    }

    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool {
        self.expire(visit);
        self.held(key).is_some()
    }

    fn holders(&self, now: Duration, key: &str) -> Option<Vec<Holder>> {
        let held = self.held(key).filter(|row| row.until > now);
        let holders = held.map(|row| Holder {
            token: row.token,
            process: Some(row.process),
            owner: row.owner,
            lasts: Some(row.until.saturating_sub(now)),
        });
        Some(holders.into_iter().collect())
    }
}

impl PollingServer {
    fn held(&self, key: &str) -> Option<&Row> {
        self.rows.get(key).filter(|row| !row.done)
    }

    fn expire(&mut self, visit: &mut Visit) {
        let now = visit.now;
        self.rows.retain(|key, row| {
            let lasts = row.until > now;
            match row.done {
                _ if lasts => {}
                true => visit.unmarked(key),
                false => visit.freed(key),
            }
            lasts
        });
    }
}
