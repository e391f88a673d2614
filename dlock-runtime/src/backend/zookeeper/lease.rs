//! Keeping a lock, and giving it back.

use std::sync::Arc;
use std::time::Instant;

use zookeeper_client::{Error, MultiWriteError};

use super::core::Core;
use super::errors::Failed;
use super::names;
use super::nodes::Place;
use super::session::Session;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Released, Renewed, Request};

/// How many bytes of paths go into one transaction: the server takes a megabyte
/// (`jute.maxbuffer`).
const MOST_BYTES: usize = 256 * 1024;

/// A lease that is to be renewed.
struct Renewal<'r> {
    /// Its place in the batch.
    index: usize,
    request: &'r Request,
    path: String,
}

impl Core {
    /// Renews leases by a transaction that changes nothing: it checks that their
    /// nodes exist, and as it takes a majority like any other, it shows that the
    /// session is alive.
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let mut answers: Vec<_> = requests.iter().map(|_| Ok(Renewed::Gone)).collect();
        // All nodes are of one session: the nodes of one that has ended are
        // forgotten.
        let mut session: Option<Arc<Session>> = None;
        let mut renewals = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let Some(place) = self.nodes.place(request.owner) else {
                continue;
            };
            let Some(name) = &place.name else { continue };
            renewals.push(Renewal {
                index,
                request,
                path: names::join(&place.folder, name),
            });
            session = Some(place.session);
        }
        let Some(session) = session else {
            return answers;
        };
        let deadline = self.deadline();
        while !renewals.is_empty() {
            let mut bytes = 0;
            let count = renewals.iter().take_while(|renewal| {
                bytes += renewal.path.len() + 32;
                bytes <= MOST_BYTES
            });
            let count = count.count().max(1);
            let batch: Vec<_> = renewals.drain(..count).collect();
            self.renew_batch(&session, batch, &mut answers, deadline)
                .await;
        }
        answers
    }

    async fn renew_batch(
        &self,
        session: &Session,
        mut batch: Vec<Renewal<'_>>,
        answers: &mut [Result<Renewed, BackendError>],
        deadline: Deadline,
    ) {
        while !batch.is_empty() {
            let sent_at = Instant::now();
            let paths = batch.iter().map(|renewal| renewal.path.as_str());
            let missing = match self.check(session, paths, deadline).await {
                Ok(missing) => missing,
                // With the session, its leases are gone.
                Err(Failed::Over) => return,
                Err(failed) => {
                    let error = self.error(failed, &self.settings.root);
                    for renewal in batch {
                        answers[renewal.index] = Err(error.clone());
                    }
                    return;
                }
            };
            if let Some(index) = missing {
                let renewal = batch.remove(index);
                self.nodes.forget(renewal.request.owner);
                continue;
            }
            for renewal in batch.drain(..) {
                answers[renewal.index] = Ok(self.extended(session, renewal.request, sent_at));
            }
        }
    }

    fn extended(&self, session: &Session, request: &Request, sent_at: Instant) -> Renewed {
        // `min_hold` asks for longer than the session lets a live holder be sure
        // of; its node stays for as long as the session does.
        let until = sent_at + request.ttl;
        if !self.nodes.renew(request.owner, until) {
            return Renewed::Gone;
        }
        let term = session.term(sent_at, request.ttl);
        Renewed::Extended {
            sent_at: term.begins.into(),
        }
    }

    /// Whether a node exists, and its session with it.
    pub(super) async fn confirm(&self, place: &Place, deadline: Deadline) -> Result<bool, Failed> {
        let name = place.name.as_deref().unwrap_or_default();
        let path = names::join(&place.folder, name);
        let missing = self
            .check(&place.session, std::iter::once(&*path), deadline)
            .await?;
        Ok(missing.is_none())
    }

    /// Checks that nodes exist. The first that does not.
    async fn check<'p>(
        &self,
        session: &Session,
        paths: impl Iterator<Item = &'p str>,
        deadline: Deadline,
    ) -> Result<Option<usize>, Failed> {
        session.connected(deadline).await?;
        let sent_at = Instant::now();
        let answer = {
            let mut question = session.client.new_multi_writer();
            for path in paths {
                // Of any version.
                question
                    .add_check_version(path, -1)
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
