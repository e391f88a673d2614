//! A store without its engine. Tests of a store's protocol use it to send each command themselves.
//!
//! It is hidden from the documentation, and behind no feature: those tests (`tests/protocol`) belong
//! to the package that users name, where a feature would be theirs too. Nothing else calls it, so a
//! user's program does not contain it.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Driven;
use super::events::{Events, Listener};
use super::time::Time;
use crate::backend::{Mode, Owner, Request};
use crate::limits::DEFAULT_REQUEST_TIMEOUT;
use crate::store::{Context, Failure, Store, Waited, Waiter};

/// This request, as it is released after its body has been done.
pub fn done(request: &Request, remembered: Duration) -> Request {
    request.clone().done(Some(remembered))
}

/// An open store, and the messages that it sends unasked.
pub struct Bare<S: Store> {
    pub store: S,
    events: Events,
    said: mpsc::UnboundedReceiver<Said>,
    _tasks: DropGuard,
}

/// A message that a store has sent unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The owner of this place was granted the lock.
    Granted { key: String, place: String },
    /// A lock is free, or may be.
    Freed { key: String },
    /// Messages may have been missed.
    Missed,
}

/// Opens a store on the current runtime, as its engine does.
#[expect(private_bounds, reason = "it is called with backends of this crate")]
pub async fn open<D>(backend: D) -> Result<Bare<impl Store<Record = ()>>, Failure>
where
    D: Driven<Store: Store<Record = ()>>,
{
    let time = Time::of_the_machine(Handle::current());
    let stopped = CancellationToken::new();
    let events = Events::new(time.clone(), D::Store::DEAD_AFTER);
    let context = Context {
        time,
        events: events.clone(),
        request_timeout: DEFAULT_REQUEST_TIMEOUT,
        label: None,
        stopped: stopped.clone(),
    };
    let (says, said) = mpsc::unbounded_channel();
    events.set_listener(Hears(says));
    let config = D::Store::complete(backend.engine().config.clone(), DEFAULT_REQUEST_TIMEOUT);
    let bare = Bare {
        store: D::Store::open(config.await.map_err(Failure::refused)?, context),
        events,
        said,
        _tasks: stopped.drop_guard(),
    };
    let limit = bare.events.time().after(DEFAULT_REQUEST_TIMEOUT);
    bare.store.check(limit).await?;
    Ok(bare)
}

impl<S: Store> Bare<S> {
    /// Marks this request as held by this process, so that the store does not give up what the
    /// request has there.
    pub fn knows(&self, request: &Request) {
        let request = request.clone();
        self.events.holders().insert(request.owner, request);
    }

    /// This process no longer knows this owner.
    pub fn forgets(&self, owner: Owner) {
        self.events.holders().remove(owner);
    }

    /// A key that these owners wait for, as it is rechecked for the first time.
    pub fn waited(&self, key: &str, waiters: impl Iterator<Item = (Owner, Mode)>) -> Waited<S> {
        let now = self.events.time().now();
        Waited {
            key: key.into(),
            waiters: waiters
                .map(|(owner, mode)| Waiter::of(owner, mode, now))
                .collect(),
            seen: S::Seen::default(),
            refused: None,
        }
    }

    /// The next message, if one comes within this time. A zero time returns only a message that is
    /// there already.
    pub async fn says(&mut self, within: Duration) -> Option<Said> {
        if within.is_zero() {
            return self.said.try_recv().ok();
        }
        tokio::time::timeout(within, self.said.recv()).await.ok()?
    }
}

impl<S: Store> Drop for Bare<S> {
    fn drop(&mut self) {
        self.store.close();
    }
}

struct Hears(mpsc::UnboundedSender<Said>);

impl Listener for Hears {
    fn freed(&self, key: &str) {
        let _ = self.0.send(Said::Freed { key: key.into() });
    }

    fn missed(&self) {
        let _ = self.0.send(Said::Missed);
    }

    fn granted(&self, key: &str, place: &str, _: Option<Request>) {
        let (key, place) = (key.into(), place.into());
        let _ = self.0.send(Said::Granted { key, place });
    }
}
