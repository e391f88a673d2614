//! Taking a lock: an `add` of an item whose value is the owner.
//!
//! To wait is to look, now and then, whether the item is there, and to `add`
//! when it is not. An `add` whose answer was lost may be sent again, as an item
//! that is there and has this owner's value was stored by either of them.

use std::time::Instant;

use super::call::Call;
use super::connection::{Added, Owned, Version};
use super::core::Core;
use super::expiry::Expiry;
use super::give_back::GiveBack;
use super::lanes::UnderWay;
use super::names;
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
        loop {
            if let Some(grant) = acquisition.take().await? {
                return Ok(grant);
            }
            self.shared.watch.free(&request.key).await?;
            acquisition.call.restart();
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
    under_way: Option<UnderWay<Added>>,
    /// When the first was sent that was never answered: it may be run yet.
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
            under_way: None,
            unanswered: None,
        })
    }

    /// Takes the lock if it is free. `None`: somebody holds it.
    async fn take(&mut self) -> Result<Option<Grant>, BackendError> {
        loop {
            let ticket = self.call.ticket().await?;
            let sent_at = Instant::now();
            let (lock, expiry) = (self.lock.clone(), self.expiry);
            let under_way = self
                .under_way
                .insert(ticket.send(|mut connection| async move {
                    let added = connection.add(&lock, expiry).await;
                    (connection, added)
                }));
            let added = under_way.answer(self.call.deadline()).await;
            self.under_way = None;
            match added {
                Ok(Added::Taken(version)) => return Ok(Some(self.granted(version, sent_at))),
                Ok(Added::Held) => {
                    if let Some(first) = self.unanswered
                        && let Some(version) = Box::pin(self.read()).await?
                    {
                        // Which of them it was cannot be told.
                        return Ok(Some(self.granted(version, first)));
                    }
                    self.request.is_held_by_somebody();
                    return Ok(None);
                }
                Err(failure) => {
                    if failure.is_in_doubt() {
                        self.unanswered.get_or_insert(sent_at);
                    }
                    self.call.failed(failure).await?;
                }
            }
        }
    }

    /// The item, if it is ours.
    async fn read(&mut self) -> Result<Option<Version>, BackendError> {
        let lock = self.lock.clone();
        let read = self.call.ask(|mut connection| {
            let lock = lock.clone();
            async move {
                let read = connection.read_own(&lock).await;
                (connection, read)
            }
        });
        Ok(read.await?.value)
    }

    fn granted(&mut self, version: Version, sent_at: Instant) -> Grant {
        let unanswered = self.unanswered.take();
        self.core.shared.known.granted(
            self.request.owner,
            version,
            sent_at,
            self.expiry,
            unanswered,
        );
        Grant::new(FencingToken::NONE, tokio::time::Instant::from_std(sent_at))
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let behind = self.under_way.take();
        if behind.is_some() || self.unanswered.is_some() {
            self.core.hub.give_back(GiveBack {
                lock: self.lock.clone(),
                expiry: self.expiry,
                behind: behind.and_then(UnderWay::leave),
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
