//! Taking a lock: a key for each request, and the lowest create-revision holds.
//!
//! A waiter watches the one before it, and nobody else (etcd's own
//! `concurrency.Mutex` does the same); and its own key, which may be deleted or
//! end with its lease.

use std::sync::Arc;
use std::time::Instant;

use super::leases::Leases;
use super::members::Members;
use super::places::{Name, Places};
use super::queue::{Asking, Key, Question, Stands, is_there};
use super::service::LockCall;
use super::settings::Recipe;
use super::watches::{Listening, Watches};
use crate::deadline::Deadline;
use crate::store::{Abandoned, Applied, Behind, Failure, Followed, Granted, Take};
use crate::token::TOKENS_PER_GRANT;

/// One cluster, and what this process has there.
pub(crate) struct EtcdStore {
    pub(super) members: Arc<Members>,
    pub(super) leases: Arc<Leases>,
    pub(super) places: Places,
    pub(super) watches: Arc<Watches>,
}

/// What one request has, and remembers from question to question.
#[derive(Default)]
pub(crate) struct Attempt {
    /// Nothing is awaited between the moment when it is set and that when it is sent:
    /// it may be there.
    key: Option<Key>,
    /// So many keys before this one. No two of a request say the same.
    round: u32,
    /// What writes the key, on its way. It goes on when its caller leaves.
    put: Option<Asking>,
    call: Option<LockCall>,
    listening: Option<Listening>,
}

/// A put that was left.
pub(crate) struct Flight {
    put: Asking,
    key: Key,
}

impl EtcdStore {
    pub(super) async fn pursue(
        &self,
        asked: &Question<'_>,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let Attempt { key, put, call, .. } = attempt;
        let key = match key {
            Some(key) => key,
            none => none.insert(self.key(asked, attempt.round).await?),
        };
        if key.lease().is_gone() {
            return Ok(attempt.lost());
        }
        let mut asked_at = self.members.time.now();
        let stands = if asked.waits && self.members.settings.recipe == Recipe::LockService {
            let begin = || LockCall::new(&self.members, asked, key);
            let call = call.get_or_insert_with(begin);
            let stands = Box::pin(call.stands(&self.members, asked, key)).await;
            asked_at = self.members.time.now();
            match stands {
                Ok(stands) => stands,
                Err(failure) => return Err(attempt.call_failed(failure)),
            }
        } else {
            // It is made sure that the lease lives while the key is written.
            key.lease().demand(key.ttl, asked_at);
            key.enter(&self.members, asked, put).await?
        };
        Ok(match stands {
            Stands::First => match self.granted(key, asked_at, asked.deadline).await? {
                Some(granted) => Take::Granted(granted),
                None => attempt.lost(),
            },
            Stands::Behind(ahead) if asked.waits => {
                let keys = [
                    (&*key.name.key, key.create_revision),
                    (&*ahead.key, ahead.created),
                ];
                self.watches.keep_listening(&mut attempt.listening, &keys);
                Take::Behind(Behind {
                    name: ahead.key.into(),
                    watch: ahead.seen_at,
                })
            }
            // A put before this one took the place.
            Stands::Behind(_) => Take::Queued,
            Stands::NotWritten => Take::Busy,
            Stands::Nowhere => attempt.lost(),
            Stands::Anothers => {
                self.places.are_anothers(&key.name);
                attempt.lost()
            }
        })
    }

    /// A key for the request, in a name that no other has meanwhile.
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
            let key = lock.of_lock_service(lease_ref.lease.id);
            // The call writes nothing into it.
            Name::given(key, if asked.waits { String::new() } else { value })
        } else {
            self.places.take(&lock.places(request.mode), value)
        };
        Ok(Key::new(name, lease_ref, request.ttl))
    }

    /// The key is the first: the lock is held, if its lease was confirmed just now.
    /// A request is promised the whole of its ttl. `None`: the lease has ended.
    async fn granted(
        &self,
        key: &Key,
        asked_at: Instant,
        deadline: Deadline,
    ) -> Result<Option<Granted<Self>>, Failure> {
        let oldest = key.lease().demand(key.ttl, asked_at);
        let confirmed = key.lease().confirmed_since(oldest, deadline).await;
        match confirmed {
            None if key.lease().is_gone() => Ok(None),
            None => Err(is_there(Failure::not_sent())),
            Some(sent_at) => Ok(Some(Granted {
                token: key.create_revision.unsigned_abs() * TOKENS_PER_GRANT,
                sent_at,
                record: key.clone(),
            })),
        }
    }
}

impl Attempt {
    /// Waits until who is ahead may have gone, or the own key or its lease: of those
    /// that were seen at this revision. Where the server's own call waits, until it
    /// has answered.
    pub(super) async fn wait(&mut self, seen_at: i64) -> Result<(), Failure> {
        let (Some(key), Some(listening)) = (&self.key, &self.listening) else {
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
            () = key.lease().gone() => Ok(()),
            () = listening.told(seen_at) => Ok(()),
            answer = answered => answer,
        };
        answer.map_err(|failed| self.call_failed(failed.into()))
    }

    /// The key, and what is on its way.
    pub(super) fn leave(self) -> Abandoned<EtcdStore> {
        let flight = self.put.zip(self.key.clone());
        Abandoned {
            flight: flight.map(|(put, key)| Flight { put, key }),
            record: self.key,
        }
    }

    /// The lease of a call ends with the attempt, whatever became of the call.
    fn call_failed(&mut self, failure: Failure) -> Failure {
        self.next_round();
        let applied = Applied::No;
        Failure { applied, ..failure }
    }

    /// The key is not there. One that was put without an answer may come yet; but not
    /// under a lease that has ended.
    fn lost(&mut self) -> Take<EtcdStore> {
        let key = self.next_round();
        Take::PlaceLost(key.filter(|key| !key.lease().is_gone()))
    }

    /// Another key is taken from here on.
    fn next_round(&mut self) -> Option<Key> {
        let before = std::mem::take(self);
        self.round = before.round + 1;
        before.key
    }
}

impl Flight {
    pub(super) async fn follow(mut self) -> Followed {
        match self.put.await {
            Ok(written) => match self.key.stands(&written, false) {
                Some(Stands::NotWritten | Stands::Anothers) => Followed::Settled,
                _ => Followed::Run,
            },
            Err(failed) if failed.applied == Applied::No => Followed::Settled,
            Err(_) => Followed::Unknown,
        }
    }
}
