//! Taking a lock: a key for each request, and the lowest create-revision holds.
//!
//! A waiter watches the one before it, and nobody else (etcd's own
//! `concurrency.Mutex` does the same); and its own key, which may be deleted or
//! end with its lease.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use etcd_client::{Client, TxnResponse};

use super::errors::{self, Failed, Verdict};
use super::inspect::Listing;
use super::leases::Leases;
use super::members::Members;
use super::places::{Name, Places};
use super::queue::{Ahead, Key, Question, Stands, is_there};
use super::service::LockCall;
use super::settings::Recipe;
use super::watches::{Listening, Watches};
use crate::deadline::Deadline;
use crate::store::{Abandoned, Applied, Behind, Failure, Followed, Granted, LeftBehind, Take};
use crate::token::TOKENS_PER_GRANT;

/// One cluster, and what this process has there.
pub(crate) struct EtcdStore {
    pub(super) members: Arc<Members>,
    pub(super) leases: Arc<Leases>,
    pub(super) places: Arc<Places>,
    pub(super) watches: Arc<Watches>,
}

/// What one request has, and remembers from question to question.
#[derive(Default)]
pub(crate) struct Attempt {
    key: Option<Key>,
    /// So many keys before this one. No two of a request say the same.
    round: u32,
    put: Option<Put>,
    /// A put of this key was never answered.
    in_doubt: bool,
    call: Option<LockCall>,
    own: Option<Listening>,
    ahead: Option<Listening>,
    pub(super) listing: Listing,
}

/// A transaction that writes a key, on its way. It goes on when its caller leaves.
type Put = Pin<Box<dyn Future<Output = Result<TxnResponse, Failed>> + Send>>;

/// A put that was left.
pub(crate) struct Flight {
    put: Put,
    key: Key,
}

impl EtcdStore {
    pub(super) async fn pursue(
        &self,
        asked: &Question<'_>,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let key = match attempt.key.take() {
            Some(key) if key.lease().is_gone() => return Ok(attempt.ended()),
            Some(key) => key,
            None => self.place(asked, attempt.round).await?,
        };
        let key = attempt.key.insert(key);
        let mut asked_at = self.members.time.now();
        let stands = if asked.waits && self.members.settings.recipe == Recipe::LockService {
            let begin = || LockCall::new(&self.members, &asked.lock, key.lease());
            let call = attempt.call.get_or_insert_with(begin);
            let stands = Box::pin(call.stands(&self.members, asked, key)).await;
            asked_at = self.members.time.now();
            stands.map_err(|failure| attempt.call_failed(failure))?
        } else if key.create_revision == 0 {
            // It is made sure that the lease lives while the key is written.
            key.lease().demand(key.ttl, asked_at);
            self.enter(asked, attempt).await?
        } else {
            key.look(&self.members, asked).await?
        };
        match stands {
            Stands::First => self.granted(asked_at, asked.deadline, attempt).await,
            Stands::Behind(ahead) if asked.waits => Ok(self.behind(ahead, attempt)),
            // A put before this one took the place.
            Stands::Behind(_) => Ok(Take::Queued),
            Stands::NotWritten => Ok(Take::Busy),
            Stands::Nowhere => Ok(attempt.lost()),
        }
    }

    /// A key for the request, in a name that no other has meanwhile.
    async fn place(&self, asked: &Question<'_>, round: u32) -> Result<Key, Failure> {
        let (request, lock) = (asked.request, &asked.lock);
        let value = match round {
            0 => request.owner.to_string(),
            again => format!("{}.{again}", request.owner),
        };
        let private = self.members.settings.recipe == Recipe::LockService;
        let (leases, deadline) = (&self.leases, asked.deadline);
        let lease_ref = leases.take(request.ttl, private, deadline).await?;
        let name = if private {
            let key = lock.of_lock_service(lease_ref.lease().id());
            // The call writes nothing into it.
            Name::given(key, if asked.waits { String::new() } else { value })
        } else {
            self.places.take(&lock.places(request.mode), value)
        };
        Ok(Key::new(name, lease_ref, request.ttl))
    }

    /// Writes the key.
    async fn enter(&self, asked: &Question<'_>, attempt: &mut Attempt) -> Result<Stands, Failure> {
        let Some(key) = &mut attempt.key else {
            return Ok(Stands::Nowhere);
        };
        let (members, deadline, txn) = (Arc::clone(&self.members), asked.deadline, key.take(asked));
        let put: Put = Box::pin(async move {
            let send = |mut client: Client| async move { client.txn(txn).await };
            members.ask(deadline, send).await
        });
        let written = attempt.put.insert(put).await;
        attempt.put = None;
        let written = match written {
            Ok(written) => written,
            Err(failed) if failed.verdict == Verdict::LeaseNotFound => {
                key.lease().end();
                return Ok(Stands::Nowhere);
            }
            Err(failed) => {
                attempt.in_doubt |= failed.is_in_doubt();
                return Err(failed.into());
            }
        };
        let nonsense = || errors::nonsense(&self.members.settings.place());
        match key.written(&written) {
            Ok(created) => {
                key.create_revision = created;
                if !written.succeeded() {
                    key.look(&self.members, asked).await
                } else if asked.waits {
                    key.stands(&written, 1).ok_or_else(nonsense)
                } else {
                    Ok(Stands::First)
                }
            }
            Err(Some(_)) => {
                // Its name is left to somebody else.
                self.places.are_anothers(&key.name);
                Ok(Stands::Nowhere)
            }
            Err(None) if asked.waits => Err(nonsense()),
            Err(None) => Ok(Stands::NotWritten),
        }
    }

    /// The key is the first: the lock is held, if its lease was confirmed just now.
    /// A request is promised the whole of its ttl.
    async fn granted(
        &self,
        asked_at: Instant,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let Some(key) = &attempt.key else {
            return Ok(attempt.ended());
        };
        let oldest = key.lease().demand(key.ttl, asked_at);
        let confirmed = key.lease().confirmed_since(oldest, deadline).await;
        match (confirmed, key.lease().is_gone()) {
            (None, true) => Ok(attempt.ended()),
            (None, false) => Err(is_there(Failed::not_sent())),
            (Some(sent_at), _) => Ok(match attempt.next_round() {
                Some(key) => Take::Granted(Granted {
                    token: key.create_revision.unsigned_abs() * TOKENS_PER_GRANT,
                    sent_at,
                    record: key,
                }),
                None => Take::PlaceLost(None),
            }),
        }
    }

    fn behind(&self, ahead: Ahead, attempt: &mut Attempt) -> Take<Self> {
        if let Some(key) = &attempt.key {
            let own = key.name.key();
            let watches = &self.watches;
            watches.keep_listening(&mut attempt.own, own, key.create_revision);
            if ahead.key != own {
                watches.keep_listening(&mut attempt.ahead, &ahead.key, ahead.created);
            }
        }
        Take::Behind(Behind {
            name: ahead.key.into(),
            watch: ahead.seen_at,
        })
    }
}

impl Attempt {
    /// Waits until who is ahead may have gone, or the own key or its lease: of those
    /// that were seen at this revision. Where the server's own call waits, until it
    /// has answered.
    pub(super) async fn wait(&mut self, seen_at: i64) -> Result<(), Failure> {
        let Some(lease) = self.key.as_ref().map(Key::lease) else {
            return Ok(());
        };
        let answered = async {
            match &mut self.call {
                Some(call) => call.answer().await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            () = lease.gone() => Ok(()),
            () = told(self.own.as_ref(), seen_at) => Ok(()),
            () = told(self.ahead.as_ref(), seen_at) => Ok(()),
            answer = answered => answer,
        };
        answer.map_err(|failed| self.call_failed(failed.into()))
    }

    /// The key, if it may be there, and what is on its way.
    pub(super) fn leave(self, left: &LeftBehind) -> Abandoned<EtcdStore> {
        let was_sent = self.put.is_some() || self.call.is_some();
        let may_be_there = was_sent || left.unknown.is_some() || left.there;
        let record = self.key.filter(|_| may_be_there);
        let flight = self.put.zip(record.clone());
        Abandoned {
            flight: flight.map(|(put, key)| Flight { put, key }),
            record,
        }
    }

    /// The lease of a call ends with the attempt, whatever became of the call.
    fn call_failed(&mut self, failure: Failure) -> Failure {
        self.next_round();
        let applied = Applied::No;
        Failure { applied, ..failure }
    }

    /// Its lease has ended: nothing can be attached to it any more.
    fn ended(&mut self) -> Take<EtcdStore> {
        self.next_round();
        Take::PlaceLost(None)
    }

    /// The key is not there. One that was put without an answer may come yet, and is
    /// to be seen to.
    fn lost(&mut self) -> Take<EtcdStore> {
        let in_doubt = self.in_doubt;
        Take::PlaceLost(self.next_round().filter(|_| in_doubt))
    }

    /// Another key is taken from here on.
    fn next_round(&mut self) -> Option<Key> {
        let round = self.round + 1;
        let before = std::mem::take(self);
        self.round = round;
        before.key
    }
}

impl Flight {
    pub(super) async fn follow(self) -> Followed {
        match self.put.await {
            Ok(written) if self.key.written(&written).is_ok() => Followed::Run,
            Ok(_) => Followed::Settled,
            Err(failed) if failed.is_in_doubt() => Followed::Unknown,
            Err(_) => Followed::Settled,
        }
    }
}

async fn told(listening: Option<&Listening>, seen_at: i64) {
    match listening {
        Some(listening) => listening.told(seen_at).await,
        None => std::future::pending().await,
    }
}
