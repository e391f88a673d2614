//! Keeping a lock, and giving it back.

use std::sync::Arc;
use std::time::Instant;

use zookeeper_client::{Error, MultiWriteError};

use super::core::Core;
use super::errors::Failed;
use super::nodes::Place;
use super::session::Session;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Owner, Released, Renewed, Request};

/// How many bytes of paths go into one transaction: the server takes a megabyte
/// (`jute.maxbuffer`).
const MOST_BYTES: usize = 256 * 1024;

impl Core {
    /// Renews leases by a transaction that changes nothing: it checks that their
    /// nodes exist, and as it takes a majority like any other, it shows that the
    /// session is alive. It checks all nodes that have not been looked at for a
    /// while, whether their leases are to be renewed now or soon: renewals that
    /// are due one by one share it.
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let unseen: Vec<_> = requests
            .iter()
            .map(|request| self.nodes.is_to_be_seen(request))
            .collect();
        let looked = match unseen.contains(&true) {
            true => self.look(requests).await,
            false => Ok(()),
        };
        let answers = requests.iter().zip(unseen).map(|(request, unseen)| {
            if let (true, Err(error)) = (unseen, &looked) {
                return Err(error.clone());
            }
            Ok(self.extend(request))
        });
        answers.collect()
    }

    /// The lease lasts its ttl from when its node was last seen.
    fn extend(&self, request: &Request) -> Renewed {
        let Some((session, seen_at)) = self.nodes.extend(request) else {
            return Renewed::Gone;
        };
        // It has not been forgotten yet.
        if session.is_over() {
            return Renewed::Gone;
        }
        // `min_hold` may ask for longer than the session lets a live holder be
        // sure of; its node stays for as long as the session does.
        let term = session.term(seen_at, request.ttl);
        Renewed::Extended {
            sent_at: term.begins.into(),
        }
    }

    /// Looks at the nodes of these requests, and at all others whose turn it is.
    async fn look(&self, requests: &[Request]) -> Result<(), BackendError> {
        let mut nodes = self.nodes.to_be_seen(requests);
        let deadline = self.deadline();
        while let Some((_, place)) = nodes.first() {
            // All nodes are of one session: the nodes of one that has ended are
            // forgotten.
            let session = Arc::clone(&place.session);
            let mut bytes = 0;
            let count = nodes.iter().take_while(|(_, place)| {
                bytes += place.path().len() + 32;
                bytes <= MOST_BYTES && Arc::ptr_eq(&place.session, &session)
            });
            let count = count.count().max(1);
            let batch = nodes.drain(..count).collect();
            match self.look_at(&session, batch, deadline).await {
                // With the session, its nodes are gone.
                Ok(()) | Err(Failed::Over) => {}
                Err(failed) => return Err(self.error(failed, &self.settings.root)),
            }
        }
        Ok(())
    }

    async fn look_at(
        &self,
        session: &Session,
        mut nodes: Vec<(Owner, Place)>,
        deadline: Deadline,
    ) -> Result<(), Failed> {
        while !nodes.is_empty() {
            let sent_at = Instant::now();
            let paths = nodes.iter().map(|(_, place)| place.path());
            let Some(missing) = self.check(session, paths, deadline).await? else {
                self.nodes.seen(&nodes, sent_at);
                return Ok(());
            };
            let (owner, _) = nodes.remove(missing);
            if self.nodes.forget(owner) {
                self.losses.tell([owner]);
            }
        }
        Ok(())
    }

    /// Whether a node exists, and its session with it.
    pub(super) async fn confirm(&self, place: &Place, deadline: Deadline) -> Result<bool, Failed> {
        let path = std::iter::once(place.path());
        let missing = self.check(&place.session, path, deadline).await?;
        Ok(missing.is_none())
    }

    /// Checks that nodes exist. The first that does not.
    async fn check(
        &self,
        session: &Session,
        paths: impl Iterator<Item = String>,
        deadline: Deadline,
    ) -> Result<Option<usize>, Failed> {
        session.connected(deadline).await?;
        let sent_at = Instant::now();
        let answer = {
            let mut question = session.client.new_multi_writer();
            for path in paths {
                // Of any version.
                question
                    .add_check_version(&path, -1)
                    .map_err(|error| session.failed(error))?;
            }
            question.commit()
        };
        match session.bound(deadline, answer).await? {
            Ok(_) => {
                session.prove(sent_at);
                Ok(None)
            }
            Err(MultiWriteError::OperationFailed {
                index,
                source: Error::NoNode,
            }) => Ok(Some(index)),
            Err(error) => Err(session.failed(error.into())),
        }
    }

    pub(super) async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        let owner = request.owner;
        let patience = self.settings.request_timeout;
        let Some((mut place, mut asked)) = self.nodes.give_back(owner, patience) else {
            return Ok(Released::NotHeld);
        };
        let deadline = self.deadline();
        loop {
            match self.delete(owner, &mut place, deadline).await {
                Ok(was_there) => {
                    self.nodes.forget(owner);
                    // Gone already: by what was asked before, or by somebody else.
                    return Ok(if was_there || asked {
                        Released::Released
                    } else {
                        Released::NotHeld
                    });
                }
                Err(Failed::Over) => {
                    self.nodes.forget(owner);
                    return Ok(Released::NotHeld);
                }
                // Done or not, it is asked again.
                Err(Failed::Lost) => asked = true,
                Err(failed) => {
                    self.nodes.hurry(owner);
                    return Err(self.error(failed, &place.folder));
                }
            }
        }
    }
}
