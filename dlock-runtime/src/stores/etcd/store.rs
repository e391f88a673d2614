//! The operations that the engine asks of etcd: a key for each request, and the lowest
//! create-revision holds the lock.
//!
//! A waiter watches the key before its own and no other, as etcd's own `concurrency.Mutex` does;
//! and its own key, which may be deleted or end with its lease. A waiter for permits, or behind
//! one, cannot know which key it waits for. For all of these in a process, one watch is set on the
//! whole queue (`watches`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};

use super::batches::{Batches, Write};
use super::errors;
use super::inspect::Listing;
use super::leases::Leases;
use super::members::Members;
use super::places::{Name, Places};
use super::queue::{Asking, Fate, Key, Question, QueuePosition, has_deleted, of_existing_key};
use super::settings::{Recipe, Settings};
use super::survey::Survey;
use super::waiting::Awaited;
use super::watches::{Listening, Watches};

use crate::backend::origin::unix_ms;
use crate::backend::{
    BackendError, Capabilities, Finding, Listed, LockInfo, Protocol, Renewed, Request, Servers,
    TokenTier,
};
use crate::deadline::Deadline;
use crate::store::{
    Abandoned, Applied, Attempt, Attempted, Break, Context, Due, Ending, Failure, Followed, Freed,
    Granted, Late, LeftBehind, Looks, Opening, Scope, Store, Take, Waited, Want,
};
use crate::token::of_transaction;

/// One cluster, and what this process has there.
pub(crate) struct EtcdStore {
    pub(super) members: Arc<Members>,
    pub(super) leases: Arc<Leases>,
    pub(super) batches: Arc<Batches>,
    places: Places,
    watches: Arc<Watches>,
}

/// What a request has, and remembers between its attempts.
#[derive(Default)]
pub(crate) struct Notes {
    /// The request's key. It may be there as soon as this is set: there is no await between that
    /// and the write.
    key: Option<Key>,
    /// The number of keys before this one. It is part of their values, so that no two are the same.
    round: u32,
    /// The request was behind others in an earlier round.
    has_waited: bool,
    /// The write of the key, on its way. It goes on when the caller leaves.
    put: Option<Asking>,
    listening: Option<Listening>,
    listing: Option<Listing>,
    survey: Option<Box<Survey>>,
}

impl Store for EtcdStore {
    type Config = Settings;
    type Record = Key;
    type Notes = Notes;
    /// A write whose caller has left, and its key.
    type Flight = (Asking, Key);
    type Watch = ();
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    /// A place lasts as long as its lease, which is kept alive.
    const BEAT: Option<Duration> = None;
    /// The lease goes on for other locks, so the engine ends a lock.
    const EXPIRES: bool = false;
    const ON_MANAGER: bool = true;
    /// A write has a limit of its own.
    const FLIGHT_LIMIT: Duration = Duration::MAX;

    fn open(settings: Settings, context: Context) -> Self {
        let members = Arc::new(Members::new(settings, context.clone()));
        let watches = Watches::new(Arc::clone(&members));
        context.spawn(Arc::clone(&watches).run());
        Self {
            leases: Leases::new(Arc::clone(&members)),
            batches: Batches::new(&members),
            places: Places::new(),
            members,
            watches,
        }
    }

    /// Checks that locks can be read.
    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        let prefix = &*self.members.settings.names.prefix;
        let options = GetOptions::new().with_prefix().with_count_only();
        let count = |mut client: Client| async move { client.get(prefix, Some(options)).await };
        self.members.ask(deadline, count).await?;
        Ok(())
    }

    async fn examine(&self, deadline: Deadline) -> Vec<Finding> {
        self.members.look_at_each(deadline).await
    }

    /// A lock that `min_hold` keeps has a lease that is not among these.
    async fn shut_down(&self, _: bool, deadline: Deadline) {
        self.leases.stop(deadline).await;
    }

    fn capabilities(settings: &Settings) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: settings.recipe == Recipe::Queue,
            permits: settings.recipe == Recipe::Queue,
            permits_with: "leave `recipe=lock-service` out of its URL (the server's own lock lets \
                in one)",
            once: settings.recipe == Recipe::Queue,
            once_with: "leave `recipe=lock-service` out of its URL",
            ..Capabilities::new("etcd")
        }
    }

    fn servers(settings: &Settings) -> Option<Servers> {
        let servers = Servers::new(Protocol::Etcd, settings.hosts.iter().cloned());
        Some(servers.encrypted(settings.encrypted))
    }

    /// The transaction that writes a place also shows who is ahead. If nobody is, the place is the
    /// lock.
    fn opening(&self, _: &Request) -> Opening {
        Opening::Place
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let waits = matches!(want, Want::Queue { .. });
        let asked = &Question {
            request,
            lock: self.members.settings.names.lock(&request.key),
            waits,
            deadline,
            watches: &self.watches,
        };
        let has_waited = notes.has_waited || notes.listening.is_some();
        let Notes { key, put, .. } = notes;
        let key = match key {
            Some(key) => key,
            none => none.insert(self.key(asked, notes.round).await?),
        };
        if key.lease().is_gone() {
            return Ok(notes.lost());
        }
        let asked_at = self.members.time.now();
        // The lease is confirmed while the key is written.
        key.lease().demand(key.ttl, asked_at);
        let mut stands = key.enter(&self.batches, asked, put).await?;
        let by_call = waits && self.members.settings.recipe == Recipe::LockService;
        if by_call && stands == QueuePosition::First {
            match Box::pin(key.call(&self.batches, asked)).await {
                Ok(now) => stands = now,
                Err(failure) => return Err(notes.call_failed(failure)),
            }
        }
        if stands == QueuePosition::First && has_waited {
            key.since.get_or_insert_with(unix_ms);
        }
        Ok(match stands {
            QueuePosition::First => match self.granted(key, asked_at, asked.deadline).await? {
                Some(granted) => Take::Granted(granted),
                None => notes.lost(),
            },
            QueuePosition::Behind { ahead, seen_at } => {
                // A request that does not wait has a place only if an earlier write has made it.
                if waits {
                    let own = (key.name.key.clone(), key.create_revision);
                    let awaited = Awaited { own, ahead };
                    let (listening, queue) = (&mut notes.listening, asked.lock.queue());
                    let watches = &self.watches;
                    watches.keep_listening(listening, request, awaited, queue, seen_at);
                }
                Take::Queued
            }
            QueuePosition::NotWritten => Take::Busy,
            QueuePosition::Contended => Take::Contended,
            QueuePosition::Done => Take::Done,
            QueuePosition::Nowhere => {
                if waits && self.is_taken_out(&asked.lock, key, deadline).await? {
                    return Err(Failure::refused(BackendError::taken_out()));
                }
                notes.lost()
            }
            QueuePosition::Anothers => {
                self.places.start_new_names(&key.name);
                notes.lost()
            }
        })
    }

    /// The answers of a batch are told together, and its short leases must not end meanwhile. There
    /// is time to ask two members. etcd has no lease of less than a second, but `min_hold` may end
    /// sooner.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        let shortest = shortest.max(Duration::from_secs(1));
        request_timeout.min(shortest / 2)
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        self.renew_all(due, deadline).await
    }

    async fn release(
        &self,
        request: &Request,
        record: Option<&Key>,
        ending: Ending,
        Attempt { deadline, .. }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let Some(key) = record else {
            return Ok(Freed::NotHeld);
        };
        if let Ending::Done(time) = ending {
            return self.mark(request, key, time, deadline).await;
        }
        let txn = if ending == Ending::Released {
            key.delete(key.is_there())
        } else {
            // A retired lease can end now, if this was its last user.
            key.lease_ref.leave();
            key.delete_whenever_written()
        };
        let write = Write {
            lock: self.members.settings.names.lock(&request.key).queue,
            lease: None,
            txn,
        };
        let written = self.batches.write(write, deadline).await;
        let written = written.inspect_err(|failed| {
            if ending == Ending::Left {
                key.may_stay(failed);
            }
        })?;
        Ok(Freed::of(has_deleted(&written.answer)))
    }

    async fn raise_tokens(&self, floor: u64, deadline: Deadline) -> Attempted<()> {
        self.members.raise_floor(floor, deadline).await
    }

    async fn forget(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<bool> {
        self.forget_mark(key, attempt.deadline).await
    }

    async fn break_off(&self, broken: &Break, attempt: Attempt<'_, Self>) -> Attempted<Freed> {
        self.break_key(broken, attempt.deadline).await
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        errors::silent(&self.members.settings.place(), for_long)
    }

    fn abandon(&self, _: &Request, notes: Notes, _: &LeftBehind) -> Abandoned<Self> {
        let flight = notes.put.zip(notes.key.clone());
        let record = notes.key;
        Abandoned { flight, record }
    }

    async fn follow(&self, (put, mut key): Self::Flight, _: &Request) -> Followed {
        match put.await {
            Ok(written) => match key.fate(&written) {
                Some(Fate::NotWritten | Fate::Anothers) => Followed::Settled,
                _ => Followed::Run,
            },
            Err(failed) if failed.applied == Applied::No => Followed::Settled,
            // It has refused, and nothing is on its way.
            Err(failed) if failed.applied == Applied::Answered => Followed::Run,
            Err(_) => Followed::Unknown,
        }
    }

    /// A put may wait in the socket of a member that is paused, so no deletion is sure to be the
    /// last. But nothing can be attached to a lease that has ended. So nobody else gets this lease,
    /// which can then end.
    fn late(&self, _: &Request, record: Option<&Key>, _: Instant) -> Late {
        match record {
            Some(key) => {
                key.lease().retire();
                Late::In(key.lease().scope())
            }
            None => Late::Never,
        }
    }

    fn scope(key: &Key) -> Option<Scope> {
        (!key.moved).then(|| key.lease().scope())
    }

    fn has_ended(&self, scope: Scope) -> bool {
        self.leases.has_ended(scope)
    }

    /// Looks at the keys that are watched, which include the waiters' own. The watches wake the
    /// waiters themselves.
    async fn recheck(&self, _: &mut [Waited<Self>], _: bool, deadline: Deadline) -> Attempted<()> {
        self.watches.look(deadline).await
    }

    fn stored_as(&self, key: &str) -> Vec<String> {
        let lock = self.members.settings.names.lock(key);
        vec![lock.mark(), lock.queue]
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        let lock = self.members.settings.names.lock(key);
        let mut listing = Listing::of_lock(&self.members, &lock, attempt.deadline).await?;
        loop {
            if let Some(mut locks) = listing.go_on(&self.members, attempt.deadline).await? {
                return Ok(locks.pop());
            }
        }
    }

    async fn list(
        &self,
        prefix: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        if let Some(listing) = &mut notes.listing {
            return Ok(listing.go_on(&self.members, deadline).await?);
        }
        let listing = Listing::read(&self.members, prefix, deadline).await?;
        notes.listing = Some(listing);
        Ok(None)
    }

    async fn list_some(
        &self,
        prefix: &str,
        most: usize,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Listed>> {
        let begin = || Box::new(Survey::of(&self.members, prefix));
        let survey = notes.survey.get_or_insert_with(begin);
        survey.go_on(&self.members, most, deadline).await
    }
}

impl EtcdStore {
    /// A key for the request, with a name that no other request has meanwhile.
    async fn key(&self, asked: &Question<'_>, round: u32) -> Result<Key, Failure> {
        let (request, lock) = (asked.request, &asked.lock);
        let value = match round {
            0 => request.owner.to_string(),
            again => format!("{}.{again}", request.owner),
        };
        let private = self.members.settings.recipe == Recipe::LockService;
        let (leases, deadline) = (&self.leases, asked.deadline);
        let lease_ref = leases.take(request.ttl, private, deadline).await?;
        let name = if private {
            Name::given(lock.of_lock_service(lease_ref.lease.id), value)
        } else {
            self.places.take(&lock.places(request.mode), value)
        };
        Ok(Key {
            name,
            lease_ref: Arc::new(lease_ref),
            create_revision: 0,
            ttl: request.ttl,
            fixed: None,
            moved: false,
            since: None,
            says_since: false,
            floor: 0,
        })
    }

    /// The key is the first, so the request holds the lock if the lease was confirmed just now: it
    /// is promised its whole ttl. `None`: the lease has ended.
    async fn granted(
        &self,
        key: &Key,
        asked_at: Instant,
        deadline: Deadline,
    ) -> Result<Option<Granted<Self>>, Failure> {
        let oldest = key.lease().demand(key.ttl, asked_at);
        let confirmed = key.lease().confirmed_since(oldest, deadline).await;
        let Some(sent_at) = confirmed.map_err(of_existing_key)? else {
            return Ok(None);
        };
        let unexpected_answer = || errors::unexpected_answer(&self.members.settings.place());
        Ok(Some(Granted {
            token: of_transaction(key.create_revision, key.floor).ok_or_else(unexpected_answer)?,
            sent_at,
            record: key.clone(),
        }))
    }
}

impl Notes {
    /// The lease of a call ends with the place, whatever the call has done or may still do.
    fn call_failed(&mut self, failure: Failure) -> Failure {
        self.next_round();
        failure.with(Applied::No)
    }

    /// The key is not there. A put without an answer may still write it, but not with a lease that
    /// has ended.
    fn lost(&mut self) -> Take<EtcdStore> {
        let key = self.next_round();
        Take::PlaceLost(key.filter(|key| !key.lease().is_gone()))
    }

    /// The request takes another key from here on.
    fn next_round(&mut self) -> Option<Key> {
        let before = std::mem::take(self);
        self.round = before.round + 1;
        self.has_waited = before.has_waited || before.listening.is_some();
        before.key
    }
}
