//! The node of a request: how it is made in the lock's folder, found there again, and deleted.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join;
use zookeeper_client::{Client, CreateMode, Error, Stat};

use super::ensemble::Ensemble;
use super::errors;
use super::floor::{self, Queue};
use super::names;
use super::session::Session;
use super::wanted::Claim;
use crate::backend::{Owner, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Failure};

/// The node of a request, which may not be there yet.
#[derive(Clone)]
pub(crate) struct Node {
    pub(super) session: Arc<Session>,
    /// The folder of the lock.
    pub(super) folder: String,
    /// Its name in the folder. Empty unless the node is known to be there: the answer to its
    /// creation or deletion has not come.
    pub(super) name: String,
    /// The number of the transaction that made it. 0: the answer to its creation has not come.
    pub(super) czxid: i64,
    /// When it was made, in milliseconds of the leader's clock.
    pub(super) ctime: i64,
    /// Since when the request has the lock, if it had to wait: in milliseconds since 1970, by this
    /// host's clock.
    pub(super) since: Option<u64>,
    /// Keeps the node from being swept away for as long as somebody knows of it.
    claim: Arc<Claim>,
}

impl Node {
    /// `path` is the beginning of its path.
    fn to_be_made(session: &Arc<Session>, folder: &str, path: &str) -> Self {
        Self {
            session: Arc::clone(session),
            folder: folder.to_owned(),
            name: String::new(),
            czxid: 0,
            ctime: 0,
            since: None,
            claim: session.wanted.claim(path),
        }
    }

    fn set_found(&mut self, name: String, stat: &Stat) {
        (self.name, self.czxid, self.ctime) = (name, stat.czxid, stat.ctime);
        self.claim.is(self.path());
    }

    pub(super) fn path(&self) -> String {
        names::join(&self.folder, &self.name)
    }

    /// Whether the node is there. Unless that is known, it is looked for by the beginning of its
    /// name.
    ///
    /// What the session has sent over this connection is run before this question. What it has sent
    /// over an earlier connection has either reached the leader before the session moved, and then
    /// `sync` waits until this server has it too. Or the leader refuses it, for as long as the
    /// session does not move back. Since it may move back, a creation that is not found is in doubt
    /// (`wanted`).
    ///
    /// The owner may have made another node in an earlier session that the server has not ended
    /// yet. So the name alone does not prove that a node is of this session.
    pub(super) async fn find(&mut self, owner: Owner, deadline: Deadline) -> Result<bool, Failure> {
        if !self.name.is_empty() {
            return Ok(true);
        }
        let (session, own) = (&self.session, names::own(owner));
        let (names, _) = session.list(&self.folder, true, deadline).await?;
        for name in names.into_iter().filter(|name| name.starts_with(&own)) {
            let path = names::join(&self.folder, &name);
            let looked = session.ask(&path, deadline, |client| client.check_stat(&path));
            if let Some(stat) = looked.await?.0.flatten()
                && stat.ephemeral_owner == session.client.session_id().0
            {
                self.set_found(name, &stat);
                return Ok(true);
            }
        }
        if self.czxid == 0 {
            session.wanted.doubt();
        }
        Ok(false)
    }

    /// Deletes the node, and returns whether it was there. After an answer it is not there, and if
    /// it still comes, it is swept away.
    pub(super) async fn delete(
        &mut self,
        owner: Owner,
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        if !self.find(owner, deadline).await? {
            return Ok(false);
        }
        let (session, path) = (&self.session, self.path());
        let deleted = session.ask(&self.folder, deadline, |client| {
            // If no answer comes, the node has to be found again: a server that is behind the
            // others would go on showing it.
            self.name.clear();
            client.delete(&path, None)
        });
        let (deleted, sent_at) = deleted.await?;
        if deleted.is_some() {
            session.prove(sent_at);
        }
        Ok(deleted.is_some())
    }
}

impl Ensemble {
    pub(super) fn folder(&self, key: &str) -> String {
        names::folder(&self.settings.root, key)
    }

    /// Makes the request's node and then lists the folder. Returns the list, and when that was
    /// asked. `node` names what may be there, from before the creation is sent.
    pub(super) async fn make(
        &self,
        request: &Request,
        deadline: Deadline,
        node: &mut Option<Node>,
    ) -> Result<(Queue, Instant), Failure> {
        let session = self.session(deadline).await?;
        let (folder, floor) = (self.folder(&request.key), self.floor());
        self.has_numbers(&session, &folder, deadline).await?;
        let start = names::request(request.owner, self.settings.recipe, request.mode);
        let path = names::join(&folder, &start);
        let data = request.owner.to_string();
        let options = CreateMode::EphemeralSequential.with_acls(self.settings.acls());
        loop {
            let made = session.ask(&folder, deadline, |client| {
                *node = Some(Node::to_be_made(&session, &folder, &path));
                // Both are sent at once, and the server runs them in this order. So it is one round
                // trip.
                let created = client.create(&path, data.as_bytes(), &options);
                let listed = floor::list(client, &session.place, &folder, &floor);
                async {
                    let (created, listed) = join(created, listed).await;
                    Ok((created?, listed))
                }
            });
            let made = made.await.inspect_err(|failure| {
                // If it may have been created, it is kept: it is found by its name.
                node.take_if(|_| failure.applied == Applied::No);
            });
            let (Some(((stat, sequence), listed)), sent_at) = made? else {
                // There is no folder. The server removes containers that are empty, so it may also
                // vanish again before it is used.
                *node = None;
                self.make_folder(&session, &folder, deadline).await?;
                continue;
            };
            session.prove(sent_at);
            let made = node.get_or_insert_with(|| Node::to_be_made(&session, &folder, &path));
            made.set_found(format!("{start}{sequence}"), &stat);
            // If the connection broke between the two, there is no list, or one without the node.
            return match listed.ok().filter(|queue| queue.names.contains(&made.name)) {
                Some(queue) => Ok((queue, sent_at)),
                None => session.queue(&folder, &floor, deadline).await,
            };
        }
    }

    /// Fails if the folder is known to have come to the end of its numbers, and still has. (A
    /// server that is behind the others may say so for a moment after the folder was deleted.)
    ///
    /// A request finds out by the number of its own node, which it takes back. If every request
    /// tried that, they would use up the numbers that are left, and the folder would never be
    /// empty, so that nobody could delete it. So the process remembers such folders, and looks at
    /// one before it makes the next node in it.
    async fn has_numbers(
        &self,
        session: &Session,
        folder: &str,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        if !self.used_up.lock().contains(folder) {
            return Ok(());
        }
        let looked = session.ask(folder, deadline, |client| client.check_stat(folder));
        let stat = looked.await?.0.flatten();
        let next = stat.map(|stat| next_number(stat.cversion, stat.num_children));
        if next.is_some_and(names::is_at_the_end) {
            return Err(errors::used_up(&session.place, folder));
        }
        self.used_up.lock().remove(folder);
        Ok(())
    }

    /// Makes a lock's folder and the folders above it. They are containers, which the server
    /// removes when they have been empty for a while.
    async fn make_folder(
        &self,
        session: &Session,
        folder: &str,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        loop {
            let made = session.ask(folder, deadline, |client| {
                self.folder_in_use(client, folder)
            });
            if made.await?.0.is_some() {
                return Ok(());
            }
            let options = CreateMode::Container.with_acls(self.settings.acls());
            let root = &self.settings.root;
            let made = session.ask(root, deadline, |client| client.mkdir(root, &options));
            if made.await?.0.is_none() {
                // If something is missing, the next attempt shows it.
                return Ok(());
            }
        }
    }

    /// Makes the lock's folder together with a node in it, which the same transaction deletes. The
    /// server removes a container only if it has had a node (`ContainerManager.getCandidates` of
    /// ZooKeeper 3.8), and the request may be dropped before it makes one.
    async fn folder_in_use(&self, client: &Client, folder: &str) -> Result<(), Error> {
        let acls = self.settings.acls();
        let first = names::join(folder, "first");
        let made = {
            let mut steps = client.new_multi_writer();
            steps.add_create(folder, b"", &CreateMode::Container.with_acls(acls))?;
            steps.add_create(&first, b"", &CreateMode::Persistent.with_acls(acls))?;
            steps.add_delete(&first, None)?;
            steps.commit()
        };
        match made.await.map_err(Error::from) {
            // If something is missing, the next attempt shows it.
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The number of the next node in a folder. The server counts creations. It shows the number of
/// creations and deletions: twice its count, less the nodes that are there (`DataNode.copyStat` of
/// ZooKeeper 3.8).
pub(super) fn next_number(cversion: i32, children: i32) -> i64 {
    // Twice a number of 31 bits needs the bit of the sign.
    let twice = cversion.wrapping_add(children).cast_unsigned();
    i64::from(twice / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_is_what_the_folder_has_counted() {
        for (created, there) in [(0, 0), (1, 1), (7, 3), (i32::MAX - 1, 2), (i32::MAX, 5)] {
            let shown = created.wrapping_mul(2).wrapping_sub(there);
            assert_eq!(next_number(shown, there), i64::from(created));
        }
    }
}
