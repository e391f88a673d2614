//! The node of a request: made in the lock's folder, found there again, watched,
//! and deleted.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{OptionFuture, join};
use zookeeper_client::{CreateMode, Error, Stat};

use super::ensemble::Ensemble;
use super::errors::Failed;
use super::names;
use super::session::Session;
use crate::backend::{Owner, Request};
use crate::deadline::Deadline;

/// The node of a request, or one that comes yet.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) session: Arc<Session>,
    /// The lock's.
    pub(super) folder: String,
    /// Its name in the folder, empty if it was not heard of.
    pub(super) name: String,
    /// The transaction that made it.
    pub(super) czxid: i64,
}

/// The nodes of a folder, as seen by what was sent then.
pub(super) struct Listed {
    pub(super) names: Vec<String>,
    pub(super) sent_at: Instant,
}

impl Node {
    pub(super) fn path(&self) -> String {
        names::join(&self.folder, &self.name)
    }

    pub(super) fn is_heard_of(&self) -> bool {
        !self.name.is_empty()
    }
}

impl Ensemble {
    /// Makes the request's node, and lists the folder behind it. What may be there
    /// is in `node` from before it is sent.
    pub(super) async fn make(
        &self,
        request: &Request,
        deadline: Deadline,
        node: &mut Option<Node>,
    ) -> Result<Listed, Failed> {
        let session = self.session(deadline).await?;
        let client = &session.client;
        let folder = self.folder(&request.key);
        self.used_up.check(&session, &folder, deadline).await?;
        let start = names::request(request.owner, self.settings.recipe, request.mode);
        let path = names::join(&folder, &start);
        let data = request.owner.to_string();
        let options = CreateMode::EphemeralSequential.with_acls(self.settings.acls());
        let (created, listed, sent_at) = loop {
            session.connected(deadline).await?;
            let sent_at = self.context.time.now();
            *node = Some(Node {
                session: Arc::clone(&session),
                folder: folder.clone(),
                name: String::new(),
                czxid: 0,
            });
            // Both are sent at once, and done in this order: the one round trip.
            let created = client.create(&path, data.as_bytes(), &options);
            let listed = client.list_children(&folder);
            let (created, listed) = session.bound(deadline, join(created, listed)).await?;
            match created.map_err(|error| session.failed(error)) {
                Ok(created) => break (created, listed, sent_at),
                Err(Failed::Refused(error)) => {
                    *node = None;
                    if error != Error::NoNode {
                        return Err(Failed::Refused(error));
                    }
                }
                // Created or not? It has a name by which it is found.
                Err(failed) => return Err(failed),
            }
            // There is no folder. It may also vanish again before it is used: the
            // server removes containers that are empty.
            self.make_folder(&session, &folder, deadline).await?;
        };
        session.prove(sent_at);
        let (stat, sequence) = created;
        let name = format!("{start}{sequence}");
        // Not if a broken connection lies between the two.
        let behind = listed.ok().filter(|names| names.contains(&name));
        let made = node.insert(Node {
            session,
            folder,
            name,
            czxid: stat.czxid,
        });
        match behind {
            Some(names) => Ok(Listed { names, sent_at }),
            None => {
                self.list(&made.session, &made.folder, false, deadline)
                    .await
            }
        }
    }

    /// Makes a lock's folder and those around it: containers, which the server
    /// removes when they have been empty for a while.
    async fn make_folder(
        &self,
        session: &Session,
        folder: &str,
        deadline: Deadline,
    ) -> Result<(), Failed> {
        loop {
            let made = self.folder_in_use(session, folder);
            match session.answer(deadline, made).await {
                // What was not made shows in the next attempt.
                Ok(()) | Err(Failed::Refused(Error::NodeExists)) => return Ok(()),
                Err(Failed::Refused(Error::NoNode)) => {}
                Err(failed) => return Err(failed),
            }
            let options = CreateMode::Container.with_acls(self.settings.acls());
            let made = session.client.mkdir(&self.settings.root, &options);
            match session.answer(deadline, made).await {
                Ok(()) => {}
                Err(Failed::Refused(Error::NoNode)) => return Ok(()),
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Makes the lock's folder as one in which something has been, all at once. Only
    /// such a container is ever removed (`ContainerManager.getCandidates` of
    /// ZooKeeper 3.8), and the request may be dropped before it has a node there.
    async fn folder_in_use(&self, session: &Session, folder: &str) -> Result<(), Error> {
        let acls = self.settings.acls();
        let first = names::join(folder, "first");
        let made = {
            let mut steps = session.client.new_multi_writer();
            steps.add_create(folder, b"", &CreateMode::Container.with_acls(acls))?;
            steps.add_create(&first, b"", &CreateMode::Persistent.with_acls(acls))?;
            steps.add_delete(&first, None)?;
            steps.commit()
        };
        made.await?;
        Ok(())
    }

    /// The nodes of a folder; none if there is no folder. `synced`: as they are now, and
    /// not as they were when this server last heard of the others.
    pub(super) async fn list(
        &self,
        session: &Session,
        folder: &str,
        synced: bool,
        deadline: Deadline,
    ) -> Result<Listed, Failed> {
        session.connected(deadline).await?;
        let sent_at = self.context.time.now();
        // Both are sent at once, in this order.
        let synced = synced.then(|| session.client.sync(&self.settings.root));
        let listed = session.client.list_children(folder);
        let answers = async {
            let (synced, listed) = join(OptionFuture::from(synced), listed).await;
            synced.transpose()?;
            match listed {
                Err(Error::NoNode) => Ok(Vec::new()),
                listed => listed,
            }
        };
        let names = session.answer(deadline, answers).await?;
        Ok(Listed { names, sent_at })
    }

    /// Looks for the node of a request whose creation was not answered, and says
    /// whether it is there.
    ///
    /// What the session has sent over this connection comes before the question.
    /// What it sent over an earlier one has either reached the leader before the
    /// session moved, and then `sync` waits until this server has it too; or it
    /// is refused there, as the session has moved.
    ///
    /// The owner may have made another node by an earlier session, which the
    /// server has not ended yet: so a name says less than whose the node is.
    pub(super) async fn find(
        &self,
        owner: Owner,
        node: &mut Node,
        deadline: Deadline,
    ) -> Result<bool, Failed> {
        let session = &node.session;
        let own = names::own(owner);
        let listed = self.list(session, &node.folder, true, deadline).await?;
        for name in listed.names {
            if !name.starts_with(&own) {
                continue;
            }
            let path = names::join(&node.folder, &name);
            let looked_at = session.client.check_stat(&path);
            let stat = session.answer(deadline, looked_at).await?;
            let is_ours = |stat: &Stat| stat.ephemeral_owner == session.client.session_id().0;
            if let Some(Stat { czxid, .. }) = stat.filter(is_ours) {
                (node.name, node.czxid) = (name, czxid);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until the node of this path is gone, or may be.
    pub(super) async fn wait_for_the_end_of(
        &self,
        session: &Session,
        path: &str,
    ) -> Result<(), Failed> {
        // When that has passed in silence, as much is left to ask again.
        let limit = self.context.request_timeout / 2;
        let deadline = self.context.time.after(limit);
        session.connected(deadline).await?;
        // Of its data, as that leaves no watch behind if there is no node.
        let watched = session.client.get_and_watch_data(path);
        let watcher = match session.answer(deadline, watched).await {
            Ok((_, _, watcher)) => watcher,
            Err(Failed::Refused(Error::NoNode)) => return Ok(()),
            Err(failed) => return Err(failed),
        };
        tokio::select! {
            changed = session.changed(watcher) => changed,
            () = session.is_silent_for(limit) => Err(Failed::NotSent),
        }
    }

    /// Deletes the node of a request, and says whether it was there. Once
    /// answered, it is not there and will not come.
    pub(super) async fn delete(
        &self,
        owner: Owner,
        node: &mut Node,
        deadline: Deadline,
    ) -> Result<bool, Failed> {
        if !node.is_heard_of() && !self.find(owner, node, deadline).await? {
            return Ok(false);
        }
        let session = &node.session;
        session.connected(deadline).await?;
        let path = node.path();
        let sent_at = self.context.time.now();
        let deleted = session.client.delete(&path, None);
        match session.answer(deadline, deleted).await {
            Ok(()) => {
                session.prove(sent_at);
                Ok(true)
            }
            Err(Failed::Refused(Error::NoNode)) => Ok(false),
            Err(failed) => Err(failed),
        }
    }
}
