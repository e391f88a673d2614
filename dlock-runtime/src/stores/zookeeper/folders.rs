//! One watch of a lock's folder for all waiters of this process that wait for one of several nodes.
//!
//! A waiter for a permit, or behind one, may get the lock when any of the nodes ahead of it goes.
//! And when one of those gets the lock, nothing is written that a watch could report. So the whole
//! folder is watched, once for the process, however many of its tasks wait. Each node that comes or
//! goes there costs one list, which wakes the waiters that hold the lock according to it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::names;
use super::nodes::Node;
use super::queue::holders;
use super::session::Session;
use crate::engine::time::Backoff;
use crate::store::{Context, Next};
use crate::sync::Mutex;

/// The pauses between lists that fail: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Folders {
    context: Context,
    /// How often a folder is listed even without a notification, since one may be lost.
    between_looks: Duration,
    all: Mutex<HashMap<String, Folder>>,
}

struct Folder {
    session: Arc<Session>,
    /// The waiters, by the names of their nodes.
    members: HashMap<String, Arc<Notify>>,
    /// The nodes that hold the lock, according to the last list.
    holding: HashSet<String>,
    /// The nodes that tell others to leave, according to the last list.
    outs: Vec<String>,
}

/// A waiter, until this is dropped.
pub(super) struct Turn {
    folders: Arc<Folders>,
    session: Arc<Session>,
    folder: String,
    name: String,
    told: Arc<Notify>,
}

impl Folders {
    pub(super) fn new(context: Context, between_looks: Duration) -> Arc<Self> {
        Arc::new(Self {
            context,
            between_looks,
            all: Mutex::default(),
        })
    }

    /// From here on, the waiter is woken when it has cause to ask. Nothing is missed. If its node
    /// was there before the last list, that list shows whether it holds the lock or is to leave,
    /// and the watch that was set with the list reports later changes. If it was not, its own
    /// coming is such a change.
    pub(super) fn enter(self: &Arc<Self>, node: &Node) -> Turn {
        let told = Arc::new(Notify::new());
        let mut all = self.all.lock();
        let is_it = |folder: &&mut Folder| Arc::ptr_eq(&folder.session, &node.session);
        if let Some(folder) = all.get_mut(&node.folder).filter(is_it) {
            if folder.has_cause_to_ask(&node.name) {
                told.notify_one();
            }
            folder.members.insert(node.name.clone(), Arc::clone(&told));
        } else {
            let members = HashMap::from([(node.name.clone(), Arc::clone(&told))]);
            let folder = Folder {
                session: Arc::clone(&node.session),
                members,
                holding: HashSet::new(),
                outs: Vec::new(),
            };
            all.insert(node.folder.clone(), folder);
            let (session, folder) = (Arc::clone(&node.session), node.folder.clone());
            let keep = Arc::clone(self).keep(session, folder);
            self.context.spawn(keep);
        }
        drop(all);
        Turn {
            folders: Arc::clone(self),
            session: Arc::clone(&node.session),
            folder: node.folder.clone(),
            name: node.name.clone(),
            told,
        }
    }

    /// Watches a folder for as long as somebody waits there. Ends at the next change or look after
    /// that.
    async fn keep(self: Arc<Self>, session: Arc<Session>, path: String) {
        let time = &self.context.time;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        while let Some(asking) = self.members(&session, &path) {
            let deadline = time.after(self.context.request_timeout);
            let watcher = match session.list_and_watch(&path, deadline).await {
                Ok(Some((names, watcher))) => {
                    self.listed(&session, &path, &names, &asking);
                    Some(watcher)
                }
                Ok(None) => {
                    self.listed(&session, &path, &[], &asking);
                    None
                }
                Err(failure) => {
                    // If the list is refused, each waiter asks and is told why. An outage they
                    // notice by themselves.
                    if failure.next == Next::Stop {
                        self.listed(&session, &path, &[], &asking);
                    }
                    let _ = session.outlasts(backoff.wait(time)).await;
                    continue;
                }
            };
            backoff.reset();
            let told = async {
                match watcher {
                    Some(watcher) => drop(session.watch_event(watcher).await),
                    None => backoff.wait(time).await,
                }
            };
            let look = time.after(self.between_looks);
            let told = time.bound(look, told);
            tokio::select! {
                _ = told => {}
                () = session.ends() => {}
            }
        }
    }

    /// The nodes of the waiters. `None`: nobody waits any more, and the folder is forgotten.
    fn members(&self, session: &Arc<Session>, path: &str) -> Option<HashSet<String>> {
        let mut all = self.all.lock();
        let folder = all.get(path);
        // The folder may be watched over a newer session by now.
        let folder = folder.filter(|folder| Arc::ptr_eq(&folder.session, session))?;
        if folder.members.is_empty() || session.is_over() {
            all.remove(path);
            return None;
        }
        Some(folder.members.keys().cloned().collect())
    }

    /// Wakes the waiters that hold the lock according to a list, those that are to leave, and those
    /// that waited when the list was asked for, but are missing in it.
    fn listed(
        &self,
        session: &Arc<Session>,
        path: &str,
        names: &[String],
        asking: &HashSet<String>,
    ) {
        let holding = holders(names).0.into_iter().map(|member| member.name);
        let holding: HashSet<_> = holding.collect();
        let there: HashSet<_> = names.iter().collect();
        let outs = names.iter().filter(|name| name.starts_with(names::OUT));
        let mut all = self.all.lock();
        let folder = all.get_mut(path);
        let Some(folder) = folder.filter(|folder| Arc::ptr_eq(&folder.session, session)) else {
            return;
        };
        folder.holding = holding;
        folder.outs = outs.cloned().collect();
        for (name, told) in &folder.members {
            let is_gone = asking.contains(name) && !there.contains(name);
            if is_gone || folder.has_cause_to_ask(name) {
                told.notify_one();
            }
        }
    }
}

impl Folder {
    /// Whether the node of this name holds the lock, or is to leave.
    fn has_cause_to_ask(&self, name: &str) -> bool {
        let is_out = || self.outs.iter().any(|out| names::is_out(out, name));
        self.holding.contains(name) || is_out()
    }
}

impl Turn {
    /// Waits until the waiter has cause to ask.
    pub(super) async fn comes(&self) {
        self.told.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.folders.all.lock();
        let folder = all.get_mut(&self.folder);
        let is_it = |folder: &&mut Folder| Arc::ptr_eq(&folder.session, &self.session);
        if let Some(folder) = folder.filter(is_it) {
            folder.members.remove(&self.name);
        }
    }
}
