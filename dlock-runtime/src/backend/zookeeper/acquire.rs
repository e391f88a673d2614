//! Taking a lock: a node in the lock's folder, and a look at who was there
//! before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client::{CreateMode, Error};

use super::core::Core;
use super::errors::Failed;
use super::names::{self, Member};
use super::nodes::Place;
use super::queue::{Standing, standing};
use super::session::Session;
use crate::backend::clock::{Backoff, Deadline};
use crate::backend::{BackendError, Grant, Request};
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// Its numbers are not those of a server that dlock knows.
const TOO_OLD: Failed = Failed::Refused(Error::Unimplemented);

/// How soon a creation that has not come about is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// What a request that does not wait, or one whose node was gone, has got.
enum Outcome {
    Granted(Grant),
    Busy,
    /// Its node was taken away behind its back: begin again, at the end of the
    /// queue.
    Again,
}

impl Core {
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let deadline = self.deadline();
        loop {
            match self.attempt(request, deadline, false).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                Outcome::Busy => return Ok(None),
                Outcome::Again => {}
            }
        }
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        loop {
            if let Outcome::Granted(grant) = self.attempt(request, self.deadline(), true).await? {
                return Ok(grant);
            }
        }
    }

    /// One node's way through the queue.
    async fn attempt(
        &self,
        request: &Request,
        deadline: Deadline,
        waits: bool,
    ) -> Result<Outcome, BackendError> {
        let session = self.session(deadline).await?;
        let mut claim = Claim::new(self, request, session);
        match claim.pursue(deadline, waits).await {
            Ok(outcome) => Ok(outcome),
            // With the session, the place in the queue is gone.
            Err(Failed::Over) => Ok(Outcome::Again),
            Err(failed) => Err(self.error(failed, &claim.place.folder)),
        }
    }
}

/// A request on its way to a grant. Dropped before that, it gives back what it
/// may have left at the server.
struct Claim<'a> {
    core: &'a Core,
    request: &'a Request,
    place: Place,
    trace: Trace,
}

/// What the server may have of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trace {
    Nothing,
    /// Its node, or one that comes yet.
    Node,
}

/// The node of a request that has one.
struct Made {
    member: Member,
    czxid: i64,
    /// The nodes of the folder, as seen by what was sent then.
    names: Vec<String>,
    seen_at: Instant,
}

impl<'a> Claim<'a> {
    fn new(core: &'a Core, request: &'a Request, session: Arc<Session>) -> Self {
        Self {
            core,
            request,
            place: Place {
                session,
                folder: core.folder(&request.key),
                name: None,
            },
            trace: Trace::Nothing,
        }
    }

    async fn pursue(&mut self, mut deadline: Deadline, waits: bool) -> Result<Outcome, Failed> {
        self.core.used_up.check(&self.place, deadline).await?;
        let mut made = self.make(deadline).await?;
        if made.member.sequence.is_at_the_end() {
            self.core.used_up.keep_in_mind(&self.place.folder);
            self.withdraw(deadline).await?;
            return Err(Failed::UsedUp);
        }
        loop {
            let before = match standing(&made.names, &made.member) {
                Standing::Holds => return self.granted(made, deadline).await,
                Standing::Missing => return Ok(self.again()),
                Standing::Behind(before) => before,
            };
            self.request.is_held_by_somebody();
            if !waits {
                self.withdraw(deadline).await?;
                return Ok(Outcome::Busy);
            }
            self.wait_for_the_end_of(&before).await?;
            deadline = self.core.deadline();
            (made.names, made.seen_at) = self.list(deadline).await?;
        }
    }

    /// Takes the node back, here and now: who asks again must not find itself in
    /// the way.
    async fn withdraw(&mut self, deadline: Deadline) -> Result<(), Failed> {
        let owner = self.request.owner;
        self.core.delete(owner, &mut self.place, deadline).await?;
        self.trace = Trace::Nothing;
        Ok(())
    }

    /// Makes the request's node, and lists the folder behind it.
    async fn make(&mut self, deadline: Deadline) -> Result<Made, Failed> {
        let session = Arc::clone(&self.place.session);
        let client = &session.client;
        let settings = &self.core.settings;
        let start = names::request(self.request.owner, settings.recipe, self.request.mode);
        let path = names::join(&self.place.folder, &start);
        let data = self.request.owner.to_string();
        let options = CreateMode::EphemeralSequential.with_acls(settings.acls());
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            session.connected(deadline).await?;
            let sent_at = Instant::now();
            self.trace = Trace::Node;
            // Both are sent at once, and done in this order: the one round trip.
            let created = client.create(&path, data.as_bytes(), &options);
            let listed = client.list_children(&self.place.folder);
            let answers = futures_util::future::join(created, listed);
            let (created, listed) = session.bound(deadline, answers).await?;
            let czxid = match created.map_err(|error| session.failed(error)) {
                Ok((stat, sequence)) => {
                    session.prove(sent_at);
                    self.place.name = Some(format!("{start}{sequence}"));
                    stat.czxid
                }
                // There is no folder. It may also vanish again before it is used:
                // the server removes containers that are empty.
                Err(Failed::Refused(Error::NoNode)) => {
                    self.trace = Trace::Nothing;
                    self.make_folder(deadline).await?;
                    continue;
                }
                Err(Failed::Refused(error)) => {
                    self.trace = Trace::Nothing;
                    return Err(Failed::Refused(error));
                }
                // Created or not? It has a name by which it is found.
                Err(Failed::Lost) => match self.find(deadline).await? {
                    Some(czxid) => czxid,
                    None => {
                        self.trace = Trace::Nothing;
                        self.core
                            .clock
                            .sleep(deadline.within(backoff.pause()))
                            .await;
                        continue;
                    }
                },
                Err(failed) => return Err(failed),
            };
            let (names, seen_at) = match listed {
                Ok(names) if created_at_once(&self.place, &names) => (names, sent_at),
                _ => self.list(deadline).await?,
            };
            let name = self.place.name.as_deref().unwrap_or_default();
            let member = Member::read(name).ok_or(TOO_OLD)?;
            return Ok(Made {
                member,
                czxid,
                names,
                seen_at,
            });
        }
    }

    /// Looks for the node whose creation was not answered. When it was created.
    async fn find(&mut self, deadline: Deadline) -> Result<Option<i64>, Failed> {
        let owner = self.request.owner;
        loop {
            match self.core.find(owner, &self.place, deadline).await {
                Ok(Some(found)) => {
                    self.place.name = Some(found.name);
                    return Ok(Some(found.czxid));
                }
                Ok(None) => return Ok(None),
                Err(Failed::Lost) => {}
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Makes the lock's folder and those around it: containers, which the server
    /// removes when they have been empty for a while.
    async fn make_folder(&self, deadline: Deadline) -> Result<(), Failed> {
        let session = &self.place.session;
        loop {
            match session.answer(deadline, self.folder_in_use()).await {
                // What was not made shows in the next attempt.
                Ok(()) | Err(Failed::Lost | Failed::Refused(Error::NodeExists)) => return Ok(()),
                Err(Failed::Refused(Error::NoNode)) => {}
                Err(failed) => return Err(failed),
            }
            let settings = &self.core.settings;
            let options = CreateMode::Container.with_acls(settings.acls());
            let made = session.client.mkdir(&settings.root, &options);
            match session.answer(deadline, made).await {
                Ok(()) => {}
                Err(Failed::Lost | Failed::Refused(Error::NoNode)) => return Ok(()),
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Makes the lock's folder as one in which something has been, all at once. Only
    /// such a container is ever removed (`ContainerManager.getCandidates` of
    /// ZooKeeper 3.8), and the request may be dropped before it has a node there.
    async fn folder_in_use(&self) -> Result<(), Error> {
        let acls = self.core.settings.acls();
        let folder = &self.place.folder;
        let first = names::join(folder, "first");
        let made = {
            let mut steps = self.place.session.client.new_multi_writer();
            steps.add_create(folder, b"", &CreateMode::Container.with_acls(acls))?;
            steps.add_create(&first, b"", &CreateMode::Persistent.with_acls(acls))?;
            steps.add_delete(&first, None)?;
            steps.commit()
        };
        made.await?;
        Ok(())
    }

    async fn list(&self, deadline: Deadline) -> Result<(Vec<String>, Instant), Failed> {
        let session = &self.place.session;
        loop {
            session.connected(deadline).await?;
            let sent_at = Instant::now();
            let listed = session.client.list_children(&self.place.folder);
            match session.answer(deadline, listed).await {
                Ok(names) => return Ok((names, sent_at)),
                Err(Failed::Lost) => {}
                // Without a folder there is no node of ours either.
                Err(Failed::Refused(Error::NoNode)) => return Ok((Vec::new(), sent_at)),
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Waits until the node of this name is gone, or may be.
    async fn wait_for_the_end_of(&self, before: &str) -> Result<(), Failed> {
        let session = &self.place.session;
        let path = names::join(&self.place.folder, before);
        let waiting = self.core.waiters.enter(self.request.owner, session, &path);
        let deadline = self.core.deadline();
        let watcher = loop {
            session.connected(deadline).await?;
            // Of its data, as that leaves no watch behind if there is no node.
            let watched = session.client.get_and_watch_data(&path);
            match session.answer(deadline, watched).await {
                Ok((_, _, watcher)) => break watcher,
                Err(Failed::Lost) => {}
                Err(Failed::Refused(Error::NoNode)) => return Ok(()),
                Err(failed) => return Err(failed),
            }
        };
        tokio::select! {
            changed = session.changed(watcher) => changed,
            () = waiting.woken() => Ok(()),
            () = session.is_silent_for(self.core.settings.request_timeout) => Err(Failed::TooLate),
        }
    }

    /// The node is gone, and nothing is left to be given back: the next one has
    /// the same owner, and must not be taken for it.
    fn again(&mut self) -> Outcome {
        self.trace = Trace::Nothing;
        Outcome::Again
    }

    /// The lock is held by the node.
    async fn granted(&mut self, made: Made, deadline: Deadline) -> Result<Outcome, Failed> {
        let session = Arc::clone(&self.place.session);
        let mut seen_at = made.seen_at;
        let mut term = session.term(seen_at, self.request.ttl);
        // After a wait, the session's last write may be long ago.
        if !term.is_fresh() {
            loop {
                let sent_at = Instant::now();
                match self.core.confirm(&self.place, deadline).await {
                    Ok(true) => {
                        seen_at = sent_at;
                        term = session.term(seen_at, self.request.ttl);
                        break;
                    }
                    Ok(false) => return Ok(self.again()),
                    Err(Failed::Lost) => {}
                    Err(failed) => return Err(failed),
                }
            }
        }
        let token = token(made.czxid).ok_or(TOO_OLD)?;
        let owner = self.request.owner;
        self.trace = Trace::Nothing;
        let place = self.place.clone();
        let nodes = &self.core.nodes;
        nodes.hold(owner, place, seen_at, term);
        // Whoever forgets what a session had may have been there before. If it
        // came after, the loss has been told.
        if session.is_over() && nodes.forget(owner) {
            return Ok(Outcome::Again);
        }
        Ok(Outcome::Granted(
            Grant::new(token, term.begins.into()).at_most(session.longest),
        ))
    }
}

/// Whether the list was made behind the creation: not if a broken connection
/// lies between the two.
fn created_at_once(place: &Place, names: &[String]) -> bool {
    names.iter().any(|name| place.name.as_ref() == Some(name))
}

/// The transaction that made the node, with room for hand-overs. It rises from
/// node to node, whatever becomes of the folder and its own numbers.
fn token(czxid: i64) -> Option<FencingToken> {
    let first = u64::try_from(czxid).ok()?.checked_mul(TOKENS_PER_GRANT)?;
    Some(FencingToken::from(first))
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.trace == Trace::Node && !self.place.session.is_over() {
            let nodes = &self.core.nodes;
            nodes.leave_behind(self.request, self.place.clone());
        }
    }
}
