//! The commands of each operation that the engine asks of memcached.
//!
//! An `add` whose answer was lost may be sent again. If an item exists then, an extension shows
//! whether it belongs to this owner.

use std::time::{Duration, Instant, SystemTime};

use futures_util::{FutureExt, StreamExt, stream};
use tokio::task::JoinHandle;

use super::connection::{Owned, Version};
use super::errors::{self, Failed};
use super::expiry;
use super::fairness::FairnessPauses;
use super::names;
use super::server::{CONNECTIONS, Sent, Server};
use super::settings::Settings;
use super::watch::{self, Seen};
use crate::backend::{
    BackendError, BackendErrorKind, Capabilities, Finding, Listed, LockInfo, Mode, Protocol,
    Renewed, Request, Servers,
};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::store::{
    Abandoned, Applied, Attempt, Attempted, Break, Context, Due, Ending, Failure, Followed, Freed,
    Granted, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want,
};

/// A renewal waits for its answer for a sixth of the shortest ttl, but at least this long, and
/// never longer than other commands do.
const RENEWAL_PATIENCE: Duration = Duration::from_millis(500);

/// One server, and what this process knows about its locks.
pub(crate) struct MemcachedStore {
    server: Server,
    fairness: FairnessPauses,
    events: Events,
}

/// What an operation remembers between its attempts.
#[derive(Default)]
pub(crate) struct Notes {
    /// An `add` that has no answer yet.
    in_flight: Option<Sent<Option<Version>>>,
    /// An `add` was never answered, so an existing item may be ours.
    in_doubt: bool,
}

impl Store for MemcachedStore {
    type Config = Settings;
    /// With the number of the item, a lease is extended or given back in one round trip. Without
    /// it, the item is read first; so a missing number costs time and nothing else.
    type Record = Option<Version>;
    type Notes = Notes;
    type Flight = JoinHandle<Result<Option<Version>, Failed>>;
    type Watch = std::convert::Infallible;
    type Seen = Seen;

    const LOOKS: Looks = Looks::Each;
    const BEAT: Option<Duration> = None;

    fn open(settings: Settings, context: Context) -> Self {
        Self {
            server: Server::new(settings, &context),
            fairness: FairnessPauses::default(),
            events: context.events,
        }
    }

    /// Opening a connection already checks that the server numbers its items. This checks whether
    /// the server keeps them.
    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        let said = self.server.exchange(deadline, |c| c.statistics().boxed());
        if let Some(evicted) = said.await?.evicted(&self.server.reach.settings) {
            tracing::warn!(target: "dlock::store", "{evicted}");
        }
        Ok(())
    }

    async fn examine(&self, deadline: Deadline) -> Vec<Finding> {
        let asked_at = SystemTime::now();
        let asked = self.server.exchange(deadline, |c| c.statistics().boxed());
        let said = asked.await;
        let (settings, seen) = (&self.server.reach.settings, [asked_at, SystemTime::now()]);
        said.map(|said| said.findings(settings, seen))
            .unwrap_or_default()
    }

    fn close(&self) {
        self.server.close();
    }

    fn capabilities(_: &Settings) -> Capabilities {
        Capabilities {
            // For a shorter ttl, the time added by whole seconds would exceed the lease.
            min_ttl: Duration::from_secs(3),
            max_ttl: expiry::LONGEST,
            ttl_step: Duration::from_secs(1),
            max_key_bytes: names::MAX_KEY_BYTES,
            once: true,
            ..Capabilities::new("memcached")
        }
    }

    fn servers(settings: &Settings) -> Option<Servers> {
        Some(Servers::new(Protocol::Memcached, [settings.address()]))
    }

    fn opening(&self, _: &Request) -> Opening {
        Opening::Try
    }

    fn hold_back(&self, request: &Request) -> Option<Duration> {
        self.fairness.pause(&request.key, self.time().now())
    }

    async fn take(
        &self,
        request: &Request,
        _: Want,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        if request.mode != Mode::Write {
            return Err(Failure::refused(BackendError::new(
                BackendErrorKind::Unsupported,
                "memcached has no read locks; use mode \"write\"",
            )));
        }
        let seconds = expiry::seconds(request.ttl).map_err(Failure::refused)?;
        let patience = self.server.reach.patience;
        let mut asks_again = true;
        loop {
            let (lock, in_flight) = (owned(request), &mut notes.in_flight);
            let add = self.server.ask(deadline, patience, in_flight, move |c| {
                c.add(lock, seconds).boxed()
            });
            let sent_at = match add.await {
                Ok((Some(version), sent_at)) => return Ok(granted(version, sent_at)),
                Ok((None, sent_at)) => sent_at,
                Err(failure) => {
                    notes.in_doubt |= matches!(failure.applied, Applied::Unknown { .. });
                    return Err(failure);
                }
            };
            // If an `add` without an answer has taken the lock, extend it to a full lease.
            let ours = match notes.in_doubt {
                true => Box::pin(self.extend(request, None, patience, deadline)).await?,
                false => None,
            };
            if let Some((version, sent_at)) = ours {
                return Ok(granted(version, sent_at));
            }
            self.events.answered(sent_at);
            match self.is_done(&request.key, deadline).await? {
                Some(true) => return Ok(Take::Done),
                // The item may have been a mark that has just expired, so nobody has the lock.
                // Asks again only once, since others may come and go.
                None if std::mem::take(&mut asks_again) => {}
                Some(false) | None => return Ok(Take::Busy),
            }
        }
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        // The answers are reported together: a missing one must not use up the time of the
        // others.
        let shortest = due.iter().map(|due| due.request.ttl).min();
        let patience = (shortest.unwrap_or_default() / 6).max(RENEWAL_PATIENCE);
        let patience = patience.min(self.server.reach.patience);
        // Concurrently, as far as there are connections.
        let extend = |due| self.renew_one(due, patience, deadline);
        let extensions: Vec<_> = due.iter_mut().map(extend).collect();
        stream::iter(extensions)
            .buffered(CONNECTIONS)
            .collect()
            .await
    }

    async fn release(
        &self,
        request: &Request,
        record: Option<&Option<Version>>,
        ending: Ending,
        Attempt { deadline, .. }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let (lock, known) = (owned(request), record.copied().flatten());
        let freed = match ending {
            Ending::Done(time) => {
                let seconds = expiry::seconds(time).map_err(Failure::refused)?;
                let marked = self
                    .server
                    .exchange(deadline, move |c| c.mark(lock, known, seconds).boxed());
                return marked.await;
            }
            Ending::Released | Ending::Left | Ending::Outvoted => {
                self.server
                    .exchange(deadline, move |c| c.delete(lock, known).boxed())
                    .await?
            }
        };
        if ending == Ending::Released {
            self.fairness.given_back(&request.key, self.time().now());
        }
        Ok(freed)
    }

    async fn forget(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<bool> {
        let name = names::lock(key);
        self.server
            .exchange(attempt.deadline, move |c| c.forget(name).boxed())
            .await
    }

    async fn break_off(&self, broken: &Break, attempt: Attempt<'_, Self>) -> Attempted<Freed> {
        let holder = broken.only_holder("memcached")?;
        let lock = Owned {
            name: names::lock(&broken.key),
            owner: holder.owner.clone(),
        };
        self.server
            .exchange(attempt.deadline, move |c| c.delete(lock, None).boxed())
            .await
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        errors::silent(&self.server.reach.settings, for_long)
    }

    fn abandon(&self, _: &Request, mut notes: Notes, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(notes.in_flight.as_mut().and_then(Sent::leave))
    }

    async fn follow(&self, flight: Self::Flight, _: &Request) -> Followed {
        match flight.await {
            Ok(Ok(None)) => Followed::Settled,
            Ok(Ok(Some(_))) => Followed::Run,
            Ok(Err(failed)) if !failed.is_in_doubt() => Followed::Settled,
            // Or its runtime has ended, and the command with it.
            Ok(Err(_)) | Err(_) => Followed::Unknown,
        }
    }

    fn late(&self, request: &Request, _: Option<&Option<Version>>, sent_at: Instant) -> Late {
        let lasts = expiry::seconds(request.ttl).map_or(request.ttl, Duration::from_secs);
        Late::Until(Deadline::from(sent_at, lasts))
    }

    fn forgotten() -> Option<Option<Version>> {
        Some(None)
    }

    fn pace(&self, seen: &mut Seen) -> Duration {
        seen.next_pause(self.time())
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        watch::look_at(&self.server, waited, deadline).await
    }

    fn stored_as(&self, key: &str) -> Vec<String> {
        vec![names::shown(key)]
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        let held = self
            .server
            .locks(vec![names::lock(key)], attempt.deadline)
            .await;
        held.map(|mut held| held.pop())
    }

    async fn list_some(
        &self,
        prefix: &str,
        most: usize,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Option<Listed>> {
        let listed = self.server.list(prefix, most, attempt.deadline).await;
        listed.map(Some)
    }
}

impl MemcachedStore {
    /// Whether the item is a mark and not a lock: the answer to `add` says only that an item
    /// exists. `None` if there is no item any more.
    async fn is_done(&self, key: &str, deadline: Deadline) -> Result<Option<bool>, Failure> {
        let items = self.server.read(vec![names::lock(key)], deadline).await?;
        let mut values = items.into_iter().filter_map(|item| item.data);
        Ok(values.next().map(|value| names::done_by(&value).is_some()))
    }

    async fn renew_one(
        &self,
        due: &mut Due<Self>,
        patience: Duration,
        deadline: Deadline,
    ) -> Result<Renewed, Failure> {
        // After a failure the record is missing, and so the item is read before it is extended
        // again.
        let known = due.record.take();
        if self.time().has_passed(deadline) {
            // Other renewals of the batch have used up the time.
            return Err(Failure::not_sent());
        }
        let extended = self.extend(&due.request, known, patience, deadline);
        let Some((version, sent_at)) = extended.await? else {
            return Ok(Renewed::Gone);
        };
        due.record = Some(version);
        Ok(Renewed::Extended {
            sent_at: sent_at.into(),
        })
    }

    /// Extends a lease; it then lasts its ttl from when the command was sent. `None`: there is
    /// none.
    async fn extend(
        &self,
        request: &Request,
        known: Option<Version>,
        patience: Duration,
        deadline: Deadline,
    ) -> Result<Option<(Version, Instant)>, Failure> {
        let lock = owned(request);
        let seconds = expiry::seconds(request.ttl).map_err(Failure::refused)?;
        let mut sent = None;
        let extended = self.server.ask(deadline, patience, &mut sent, move |c| {
            c.extend(lock, seconds, known).boxed()
        });
        let (version, sent_at) = extended.await?;
        Ok(version.map(|version| (version, sent_at)))
    }

    fn time(&self) -> &Time {
        &self.server.reach.time
    }
}

fn granted(version: Version, sent_at: Instant) -> Take<MemcachedStore> {
    Take::Granted(Granted {
        token: 0,
        sent_at,
        record: Some(version),
    })
}

fn owned(request: &Request) -> Owned {
    Owned {
        name: names::lock(&request.key),
        owner: request.owner.to_string(),
    }
}
