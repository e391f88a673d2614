//! Taking a lock: an `add` of an item whose value is the owner.
//!
//! To wait is to look, now and then, whether the item is there, and to `add`
//! when it is not. An `add` whose answer was lost may be sent again: if an item
//! is there then, it is this owner's or not, and an extension tells.

use std::time::Instant;

use super::call::Call;
use super::connection::{Added, Changed, Owned, Version};
use super::core::Core;
use super::expiry::Expiry;
use super::give_back::GiveBack;
use super::lanes::Sent;
use super::names;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, BackendErrorKind, Grant, Mode, Request};
use crate::token::FencingToken;

impl Core {
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        Acquisition::new(self, request)?.take().await
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let mut acquisition = Acquisition::new(self, request)?;
        if let Some(pause) = self.turns.pause(&request.key, Instant::now()) {
            // It waits for others, not for the store.
            request.progress().asks_later();
            let clock = &self.shared.lanes.clock;
            Box::pin(clock.sleep(Deadline::after(pause))).await;
            request.progress().asks_now();
            acquisition.call.restart();
        }
        loop {
            if let Some(grant) = acquisition.take().await? {
                return Ok(grant);
            }
            acquisition.wait().await?;
        }
    }
}

/// A request on its way to a grant. Dropped before that, it gives back what it
/// may have left at the server.
struct Acquisition<'a> {
    core: &'a Core,
    request: &'a Request,
    lock: Owned,
    expiry: Expiry,
    call: Call<'a>,
    /// An `add` that has no answer yet.
    in_flight: Option<Sent<Added>>,
    /// When the last was sent that was never answered: it may be run yet.
    unanswered: Option<Instant>,
}

impl<'a> Acquisition<'a> {
    fn new(core: &'a Core, request: &'a Request) -> Result<Self, BackendError> {
        if request.mode != Mode::Write {
            return Err(BackendError::new(
                BackendErrorKind::Unsupported,
                "memcached has no read locks; use mode \"write\"",
            ));
        }
        Ok(Self {
            core,
            request,
            lock: owned(request),
            expiry: Expiry::of(request.ttl)?,
            call: core.call()?,
            in_flight: None,
            unanswered: None,
        })
    }

    /// Takes the lock if it is free. `None`: somebody holds it.
    async fn take(&mut self) -> Result<Option<Grant>, BackendError> {
        loop {
            let ticket = self.call.ticket().await?;
            let sent_at = Instant::now();
            let (lock, expiry) = (self.lock.clone(), self.expiry);
            let in_flight = self
                .in_flight
                .insert(ticket.send(|mut connection| async move {
                    let added = connection.add(&lock, expiry).await;
                    (connection, added)
                }));
            let added = in_flight.answer(self.call.answer_by()).await;
            self.in_flight = None;
            match added {
                Ok(Added::Taken(version)) => return Ok(Some(self.granted(version, sent_at))),
                Ok(Added::Held) => {
                    if self.unanswered.is_some()
                        && let Some(grant) = Box::pin(self.claim()).await?
                    {
                        return Ok(Some(grant));
                    }
                    self.request.is_held_by_somebody();
                    return Ok(None);
                }
                Err(failure) => {
                    if failure.is_in_doubt() {
                        self.unanswered = Some(sent_at);
                    }
                    self.call.failed(failure).await?;
                }
            }
        }
    }

    /// Makes a whole lease of what an `add` without an answer has taken.
    async fn claim(&mut self) -> Result<Option<Grant>, BackendError> {
        let (lock, expiry) = (self.lock.clone(), self.expiry);
        let extend = self.call.ask(|mut connection| {
            let lock = lock.clone();
            async move {
                let extended = connection.extend(&lock, expiry, None).await;
                (connection, extended)
            }
        });
        let extended = extend.await?;
        Ok(match extended.value {
            Changed::Done(version) => Some(self.granted(version, extended.sent_at)),
            Changed::NotOurs => None,
        })
    }

    /// Waits until there is cause to ask again: nobody holds the lock, or this
    /// very request does, by a command that was run late.
    async fn wait(&mut self) -> Result<(), BackendError> {
        let watch = &self.core.shared.watch;
        watch.free(&self.request.key, &self.lock.value).await?;
        self.call.restart();
        Ok(())
    }

    fn granted(&mut self, version: Version, sent_at: Instant) -> Grant {
        let Core {
            shared, suspects, ..
        } = self.core;
        let owner = self.request.owner;
        shared.known.seen(owner, version, sent_at, self.expiry);
        if let Some(last) = self.unanswered.take() {
            suspects.add(owner, last, self.expiry.at_most());
        }
        Grant::new(FencingToken::NONE, tokio::time::Instant::from_std(sent_at))
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let behind = self.in_flight.take();
        if behind.is_some() || self.unanswered.is_some() {
            self.core.hub.give_back(GiveBack {
                lock: self.lock.clone(),
                expiry: self.expiry,
                behind: behind.and_then(Sent::leave),
                unanswered: self.unanswered,
            });
        }
    }
}

pub(super) fn owned(request: &Request) -> Owned {
    Owned {
        name: names::lock(&request.key),
        value: names::owner(request.owner),
    }
}
