//! One watch of a lock's folder for all in this process who wait there for several.
//!
//! Who waits for a permit, or for somebody who does, may get in when any of those before
//! it goes, and nothing is written when one of these is let in. So the whole folder is
//! watched, once for a process, however many wait. Whatever comes or goes there costs one
//! list, and wakes those who hold the lock by it.

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

/// Between lists that fail.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Folders {
    context: Context,
    /// So often a folder is listed although nothing was told: a notification may be lost.
    between_looks: Duration,
    all: Mutex<HashMap<String, Folder>>,
}

struct Folder {
    session: Arc<Session>,
    /// By the names of their nodes.
    members: HashMap<String, Arc<Notify>>,
    /// Those who hold the lock, by the last list.
    holding: HashSet<String>,
    /// What tells others to leave, by that.
    outs: Vec<String>,
}

/// One who waits, until this is dropped.
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

    /// From here on it is told when it has cause to ask. If it was there before the last list,
    /// that says whether it holds the lock or is to leave, and what has changed since is told by the watch
    /// that was set then; if it was not, its own coming is.
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

    /// Watches a folder for as long as somebody waits there, and until the next change or
    /// look.
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
                    // Each finds out what is refused. An outage they see by themselves.
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
                    Some(watcher) => session.is_told(watcher).await,
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

    /// Who waits there. `None`: nobody does any more, and the folder is forgotten.
    fn members(&self, session: &Arc<Session>, path: &str) -> Option<HashSet<String>> {
        let mut all = self.all.lock();
        let folder = all.get(path);
        // Another session has taken its place.
        let folder = folder.filter(|folder| Arc::ptr_eq(&folder.session, session))?;
        if folder.members.is_empty() || session.is_over() {
            all.remove(path);
            return None;
        }
        Some(folder.members.keys().cloned().collect())
    }

    /// Tells those who hold the lock by a list; those who are not in it although they
    /// waited when it was asked for; and those who are to leave.
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
    /// Waits until it has cause to ask.
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
