//! The server: sessions, and the nodes of each key in the order they were made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::{Mode, Owner};
use dlock_runtime::TOKENS_PER_GRANT;

use crate::network::{Holder, Pushed, Service, Visit};
use crate::stores::listing::{Listed, Mark, fits};
use crate::world::ProcessId;

/// A session of which nothing was heard for so long has ended.
pub(super) const SESSION: Duration = Duration::from_secs(4);

#[derive(Clone, Default)]
pub(crate) struct SessionServer {
    sessions: BTreeMap<u64, Session>,
    keys: BTreeMap<Arc<str>, BTreeMap<u64, Node>>,
    /// Whose nodes wait for room beside several others.
    rooms: BTreeMap<Arc<str>, BTreeMap<u64, ProcessId>>,
    /// Of no session.
    marks: BTreeMap<Arc<str>, Mark>,
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
    /// And for how long is remembered that the body has been done.
    Delete(Arc<str>, Owner, Option<Duration>),
    Forget(Arc<str>),
    /// Whether these are still in the way of those who wait for them.
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
    /// Behind what is called so.
    Behind(Arc<str>),
    /// Its body has been done.
    Remembered,
    Done(bool),
    Here(Vec<bool>),
    Locks(Vec<Listed>),
}

/// What keeps a node from its lock.
enum Ahead {
    /// This one.
    Node(u64),
    /// As many as there are.
    Several,
}

/// How a node is called that is waited for.
fn node_name(key: &str, number: u64) -> Arc<str> {
    format!("{key}#{number}").into()
}

/// How that is called for which the node of this number waits.
fn room_name(key: &str, number: u64) -> Arc<str> {
    format!("{key}~{number}").into()
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
            What::Delete(key, owner, done) => {
                let Some(number) = self.find(&key, owner) else {
                    let marked = self.marks.get(&key).is_some_and(|mark| mark.owner == owner);
                    // By the same command, sent before.
                    return Answer::Done(done.is_some() && marked);
                };
                if self.before(&key, number).is_none() {
                    let token = number * TOKENS_PER_GRANT;
                    match done {
                        Some(time) => {
                            let until = visit.now + time;
                            self.marks.insert(Arc::clone(&key), Mark { owner, until });
                            visit.marked(&key, token, time);
                            visit.freed(&key);
                        }
                        None => visit.given_back(&key, token),
                    }
                }
                self.delete(visit, &key, number);
                Answer::Done(true)
            }
            What::Forget(key) => {
                let mark = self.marks.remove(&key);
                if mark.is_some() {
                    visit.unmarked(&key);
                }
                Answer::Done(mark.is_some())
            }
            What::Look(names) => {
                let here = names.iter().map(|name| self.is_in_the_way(name));
                Answer::Here(here.collect())
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
        let nodes = keys.map(|(key, nodes)| format!("{key}: {nodes:?}"));
        let marks = self.marks.iter();
        let marks = marks.map(|(key, mark)| format!("{key}: {mark:?}"));
        nodes.chain(marks).collect()
    }

    fn is_held(&mut self, visit: &mut Visit, key: &str) -> bool {
        self.expire(visit);
        self.keys.contains_key(key) && !self.marks.contains_key(key)
    }

    fn holders(&self, now: Duration, key: &str) -> Option<Vec<Holder>> {
        let marked = self.marks.get(key).is_some_and(|mark| mark.until > now);
        let nodes = self.keys.get(key).filter(|_| !marked);
        let nodes = nodes.into_iter().flatten();
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
        let (owner, known) = (node.owner, self.find(&key, node.owner));
        if self.marks.contains_key(&key) {
            // Its place is of no use any more.
            known.inspect(|number| self.delete(visit, &key, *number));
            return Answer::Remembered;
        }
        let number = match known {
            Some(number) => number,
            None => {
                let last = self.last + 1;
                if !waits && self.ahead(&key, node.mode, last).is_some() {
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
                visit.granted(&key, token, owner);
                Answer::Granted(token)
            }
            Some(Ahead::Node(before)) => {
                let nodes = self.keys.get_mut(&key);
                if let Some(before) = nodes.and_then(|nodes| nodes.get_mut(&before)) {
                    before.watched_by.insert(process);
                }
                Answer::Behind(node_name(&key, before))
            }
            Some(Ahead::Several) => {
                let rooms = self.rooms.entry(Arc::clone(&key)).or_default();
                rooms.insert(number, process);
                Answer::Behind(room_name(&key, number))
            }
        }
    }

    fn find(&self, key: &str, owner: Owner) -> Option<u64> {
        let mut nodes = self.keys.get(key)?.iter();
        nodes
            .find(|(_, node)| node.owner == owner)
            .map(|(number, _)| *number)
    }

    fn before(&self, key: &str, number: u64) -> Option<Ahead> {
        let mode = self.keys.get(key)?.get(&number)?.mode;
        self.ahead(key, mode, number)
    }

    /// What is in the way of one who asks so, behind all nodes below this number. Each has
    /// the lock who fits beside all before it, if they have it too.
    fn ahead(&self, key: &str, mode: Mode, number: u64) -> Option<Ahead> {
        let before: Vec<_> = self.keys.get(key)?.range(..number).collect();
        let modes = || before.iter().map(|(_, node)| node.mode);
        let holds = |place: usize, mode: Mode| fits(mode, modes().take(place));
        let all_hold = modes().enumerate().all(|(place, mode)| holds(place, mode));
        if all_hold && holds(before.len(), mode) {
            return None;
        }
        let is_permit = |mode: Mode| matches!(mode, Mode::Permits(_));
        let mut before = before.iter().rev();
        let one = match mode {
            Mode::Read if !modes().any(is_permit) => {
                before.find(|(_, node)| !node.mode.is_shared())
            }
            mode if !mode.is_shared() => before.next(),
            _ => None,
        };
        Some(one.map_or(Ahead::Several, |(number, _)| Ahead::Node(**number)))
    }

    fn is_in_the_way(&self, name: &str) -> bool {
        let waits_for = |separator| {
            let (key, number) = name.rsplit_once(separator)?;
            Some((key, number.parse().ok()?))
        };
        let found = match (waits_for('#'), waits_for('~')) {
            (Some((key, number)), _) => {
                let nodes = self.keys.get(key);
                Some(key).filter(|_| nodes.is_some_and(|nodes| nodes.contains_key(&number)))
            }
            (_, Some((key, number))) => Some(key).filter(|_| self.before(key, number).is_some()),
            _ => None,
        };
        // Who waits for what was done is to be told.
        found.is_some_and(|key| !self.marks.contains_key(key))
    }

    fn delete(&mut self, visit: &mut Visit, key: &Arc<str>, number: u64) {
        let Some(nodes) = self.keys.get_mut(key) else {
            return;
        };
        let gone = nodes.remove(&number);
        let watched = gone.into_iter().flat_map(|node| node.watched_by);
        let mut told: Vec<_> = watched
            .map(|process| (process, node_name(key, number)))
            .collect();
        if self.marks.contains_key(key) {
            for (number, node) in nodes.iter_mut() {
                let watched = std::mem::take(&mut node.watched_by).into_iter();
                told.extend(watched.map(|process| (process, node_name(key, *number))));
            }
        }
        if nodes.is_empty() {
            self.keys.remove(key);
            visit.freed(key);
        }
        let rooms = self.rooms.remove(key).into_iter().flatten();
        let (waits, has_room): (BTreeMap<_, _>, BTreeMap<_, _>) =
            rooms.partition(|(number, _)| self.is_in_the_way(&room_name(key, *number)));
        if !waits.is_empty() {
            self.rooms.insert(Arc::clone(key), waits);
        }
        let has_room = has_room.into_iter();
        told.extend(has_room.map(|(number, process)| (process, room_name(key, number))));
        for (process, name) in told {
            let pushed = Pushed {
                key: name,
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
        let now = visit.now;
        self.marks.retain(|key, mark| {
            let lasts = mark.until > now;
            if !lasts {
                visit.unmarked(key);
            }
            lasts
        });
        let over = self
            .sessions
            .iter()
            .filter(|(_, session)| session.heard + SESSION <= visit.now);
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.end(visit, number));
    }

    fn list(&self) -> Vec<Listed> {
        let marked = self.marks.iter().map(|(key, mark)| Listed {
            key: Arc::clone(key),
            holders: Vec::new(),
            waiters: Some(0),
            done: Some(*mark),
        });
        let held = self.keys.iter().map(|(key, nodes)| {
            let holds = |number: &u64| self.before(key, *number).is_none();
            let holders = nodes.iter().filter(|(number, _)| holds(number));
            let holders: Vec<_> = holders.map(|(_, node)| (node.owner, node.mode)).collect();
            Listed {
                key: Arc::clone(key),
                waiters: Some(nodes.len() - holders.len()),
                holders,
                done: None,
            }
        });
        let held = held.filter(|lock| !self.marks.contains_key(&lock.key));
        marked.chain(held).collect()
    }
}
