//! The node of a request: made in the lock's folder, found there again, and deleted.

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

/// The node of a request, or one that comes yet.
#[derive(Clone)]
pub(crate) struct Node {
    pub(super) session: Arc<Session>,
    /// The lock's.
    pub(super) folder: String,
    /// Its name in the folder. Empty if it is not known to be there: the answer to its
    /// creation or its deletion has not come.
    pub(super) name: String,
    /// The transaction that made it. 0: the answer to its creation has not come.
    pub(super) czxid: i64,
    /// When that was, in milliseconds of the leader's clock.
    pub(super) ctime: i64,
    /// For as long as somebody knows of it, it is not swept away.
    claim: Arc<Claim>,
}

impl Node {
    /// `path` is what its own begins with.
    fn to_be_made(session: &Arc<Session>, folder: &str, path: &str) -> Self {
        Self {
            session: Arc::clone(session),
            folder: folder.to_owned(),
            name: String::new(),
            czxid: 0,
            ctime: 0,
            claim: session.wanted.claim(path),
        }
    }

    fn is_there(&mut self, name: String, stat: &Stat) {
        (self.name, self.czxid, self.ctime) = (name, stat.czxid, stat.ctime);
        self.claim.is(self.path());
    }

    pub(super) fn path(&self) -> String {
        names::join(&self.folder, &self.name)
    }

    /// Whether it is there: looks for it by what its name begins with, unless it is known.
    ///
    /// What the session has sent over this connection comes before the question.
    /// What it sent over an earlier one has reached the leader before the session
    /// moved, and then `sync` waits until this server has it too; or it is refused
    /// there, for as long as the session does not move back. As it may, a creation
    /// that is not found is in doubt (`wanted`).
    ///
    /// The owner may have made another node by an earlier session, which the
    /// server has not ended yet: so a name says less than whose the node is.
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
                self.is_there(name, &stat);
                return Ok(true);
            }
        }
        if self.czxid == 0 {
            session.wanted.doubt();
        }
        Ok(false)
    }

    /// Deletes it, and says whether it was there. Once answered, it is not there, and
    /// is swept away if it comes yet.
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
            // Without an answer it has to be found again: a server that is behind the
            // others would go on showing it where it was.
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

    /// Makes the request's node, and lists the folder behind it, and when that was asked. What may be there is in `node` from before it is sent.
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
                // Both are sent at once, and done in this order: the one round trip.
                let created = client.create(&path, data.as_bytes(), &options);
                let listed = floor::list(client, &session.place, &folder, &floor);
                async {
                    let (created, listed) = join(created, listed).await;
                    Ok((created?, listed))
                }
            });
            let made = made.await.inspect_err(|failure| {
                // Created or not? It has a name by which it is found.
                node.take_if(|_| failure.applied == Applied::No);
            });
            let (Some(((stat, sequence), listed)), sent_at) = made? else {
                // There is no folder. It may also vanish again before it is used: the
                // server removes containers that are empty.
                *node = None;
                self.make_folder(&session, &folder, deadline).await?;
                continue;
            };
            session.prove(sent_at);
            let made = node.get_or_insert_with(|| Node::to_be_made(&session, &folder, &path));
            made.is_there(format!("{start}{sequence}"), &stat);
            // Not if a broken connection lies between the two.
            return match listed.ok().filter(|queue| queue.names.contains(&made.name)) {
                Some(queue) => Ok((queue, sent_at)),
                None => session.queue(&folder, &floor, deadline).await,
            };
        }
    }

    /// Fails if the folder has come to the end of its numbers, as far as that is known,
    /// and still has. (A server that is behind the others may say so for a moment after
    /// it was deleted.)
    ///
    /// A request finds out by the number of its own node, which it takes back. Were
    /// each to try, they would use up the numbers that are left, and the folder
    /// would never be empty, so that nobody could delete it. So the process keeps
    /// such folders in mind, and looks before it makes the next node in one.
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

    /// Makes a lock's folder and those around it: containers, which the server
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
                // What was not made shows in the next attempt.
                return Ok(());
            }
        }
    }

    /// Makes the lock's folder as one in which something has been, all at once. Only
    /// such a container is ever removed (`ContainerManager.getCandidates` of
    /// ZooKeeper 3.8), and the request may be dropped before it has a node there.
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
            // What was not made shows in the next attempt.
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The number of the next node in a folder. The server counts what is created,
/// and shows it as what was created and deleted: twice the number, less the
/// nodes that are there (`DataNode.copyStat` of ZooKeeper 3.8).
pub(super) fn next_number(cversion: i32, children: i32) -> i64 {
    // Twice a number of 31 bits needs the sign's.
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
