//! The server: sessions, and the nodes of each key in the order they were made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner};
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::{Holder, Pushed, Service, Visit};
use crate::world::ProcessId;

/// A session of which nothing was heard for so long has ended.
pub(super) const SESSION: Duration = Duration::from_secs(4);

#[derive(Clone, Default)]
pub(crate) struct SessionServer {
    sessions: BTreeMap<u64, Session>,
    keys: BTreeMap<Arc<str>, BTreeMap<u64, Node>>,
    /// Of sessions, and of nodes.
    last: u64,
}

#[derive(Clone, Debug)]
struct Session {
    heard: Duration,
    /// The connection that it is on: what comes over one before it is refused.
    connection: u64,
}

#[derive(Clone, Debug)]
struct Node {
    owner: Owner,
    session: u64,
    process: ProcessId,
    mode: Mode,
    /// Who watches it.
    watched_by: BTreeSet<ProcessId>,
}

/// A command in a session, over its connection.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) process: ProcessId,
    /// None before it is opened.
    pub(crate) session: Option<u64>,
    pub(crate) connection: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Goes on with the session over this connection, or begins one.
    Attach,
    Beat,
    Take {
        key: Arc<str>,
        owner: Owner,
        mode: Mode,
        waits: bool,
    },
    IsHeld(Arc<str>, Owner),
    Delete(Arc<str>, Owner),
    /// Whether these nodes are there.
    Look(Vec<String>),
    List,
    Close,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Session(u64),
    /// The session has ended, or goes on over another connection.
    Refused {
        has_ended: bool,
    },
    Granted(u64),
    Busy,
    /// Behind this node.
    Behind(u64),
    Done(bool),
    Here(Vec<bool>),
    Locks(Vec<(Arc<str>, Mode, Vec<Owner>, usize)>),
}

/// How a node is called.
pub(super) fn node_name(key: &str, number: u64) -> String {
    format!("{key}#{number}")
}

impl Service for SessionServer {
    type Command = Command;
    type Answer = Answer;

    fn run(&mut self, visit: &mut Visit, command: Command) -> Answer {
        self.expire(visit);
        if let What::Attach = command.what {
            return self.attach(visit, &command);
        }
        let session = command
            .session
            .and_then(|number| self.sessions.get_mut(&number));
        let Some(session) = session else {
            return Answer::Refused { has_ended: true };
        };
        if session.connection != command.connection {
            return Answer::Refused { has_ended: false };
        }
        session.heard = visit.now;
        let number = command.session.unwrap_or_default();
        match command.what {
            What::Attach | What::Beat => Answer::Done(true),
            What::Take {
                key,
                owner,
                mode,
                waits,
            } => {
                let node = Node {
                    owner,
                    session: number,
                    process: command.process,
                    mode,
                    watched_by: BTreeSet::new(),
                };
                self.take(visit, key, node, waits, command.process)
            }
            What::IsHeld(key, owner) => Answer::Done(
                self.find(&key, owner)
                    .is_some_and(|node| self.before(&key, node).is_none()),
            ),
            What::Delete(key, owner) => {
                let found = self.find(&key, owner);
                if let Some(number) = found {
                    self.delete(visit, &key, number);
                }
                Answer::Done(found.is_some())
            }
            What::Look(names) => {
                let is_here = |name: &String| {
                    let (key, number) = name.rsplit_once('#')?;
                    self.keys.get(key)?.get(&number.parse().ok()?).map(drop)
                };
                Answer::Here(names.iter().map(|name| is_here(name).is_some()).collect())
            }
            What::List => Answer::Locks(self.list()),
            What::Close => {
                self.end(visit, number);
                Answer::Done(true)
            }
        }
    }

    fn left(&mut self, visit: &mut Visit) -> Vec<String> {
        self.expire(visit);
        let keys = self.keys.iter();
        keys.map(|(key, nodes)| format!("{key}: {nodes:?}"))
            .collect()
    }

    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool {
        self.expire(visit);
        self.keys.contains_key(key)
    }

    fn holders(&self, now: Duration, key: &str) -> Option<Vec<Holder>> {
        let nodes = self.keys.get(key).into_iter().flatten();
        let lasts = |node: &Node| {
            let session = self.sessions.get(&node.session);
            session.is_some_and(|session| session.heard + SESSION > now)
        };
        let holds =
            nodes.filter(|&(number, node)| lasts(node) && self.before(key, *number).is_none());
        let holders = holds.map(|(number, node)| Holder {
            token: number * TOKENS_PER_GRANT,
            process: Some(node.process),
            owner: node.owner,
            lasts: None,
        });
        Some(holders.collect())
    }
}

impl SessionServer {
    fn attach(&mut self, visit: &mut Visit, command: &Command) -> Answer {
        let known = command
            .session
            .filter(|number| self.sessions.contains_key(number));
        let number = match (known, command.session) {
            (Some(number), _) => number,
            // It was told that it has one, and that has ended.
            (None, Some(_)) => return Answer::Refused { has_ended: true },
            (None, None) => {
                self.last += 1;
                self.last
            }
        };
        let session = Session {
            heard: visit.now,
            connection: command.connection,
        };
        self.sessions.insert(number, session);
        Answer::Session(number)
    }

    fn take(
        &mut self,
        visit: &mut Visit,
        key: Arc<str>,
        node: Node,
        waits: bool,
        process: ProcessId,
    ) -> Answer {
        let number = match self.find(&key, node.owner) {
            Some(number) => number,
            None => {
                let last = self.last + 1;
                if !waits && self.excluded(&key, node.mode, last).is_some() {
                    return Answer::Busy;
                }
                self.last = last;
                self.keys
                    .entry(Arc::clone(&key))
                    .or_default()
                    .insert(last, node);
                last
            }
        };
        match self.before(&key, number) {
            None => {
                let token = number * TOKENS_PER_GRANT;
                visit.granted(&key, token);
                Answer::Granted(token)
            }
            Some(before) => {
                let nodes = self.keys.get_mut(&key);
                if let Some(before) = nodes.and_then(|nodes| nodes.get_mut(&before)) {
                    before.watched_by.insert(process);
                }
                Answer::Behind(before)
            }
        }
    }

    fn find(&self, key: &str, owner: Owner) -> Option<u64> {
        let mut nodes = self.keys.get(key)?.iter();
        nodes
            .find(|(_, node)| node.owner == owner)
            .map(|(number, _)| *number)
    }

    /// What keeps this node from its lock.
    fn before(&self, key: &str, number: u64) -> Option<u64> {
        let mode = self.keys.get(key)?.get(&number)?.mode;
        self.excluded(key, mode, number)
    }

    fn excluded(&self, key: &str, mode: Mode, number: u64) -> Option<u64> {
        let mut before = self.keys.get(key)?.range(..number).rev();
        let excludes = |node: &Node| mode != Mode::Read || node.mode != Mode::Read;
        before
            .find(|(_, node)| excludes(node))
            .map(|(number, _)| *number)
    }

    fn delete(&mut self, visit: &mut Visit, key: &Arc<str>, number: u64) {
        let Some(nodes) = self.keys.get_mut(key) else {
            return;
        };
        let gone = nodes.remove(&number);
        if nodes.is_empty() {
            self.keys.remove(key);
            visit.freed(key);
        }
        for process in gone.into_iter().flat_map(|node| node.watched_by) {
            let pushed = Pushed {
                key: node_name(key, number).into(),
                owner: None,
            };
            visit.tell(process, pushed);
        }
    }

    fn end(&mut self, visit: &mut Visit, session: u64) {
        self.sessions.remove(&session);
        let nodes = self.keys.iter().flat_map(|(key, nodes)| {
            let of_it = nodes.iter().filter(|(_, node)| node.session == session);
            of_it.map(|(number, _)| (Arc::clone(key), *number))
        });
        for (key, number) in nodes.collect::<Vec<_>>() {
            self.delete(visit, &key, number);
        }
    }

    fn expire(&mut self, visit: &mut Visit) {
        let over = self
            .sessions
            .iter()
            .filter(|(_, session)| session.heard + SESSION <= visit.now);
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.end(visit, number));
    }

    fn list(&self) -> Vec<(Arc<str>, Mode, Vec<Owner>, usize)> {
        let locks = self.keys.iter().map(|(key, nodes)| {
            let holds = |number: &&u64| self.before(key, **number).is_none();
            let holders: Vec<_> = nodes
                .keys()
                .filter(holds)
                .filter_map(|number| nodes.get(number))
                .collect();
            let mode = holders.first().map_or(Mode::Write, |node| node.mode);
            let waiters = nodes.len() - holders.len();
            let owners = holders.iter().map(|node| node.owner).collect();
            (Arc::clone(key), mode, owners, waiters)
        });
        locks.collect()
    }
}
