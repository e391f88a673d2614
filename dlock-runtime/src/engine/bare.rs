//! A store without its engine, for tests of its protocol: they ask it question by
//! question, and say themselves when.

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

/// This request, to be released as one whose body has been done.
pub fn done(request: &Request, remembered: Duration) -> Request {
    request.clone().done(Some(remembered))
}

/// An open store, and what it says of its own accord.
pub struct Bare<S: Store> {
    pub store: S,
    events: Events,
    said: mpsc::UnboundedReceiver<Said>,
    _tasks: DropGuard,
}

/// What a store has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The owner who has this place was granted the lock.
    Granted { key: String, place: String },
    /// A lock is free, or may be.
    Freed { key: String },
    /// Messages may have been missed.
    Missed,
}

/// Opens a store on the runtime that this is called on, as its engine does.
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
    /// This process has this request, until it ends: what it has at the store is not
    /// for the store to give up.
    pub fn knows(&self, request: &Request) {
        let request = request.clone();
        self.events.holders().insert(request.owner, request);
    }

    /// This process knows nothing of this owner any more.
    pub fn forgets(&self, owner: Owner) {
        self.events.holders().remove(owner);
    }

    /// A lock that these wait for, to be looked at for the first time.
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

    /// What it says next, or has said, if it says something in this time.
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
