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

use super::acquire::Patience;
use super::core::{Caller, Core, Granted};
use super::errors::{self, Verdict};
use super::held::Place;
use super::leases::{Lease, Tenancy};
use super::members::{Answer, Failure};
use super::names::LockName;
use super::watches::Listening;
use crate::backend::{BackendError, Grant, Mode, Request};
use crate::token::TOKENS_PER_GRANT;

/// Where a request stands in the queue.
#[derive(Debug, PartialEq, Eq)]
enum Stands {
    /// It holds the lock.
    First,
    /// Somebody is ahead; this key is the last of those.
    Behind { key: String, revision: i64 },
    /// Its key is not there any more.
    Nowhere,
}

/// How an attempt to take the lock ends.
pub(super) enum Attempt {
    Had,
    /// Nothing is left of the request.
    Busy,
    /// The lease has ended, or the key.
    Lost,
}

/// How a wait ends.
pub(super) enum Turn {
    Comes,
    /// The place in the queue was lost.
    Lost,
    /// The caller has left.
    Left,
}

/// A request's key at the servers, or on its way there. Deleted when dropped
/// before it is [granted](Self::granted).
pub(super) struct Standing {
    core: Arc<Core>,
    tenancy: Option<Tenancy>,
    key: String,
    create_revision: i64,
    /// A request may be done yet that makes the key.
    ghost: bool,
    /// The key may be there.
    there: bool,
    /// The lease has to have been confirmed since then.
    oldest: Instant,
}

impl Standing {
    pub(super) fn new(core: &Arc<Core>, tenancy: Tenancy, key: String) -> Self {
        Self {
            core: Arc::clone(core),
            tenancy: Some(tenancy),
            key,
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
        TxnOp::put(self.key.as_str(), "", Some(options))
    }

    fn is_new(&self) -> Compare {
        Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0)
    }

    fn own(&self) -> TxnOp {
        TxnOp::get(self.key.as_str(), Some(GetOptions::new().with_keys_only()))
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
        if let Some(own) = first(&answer.value, 0) {
            // An attempt before this one took it, or a ghost of it did.
            self.create_revision = own.create_revision();
            return Ok(match self.look(lock, request.mode, patience).await? {
                Stands::First => Attempt::Had,
                Stands::Behind { .. } => Attempt::Busy,
                Stands::Nowhere => Attempt::Lost,
            });
        }
        // The servers say that they wrote nothing.
        self.there = self.ghost;
        Ok(Attempt::Busy)
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
            self.read(&answer.value, 1)
        } else if let Some(own) = first(&answer.value, 0) {
            self.create_revision = own.create_revision();
            self.look(lock, request.mode, patience).await?
        } else {
            return Err(errors::nonsense(self.core.members.place()));
        };
        let Some(lease) = self.lease().cloned() else {
            return Ok(Turn::Lost);
        };
        let mut own = None;
        loop {
            let (ahead, revision) = match stands {
                Stands::First => return Ok(Turn::Comes),
                Stands::Nowhere => return Ok(Turn::Lost),
                Stands::Behind { key, revision } => (key, revision),
            };
            request.is_held_by_somebody();
            let watches = &self.core.watches;
            let ahead = watches.listen(&ahead, revision);
            // Its end may have been the reason to look.
            own = own.or_else(|| Some(watches.listen(&self.key, revision)));
            tokio::select! {
                biased;
                () = caller.left() => return Ok(Turn::Left),
                () = lease.gone() => return Ok(Turn::Lost),
                () = told(own.as_ref()) => own = None,
                () = ahead.told() => {}
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
            Compare::create_revision(self.key.as_str(), CompareOp::Equal, self.create_revision);
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
        Ok(self.read(&answer.value, 0))
    }

    /// Who is ahead by these answers, from the one with this number on.
    fn read(&self, answer: &TxnResponse, from: usize) -> Stands {
        let revision = answer.header().map_or(0, |header| header.revision());
        let answers = answer.op_responses();
        let keys = answers[from.min(answers.len())..]
            .iter()
            .flat_map(|answer| match answer {
                TxnOpResponse::Get(found) => found.kvs(),
                _ => &[],
            });
        let ahead = keys.filter(|found| found.create_revision() < self.create_revision);
        match ahead.max_by_key(|found| found.create_revision()) {
            None => Stands::First,
            Some(found) => Stands::Behind {
                key: String::from_utf8_lossy(found.key()).into_owned(),
                revision,
            },
        }
    }

    /// Whether the key is there, which somebody else has written for us.
    pub(super) async fn find(&mut self, patience: &Patience) -> Result<bool, BackendError> {
        let (key, members) = (self.key.clone(), &self.core.members);
        let options = GetOptions::new().with_keys_only();
        let read = |mut client: Client| {
            let (key, options) = (key.clone(), options.clone());
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
        let tenancy = Arc::new(tenancy);
        let place = Place {
            key: self.key.as_str().into(),
            create_revision: self.create_revision,
            ttl: request.ttl,
            ghost: self.ghost.then(|| Arc::clone(&tenancy)),
            tenancy: Some(tenancy),
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
            let key = std::mem::take(&mut self.key);
            tenancy
                .lease()
                .give_back(key, self.ghost, self.core.returns.count());
        }
    }
}

async fn told(listening: Option<&Listening>) {
    match listening {
        Some(listening) => listening.told().await,
        None => std::future::pending().await,
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

/// The revision that a transaction made.
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
