//! The server: a row for each lock, and a counter of tokens that outlives it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::Owner;
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::{Holder, Service, Visit};
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
}

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Take(Arc<str>, Owner, ProcessId, Duration),
    Renew(Arc<str>, Owner, Duration),
    Release(Arc<str>, Owner),
    Look(Vec<Arc<str>>),
    List,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted(u64),
    Held,
    Done(bool),
    /// Who holds each.
    Holders(Vec<Option<Owner>>),
    Locks(Vec<(Arc<str>, Owner)>),
}

impl Service for PollingServer {
    type Command = Command;
    type Answer = Answer;

    fn run(&mut self, visit: &mut Visit, command: Command) -> Answer {
        self.expire(visit);
        match command {
            Command::Take(key, owner, process, ttl) => match self.rows.get_mut(&key) {
                Some(row) if row.owner == owner => {
                    row.until = visit.now + ttl;
                    Answer::Granted(row.token)
                }
                Some(_) => Answer::Held,
                None => {
                    self.last_token += TOKENS_PER_GRANT;
                    let (token, until) = (self.last_token, visit.now + ttl);
                    visit.granted(&key, token);
                    visit.knows(owner);
                    self.rows.insert(
                        key,
                        Row {
                            owner,
                            process,
                            token,
                            until,
                        },
                    );
                    Answer::Granted(token)
                }
            },
            Command::Renew(key, owner, ttl) => {
                let row = self.rows.get_mut(&key).filter(|row| row.owner == owner);
                let until = visit.now + ttl;
                let is_held = row.map(|row| row.until = until).is_some();
                if !is_held {
                    visit.knows(owner);
                }
                Answer::Done(is_held)
            }
            Command::Release(key, owner) => {
                visit.knows(owner);
                let held = self.rows.get(&key).is_some_and(|row| row.owner == owner);
                if held {
                    visit.freed(&key);
                    self.rows.remove(&key);
                }
                Answer::Done(held)
            }
            Command::Look(keys) => {
                let rows = keys.iter().map(|key| self.rows.get(key));
                Answer::Holders(rows.map(|row| row.map(|row| row.owner)).collect())
            }
            Command::List => {
                let rows = self.rows.iter();
                Answer::Locks(
                    rows.map(|(key, row)| (Arc::clone(key), row.owner))
                        .collect(),
                )
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
        self.rows.contains_key(key)
    }

    fn holders(&self, now: Duration, key: &str) -> Option<Vec<Holder>> {
        let held = self.rows.get(key).filter(|row| row.until > now);
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
    fn expire(&mut self, visit: &mut Visit) {
        let now = visit.now;
        self.rows.retain(|key, row| {
            let lasts = row.until > now;
            if !lasts {
                visit.freed(key);
            }
            lasts
        });
    }
}
