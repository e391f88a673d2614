//! Breaks locks, and takes waiters out of their queue.
//!
//! A holder loses its node. A waiter whose node has gone would make another, so it has to be told:
//! the session that breaks its place makes a node in the lock's folder, which names the waiter. A
//! request lists the folder before it takes itself for the holder. So the waiter finds that node,
//! and gives its place back. The node is ephemeral, and stays until the waiter has left. If the
//! waiter does not come (its process is dead or paused), its place is taken from it.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error, Stat};

use super::ensemble::Ensemble;
use super::names::{self, Member};
use super::queue::{QueuePosition, holders, queue_position};
use super::session::{AT_ONCE, Session};
use super::wanted::Claim;
use crate::backend::Owner;
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::{Applied, Break, Failure, Freed, Whose};

/// The node that tells a waiter to leave. When this is dropped, the node is removed.
pub(super) struct RemovalNotice {
    session: Arc<Session>,
    path: String,
    /// Keeps the node from being swept away.
    claim: Option<Arc<Claim>>,
    /// The node is there, or may still come.
    is_there: bool,
}

impl RemovalNotice {
    fn to_be_made(session: &Arc<Session>, path: String) -> Self {
        let claim = session.wanted.claim(&path);
        claim.is(path.clone());
        Self {
            session: Arc::clone(session),
            path,
            claim: Some(claim),
            is_there: false,
        }
    }

    async fn remove(&mut self, deadline: Deadline) -> Result<(), Failure> {
        let deleted = self.session.ask(&self.path, deadline, |client| {
            client.delete(&self.path, None)
        });
        deleted.await?;
        self.is_there = false;
        Ok(())
    }
}

impl Drop for RemovalNotice {
    fn drop(&mut self) {
        self.claim = None;
        if self.is_there {
            // The session's sweep deletes it.
            self.session.wanted.doubt();
        }
    }
}

/// A waiter that is to leave.
struct Leaving<'a> {
    session: &'a Arc<Session>,
    folder: &'a str,
    names: &'a [String],
    /// The holders, and the waiters ahead of this one.
    ahead: &'a [&'a Member],
    waiter: &'a Member,
}

impl Ensemble {
    pub(super) async fn break_node(
        &self,
        broken: &Break,
        deadline: Deadline,
        notice: &mut Option<RemovalNotice>,
    ) -> Result<Freed, Failure> {
        let session = self.session(deadline).await?;
        let folder = self.folder(&broken.key);
        let (names, _) = session.list(&folder, true, deadline).await?;
        let (holders, waiters) = holders(&names);
        let is = |member: &Member, owner: &str| Shown(&member.name).to_string() == owner;
        match &broken.whose {
            Whose::Holder(holder) => {
                let mut holders = holders.iter();
                let Some(member) = holders.find(|member| is(member, &holder.owner)) else {
                    return Ok(Freed::NotHeld);
                };
                let path = names::join(&folder, &member.name);
                let deleted = session.ask(&folder, deadline, |client| client.delete(&path, None));
                Ok(Freed::of(deleted.await?.0.is_some()))
            }
            Whose::Waiter(waiter) => {
                let at = waiters.iter().position(|member| is(member, &waiter.owner));
                let Some(at) = at else {
                    return Ok(Freed::NotHeld);
                };
                let ahead: Vec<_> = holders.iter().chain(&waiters[..at]).collect();
                let leaving = Leaving {
                    session: &session,
                    folder: &folder,
                    names: &names,
                    ahead: &ahead,
                    waiter: &waiters[at],
                };
                self.take_out(broken, leaving, deadline, notice).await
            }
        }
    }

    async fn take_out(
        &self,
        broken: &Break,
        leaving: Leaving<'_>,
        deadline: Deadline,
        notice: &mut Option<RemovalNotice>,
    ) -> Result<Freed, Failure> {
        let Leaving {
            session, folder, ..
        } = leaving;
        let path = names::join(folder, &leaving.waiter.name);
        // The node that the waiter watches, if it watches a single one.
        let watched = match queue_position(leaving.names, leaving.waiter) {
            QueuePosition::Behind(name) => Some(names::join(folder, &name)),
            _ => None,
        };
        let looked: Vec<_> = [path.clone()].into_iter().chain(watched.clone()).collect();
        let mut found = session.read(folder, &looked, deadline).await?.into_iter();
        let Some(Ok((said, _))) = found.next() else {
            return Ok(Freed::NotHeld);
        };
        // It may have got the lock meanwhile, and say since when.
        let said = String::from_utf8_lossy(&said);
        let owner = said.split(';').next().and_then(Owner::read);
        let owner = owner.filter(|owner| leaving.waiter.name.starts_with(&names::own(*owner)));
        let Some(owner) = owner else {
            // Another program's waiter would not look for the node that tells it to leave, and make
            // another place.
            return Err(broken.refused("zookeeper (that waiter is not dlock's)"));
        };
        let wakes = match (watched, found.next()) {
            (Some(watched), Some(Ok((data, stat)))) => Some((watched, data, stat)),
            (Some(_), _) => return Err(Failure::ask_again()),
            (None, _) => None,
        };
        // The node stays from one attempt to the next, if the session does.
        notice.take_if(|notice| !Arc::ptr_eq(&notice.session, session));
        let notice = notice.get_or_insert_with(|| {
            RemovalNotice::to_be_made(session, names::join(folder, &names::out(owner)))
        });
        let was_there = std::mem::replace(&mut notice.is_there, true);
        let told = self.tell(&leaving, &path, &notice.path, wakes, deadline);
        if let Err(failure) = told.await {
            notice.is_there = was_there || failure.applied != Applied::No;
            return Err(failure);
        }
        // The waiter has been told, even if something fails from here on.
        let left = self.see_out(&path, notice, deadline).await;
        let left = left.map_err(|failure| failure.with(Applied::Answered))?;
        left.ok_or_else(Failure::ask_again)
    }

    /// Waits until the waiter has given its place back, and takes it away if the waiter does not
    /// come. `None` if the node that tells the waiter has gone meanwhile.
    async fn see_out(
        &self,
        path: &str,
        notice: &mut RemovalNotice,
        deadline: Deadline,
    ) -> Result<Option<Freed>, Failure> {
        let (time, session) = (&self.context.time, Arc::clone(&notice.session));
        let limit = deadline.min(time.after(self.context.patience()));
        let _ = time.bound(limit, leaves(&session, path, deadline)).await;
        // The waiter cannot get the lock while that node is there. But the node may be another
        // operator's, and gone by now, or this request may arrive late. Then the waiter may hold
        // the lock.
        let deleted = session.transact(path, deadline, |steps| {
            steps.add_check_version(&notice.path, -1)?;
            steps.add_delete(path, None)
        });
        match deleted.await? {
            // `NoNode`: the waiter has left by itself.
            Ok(_) | Err((1, Error::NoNode)) => {}
            Err((_, Error::NoNode)) => return Ok(None),
            Err((_, error)) => return Err(session.refused(path, error)),
        }
        notice.remove(deadline).await?;
        Ok(Some(Freed::Released))
    }

    /// Tells the waiter to leave, if the nodes that keep it from getting the lock are still there:
    /// then it does not hold it.
    async fn tell(
        &self,
        leaving: &Leaving<'_>,
        path: &str,
        notice: &str,
        wakes: Option<(String, Vec<u8>, Stat)>,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let options = CreateMode::Ephemeral.with_acls(self.settings.acls());
        let folder = leaving.folder;
        let modes = leaving.ahead.iter().map(|member| member.mode);
        let in_the_way = leaving.waiter.mode.in_the_way(modes, AT_ONCE);
        let in_the_way = in_the_way.map_err(Failure::refused)?;
        let told = leaving.session.transact(folder, deadline, |steps| {
            for before in &leaving.ahead[in_the_way] {
                steps.add_check_version(&names::join(folder, &before.name), -1)?;
            }
            steps.add_check_version(path, -1)?;
            steps.add_create(notice, b"", &options)?;
            match &wakes {
                // A waiter that watches a single node is woken by a change of that node.
                Some((watched, data, stat)) => {
                    steps.add_set_data(watched, data, Some(stat.version))
                }
                // A waiter that watches the folder is woken by the new node.
                None => Ok(()),
            }
        });
        match told.await? {
            // `NodeExists`: another operator has told the waiter, or an earlier attempt.
            Ok(_) | Err((_, Error::NodeExists)) => Ok(()),
            // Somebody has gone, so the waiter may hold the lock by now.
            Err((_, Error::NoNode | Error::BadVersion)) => Err(Failure::ask_again()),
            Err((_, error)) => Err(leaving.session.refused(folder, error)),
        }
    }
}

/// Waits until the node is gone.
async fn leaves(session: &Session, path: &str, deadline: Deadline) -> Result<(), Failure> {
    loop {
        session.wait_for_the_end_of(path, None).await?;
        let there = session.ask(path, deadline, |client| client.check_stat(path));
        if there.await?.0.flatten().is_none() {
            return Ok(());
        }
    }
}
