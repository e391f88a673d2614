//! A request's place in the queue for a lock.
//!
//! A waiter watches the one before it, and nobody else (etcd's own
//! `concurrency.Mutex` does the same); and its own key, which may be deleted or
//! end with its lease. Nothing is believed because a watch said so: what counts
//! is a transaction that finds the own key in its place and nobody ahead.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};
use tokio::time::Instant;

use super::core::{Caller, Core, Granted};
use super::errors::{self, Verdict};
use super::held::Place;
use super::leases::{Lease, Tenancy};
use super::members::{Answer, Failure};
use super::names::LockName;
use super::patience::Patience;
use super::places::Name;
use crate::backend::{BackendError, Grant, Mode, Request};
use crate::token::TOKENS_PER_GRANT;

/// Where a request stands in the queue.
#[derive(Debug, PartialEq, Eq)]
enum Stands {
    /// It holds the lock.
    First,
    /// Somebody is ahead.
    Behind(Ahead),
    /// Its key is not there any more.
    Nowhere,
}

/// The last of those who are ahead.
#[derive(Debug, PartialEq, Eq)]
struct Ahead {
    key: String,
    created: i64,
    /// The revision at which it was seen there.
    seen_at: i64,
}

/// How an attempt to take the lock ends.
pub(super) enum Attempt {
    Had,
    /// Nothing is left of the request.
    Busy,
    /// The lease has ended, or the key, or somebody else has its name.
    Lost,
}

/// Whose key it was that a transaction found in place of its own.
enum Found {
    Own,
    Anothers,
    Nothing,
}

/// How a wait ends.
pub(super) enum Turn {
    Comes,
    /// There is no place in the queue, or it was lost.
    Lost,
    /// The caller has left.
    Left,
}

/// A request's key at the servers, or on its way there. Deleted when dropped
/// before it is [granted](Self::granted).
pub(super) struct Standing {
    core: Arc<Core>,
    tenancy: Option<Tenancy>,
    name: Arc<Name>,
    create_revision: i64,
    /// A request may be done yet that makes the key.
    ghost: bool,
    /// The key may be there.
    there: bool,
    /// The lease has to have been confirmed since then.
    oldest: Instant,
}

impl Standing {
    pub(super) fn new(core: &Arc<Core>, tenancy: Tenancy, name: Arc<Name>) -> Self {
        Self {
            core: Arc::clone(core),
            tenancy: Some(tenancy),
            name,
            create_revision: 0,
            ghost: false,
            there: false,
            oldest: Instant::now(),
        }
    }

    /// Somebody else may write the key for us.
    pub(super) fn may_be_there(&mut self) {
        self.there = true;
    }

    fn lease(&self) -> Option<&Arc<Lease>> {
        self.tenancy.as_ref().map(Tenancy::lease)
    }

    fn put(&self) -> TxnOp {
        let lease = self.lease().map_or(0, |lease| lease.id());
        let options = PutOptions::new().with_lease(lease);
        TxnOp::put(self.name.key(), self.name.value(), Some(options))
    }

    fn is_new(&self) -> Compare {
        Compare::create_revision(self.name.key(), CompareOp::Equal, 0)
    }

    fn own(&self) -> TxnOp {
        TxnOp::get(self.name.key(), None)
    }

    /// A transaction that writes the key only if nobody is in the way: all keys
    /// of a range that is empty have no create-revision.
    fn take_if_free(&self, lock: &LockName, mode: Mode) -> Txn {
        let free = lock.ahead_of(mode).into_iter().map(|(first, end)| {
            Compare::create_revision(first, CompareOp::Equal, 0).with_range(end)
        });
        let compares: Vec<_> = std::iter::once(self.is_new()).chain(free).collect();
        Txn::new()
            .when(compares)
            .and_then([self.put()])
            .or_else([self.own()])
    }

    /// A transaction that writes the key, and says who is ahead.
    fn take_place(&self, lock: &LockName, mode: Mode) -> Txn {
        // The own key is the last of them, if it is one of them.
        let limit = if mode == Mode::Write { 2 } else { 1 };
        let ahead = lock
            .ahead_of(mode)
            .into_iter()
            .map(|(first, end)| last_of(first, end, limit, None));
        let operations: Vec<_> = std::iter::once(self.put()).chain(ahead).collect();
        Txn::new()
            .when([self.is_new()])
            .and_then(operations)
            .or_else([self.own()])
    }

    /// Sends the first transaction, while it is made sure that the lease lives.
    /// `None` if it does not.
    async fn enter(
        &mut self,
        request: &Request,
        patience: &Patience,
        txn: Txn,
    ) -> Result<Option<Answer<TxnResponse>>, BackendError> {
        let Some(lease) = self.lease().cloned() else {
            return Ok(None);
        };
        let core = Arc::clone(&self.core);
        let send = core.members.call_until(
            patience.since(),
            patience.deadline(),
            |mut client: Client| {
                let txn = txn.clone();
                async move { client.txn(txn).await }
            },
        );
        self.there = true;
        self.oldest = recently(request.ttl);
        let fresh = lease.confirmed_since(self.oldest, patience.deadline());
        let (answer, _) = tokio::join!(send, fresh);
        match answer {
            Ok(answer) => {
                self.ghost = answer.repeated;
                Ok(Some(answer))
            }
            Err(Failure {
                verdict: Verdict::LeaseNotFound,
                ..
            }) => {
                lease.end();
                Ok(None)
            }
            Err(failure) => {
                self.ghost = failure.unanswered;
                self.there = failure.unanswered;
                Err(failure.error)
            }
        }
    }

    /// Takes the lock if it is free.
    pub(super) async fn take(
        &mut self,
        lock: &LockName,
        request: &Request,
        patience: &Patience,
    ) -> Result<Attempt, BackendError> {
        let txn = self.take_if_free(lock, request.mode);
        let Some(answer) = self.enter(request, patience, txn).await? else {
            return Ok(Attempt::Lost);
        };
        if answer.value.succeeded() {
            self.create_revision = revision(&self.core, &answer.value)?;
            return Ok(Attempt::Had);
        }
        match self.found(&answer.value) {
            Found::Own => Ok(match self.look(lock, request.mode, patience).await? {
                Stands::First => Attempt::Had,
                Stands::Behind(_) => Attempt::Busy,
                Stands::Nowhere => Attempt::Lost,
            }),
            Found::Anothers => Ok(Attempt::Lost),
            Found::Nothing => Ok(Attempt::Busy),
        }
    }

    /// Whose key it is that was in the way.
    fn found(&mut self, answer: &TxnResponse) -> Found {
        match first(answer, 0) {
            // An attempt before this one wrote it.
            Some(key) if key.value() == self.name.value().as_bytes() => {
                self.create_revision = key.create_revision();
                Found::Own
            }
            found => {
                // The servers say that they wrote nothing.
                self.there = self.ghost;
                if found.is_none() {
                    return Found::Nothing;
                }
                self.name.is_anothers();
                Found::Anothers
            }
        }
    }

    /// Takes a place in the queue, and waits until nobody is ahead.
    pub(super) async fn wait_for_turn(
        &mut self,
        lock: &LockName,
        request: &Request,
        patience: &mut Patience,
        caller: &mut Caller,
    ) -> Result<Turn, BackendError> {
        let txn = self.take_place(lock, request.mode);
        let Some(answer) = self.enter(request, patience, txn).await? else {
            return Ok(Turn::Lost);
        };
        let mut stands = if answer.value.succeeded() {
            self.create_revision = revision(&self.core, &answer.value)?;
            self.read(&answer.value, 1)?
        } else {
            match self.found(&answer.value) {
                Found::Own => self.look(lock, request.mode, patience).await?,
                Found::Anothers => return Ok(Turn::Lost),
                Found::Nothing => return Err(errors::nonsense(self.core.members.place())),
            }
        };
        let Some(lease) = self.lease().cloned() else {
            return Ok(Turn::Lost);
        };
        let (mut ahead, mut own) = (None, None);
        loop {
            let next = match stands {
                Stands::First => return Ok(Turn::Comes),
                Stands::Nowhere => return Ok(Turn::Lost),
                Stands::Behind(next) => next,
            };
            request.is_held_by_somebody();
            let watches = &self.core.watches;
            let ahead = watches.keep_listening(&mut ahead, &next.key, next.created);
            let own = watches.keep_listening(&mut own, self.name.key(), self.create_revision);
            tokio::select! {
                biased;
                () = caller.left() => return Ok(Turn::Left),
                () = lease.gone() => return Ok(Turn::Lost),
                () = own.told(next.seen_at) => {}
                () = ahead.told(next.seen_at) => {}
            }
            patience.renew();
            self.oldest = recently(request.ttl);
            stands = self.look(lock, request.mode, patience).await?;
        }
    }

    /// Looks where the request stands.
    async fn look(
        &self,
        lock: &LockName,
        mode: Mode,
        patience: &Patience,
    ) -> Result<Stands, BackendError> {
        let before = self.create_revision - 1;
        let ahead: Vec<_> = lock
            .ahead_of(mode)
            .into_iter()
            .map(|(first, end)| last_of(first, end, 1, Some(before)))
            .collect();
        let mine =
            Compare::create_revision(self.name.key(), CompareOp::Equal, self.create_revision);
        let txn = Txn::new().when([mine]).and_then(ahead);
        let members = &self.core.members;
        let answer = members
            .call_until(
                patience.since(),
                patience.deadline(),
                |mut client: Client| {
                    let txn = txn.clone();
                    async move { client.txn(txn).await }
                },
            )
            .await?;
        if !answer.value.succeeded() {
            return Ok(Stands::Nowhere);
        }
        self.read(&answer.value, 0)
    }

    /// Who is ahead by these answers, from the one with this number on.
    fn read(&self, answer: &TxnResponse, from: usize) -> Result<Stands, BackendError> {
        let seen_at = revision(&self.core, answer)?;
        let answers = answer.op_responses();
        let keys = answers[from.min(answers.len())..]
            .iter()
            .flat_map(|answer| match answer {
                TxnOpResponse::Get(found) => found.kvs(),
                _ => &[],
            });
        let ahead = keys.filter(|found| found.create_revision() < self.create_revision);
        let last = ahead.max_by_key(|found| found.create_revision());
        Ok(match last {
            None => Stands::First,
            Some(found) => Stands::Behind(Ahead {
                key: String::from_utf8_lossy(found.key()).into_owned(),
                created: found.create_revision(),
                seen_at,
            }),
        })
    }

    /// Whether the key is there, which somebody else has written for us.
    pub(super) async fn find(&mut self, patience: &Patience) -> Result<bool, BackendError> {
        let members = &self.core.members;
        let read = |mut client: Client| {
            let key = self.name.key().to_owned();
            let options = GetOptions::new().with_keys_only();
            async move { client.get(key, Some(options)).await }
        };
        let answer = members
            .call_until(patience.since(), patience.deadline(), read)
            .await?;
        let own = answer.value.kvs().first();
        self.create_revision = own.map_or(0, KeyValue::create_revision);
        Ok(own.is_some())
    }

    /// The lock is held. `None`: it has been lost already.
    pub(super) async fn granted(
        mut self,
        request: &Request,
        patience: &Patience,
    ) -> Result<Option<Granted>, BackendError> {
        let Some(lease) = self.lease().cloned() else {
            return Ok(None);
        };
        // A request is promised the whole of its ttl.
        let deadline = patience.deadline();
        let confirmed = lease.confirmed_since(self.oldest, deadline).await;
        let Some(confirmed) = confirmed else {
            if lease.is_gone() {
                return Ok(None);
            }
            let place = self.core.members.place();
            return Err(errors::silent(place, patience.since().elapsed()));
        };
        let Some(tenancy) = self.tenancy.take() else {
            return Ok(None);
        };
        let place = Place {
            name: Arc::clone(&self.name),
            create_revision: self.create_revision,
            ttl: request.ttl,
            tenancy: Arc::new(tenancy),
            moved: false,
            ghost: self.ghost,
            ends: Instant::now() + request.ttl,
        };
        let held = &self.core.held;
        held.insert(request.owner, place);
        // Whoever clears what was lost with a lease may have been there before. If
        // it came after, the loss has been told.
        if lease.is_gone() && held.remove(request.owner).is_some() {
            return Ok(None);
        }
        let token = self.create_revision.unsigned_abs() * TOKENS_PER_GRANT;
        let grant = Grant::new(token.into(), confirmed);
        Ok(Some(Granted::new(grant, held, request.owner)))
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        if let Some(tenancy) = &self.tenancy
            && (self.there || self.ghost)
        {
            let (name, counted) = (Arc::clone(&self.name), self.core.returns.count());
            tenancy.lease().give_back(name, self.ghost, counted);
        }
    }
}

/// The last key of a range by create-revision, or the last few.
fn last_of(first: Vec<u8>, end: Vec<u8>, limit: i64, up_to: Option<i64>) -> TxnOp {
    let mut options = GetOptions::new()
        .with_range(end)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(limit)
        .with_keys_only();
    if let Some(revision) = up_to {
        options = options.with_max_create_revision(revision);
    }
    TxnOp::get(first, Some(options))
}

/// What the get with this number found first.
fn first(answer: &TxnResponse, number: usize) -> Option<KeyValue> {
    match answer.op_responses().into_iter().nth(number)? {
        TxnOpResponse::Get(mut found) => found.take_kvs().into_iter().next(),
        _ => None,
    }
}

/// The revision of the store after a transaction.
fn revision(core: &Core, answer: &TxnResponse) -> Result<i64, BackendError> {
    let header = answer.header();
    header
        .map(etcd_client::ResponseHeader::revision)
        .ok_or_else(|| errors::nonsense(core.members.place()))
}

/// A lease counts as new if it was confirmed within the last fiftieth of it.
pub(super) fn recently(ttl: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(ttl / 50).unwrap_or(now)
}
