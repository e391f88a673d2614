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
use super::leases::Leases;
use super::members::Members;
use super::names::LockName;
use super::places::{Name, Places};
use super::queue::{Ahead, Found, Key, Stands, revision};
use super::service::{LockCall, Turn};
use super::settings::Recipe;
use super::watches::{Listening, Watches};
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::store::{Applied, Failure, Followed};

/// One cluster, and what this process has there.
pub(super) struct Cluster {
    pub(super) members: Arc<Members>,
    pub(super) leases: Arc<Leases>,
    pub(super) places: Arc<Places>,
    pub(super) watches: Arc<Watches>,
}

/// What one request has, and remembers from question to question.
#[derive(Default)]
pub(super) struct QueueEntry {
    key: Option<Key>,
    /// So many keys before this one. No two of a request say the same.
    round: u32,
    put: Option<Put>,
    /// A put of this key was never answered.
    in_doubt: bool,
    call: Option<LockCall>,
    own: Option<Listening>,
    ahead: Option<Listening>,
}

/// What came of a question.
pub(super) enum Answer {
    /// The lock is held. Its lease was confirmed by what was sent then.
    Had { key: Key, sent_at: Instant },
    /// Somebody holds it, and the key was not written.
    Busy,
    /// Somebody holds it, and the key is there.
    Queued,
    /// The same; and who is to be watched, as it was seen at this revision.
    Behind { name: Arc<str>, seen_at: i64 },
    /// The key is not there any more, or somebody else's. One that may come yet is
    /// to be seen to.
    Lost(Option<Key>),
}

/// A transaction that writes a key, on its way. It goes on when its caller leaves.
type Put = Pin<Box<dyn Future<Output = Result<Written, Failed>> + Send>>;

/// The answer to it, which came while it was made sure that the lease lives.
struct Written {
    txn: TxnResponse,
    confirmed: Option<Instant>,
}

/// A put that was left.
pub(crate) struct Flight {
    put: Put,
    key: Key,
}

/// What has come of a put.
enum Entered {
    /// The key is there; and when its lease was confirmed.
    Stands(Stands, Option<Instant>),
    /// Somebody holds the lock, and the key was not written.
    Busy,
    Lost,
}

impl Cluster {
    /// Asks for the lock, and if it `waits` for a place in its queue.
    pub(super) async fn take(
        &self,
        request: &Request,
        waits: bool,
        deadline: Deadline,
        entry: &mut QueueEntry,
    ) -> Result<Answer, Failure> {
        let lock = self.members.settings.names.lock(&request.key);
        let has_ended = |key: &Key| key.lease().is_gone();
        if entry.key.as_ref().is_some_and(has_ended) {
            return Ok(entry.ended());
        }
        let key = match &mut entry.key {
            Some(key) => key,
            none => {
                let key = self.place(request, &lock, waits, entry.round, deadline);
                none.insert(key.await?)
            }
        };
        if waits && self.members.settings.recipe == Recipe::LockService {
            return Box::pin(self.call(request, &lock, deadline, entry)).await;
        }
        let (stands, confirmed) = if key.create_revision == 0 {
            match self.enter(request, &lock, waits, deadline, entry).await? {
                Entered::Stands(stands, confirmed) => (stands, confirmed),
                Entered::Busy => return Ok(Answer::Busy),
                Entered::Lost => return Ok(entry.lost()),
            }
        } else {
            self.look(request, &lock, deadline, key).await?
        };
        match stands {
            Stands::First => entry.first(confirmed),
            Stands::Behind(ahead) if waits => Ok(self.behind(ahead, entry)),
            // A put before this one took the place.
            Stands::Behind(_) => Ok(Answer::Queued),
            Stands::Nowhere => Ok(entry.lost()),
        }
    }

    /// A key for the request, in a name that no other has meanwhile.
    async fn place(
        &self,
        request: &Request,
        lock: &LockName,
        waits: bool,
        round: u32,
        deadline: Deadline,
    ) -> Result<Key, Failure> {
        let value = match round {
            0 => request.owner.to_string(),
            again => format!("{}.{again}", request.owner),
        };
        let (lease_ref, name) = match self.members.settings.recipe {
            Recipe::Queue => {
                let shared = self.leases.shared(request.ttl, deadline).await;
                let lease_ref = shared.map_err(Failed::of_a_read)?;
                let name = self.places.take(lock.places(request.mode), value);
                (lease_ref, name)
            }
            Recipe::LockService => {
                let private = self.leases.private(request.ttl, deadline).await;
                let lease_ref = private.map_err(Failed::of_a_read)?;
                let key = lock.of_lock_service(lease_ref.lease().id());
                // The call writes nothing into it.
                let value = if waits { String::new() } else { value };
                (lease_ref, Name::given(key, value))
            }
        };
        Ok(Key::new(name, lease_ref, request.ttl))
    }

    /// Writes the key, while it is made sure that its lease lives.
    async fn enter(
        &self,
        request: &Request,
        lock: &LockName,
        waits: bool,
        deadline: Deadline,
        entry: &mut QueueEntry,
    ) -> Result<Entered, Failure> {
        let Some(key) = &mut entry.key else {
            return Ok(Entered::Lost);
        };
        let txn = match waits {
            true => key.take_place(lock, request.mode),
            false => key.take_if_free(lock, request.mode),
        };
        let (members, lease) = (Arc::clone(&self.members), Arc::clone(key.lease()));
        let ttl = request.ttl;
        let put: Put = Box::pin(async move {
            let send = |mut client: Client| async move { client.txn(txn).await };
            let confirm = async { Ok(lease.confirmed_lately(ttl, deadline).await) };
            let both = tokio::try_join!(members.ask(deadline, send), confirm);
            if let Err(failed) = &both
                && failed.verdict == Verdict::LeaseNotFound
            {
                lease.end();
            }
            let (answer, confirmed) = both?;
            let txn = answer.value;
            Ok(Written { txn, confirmed })
        });
        let written = entry.put.insert(put).await;
        entry.put = None;
        let Written { txn, confirmed } = match written {
            Ok(written) => written,
            Err(failed) if failed.verdict == Verdict::LeaseNotFound => return Ok(Entered::Lost),
            Err(failed) => {
                entry.in_doubt |= failed.is_in_doubt();
                return Err(failed.into());
            }
        };
        if txn.succeeded() {
            key.create_revision = revision(&txn).ok_or_else(|| self.nonsense())?;
            let stands = match waits {
                true => key.stands(&txn, 1).ok_or_else(|| self.nonsense())?,
                false => Stands::First,
            };
            return Ok(Entered::Stands(stands, confirmed));
        }
        match key.found(&txn) {
            Found::Own(created) => {
                key.create_revision = created;
                let (stands, confirmed) = self.look(request, lock, deadline, key).await?;
                Ok(Entered::Stands(stands, confirmed))
            }
            Found::Anothers => Ok(Entered::Lost),
            Found::Nothing if waits => Err(self.nonsense()),
            Found::Nothing => Ok(Entered::Busy),
        }
    }

    /// Looks where a key stands that was there; if that is first, with a lease that
    /// lives.
    async fn look(
        &self,
        request: &Request,
        lock: &LockName,
        deadline: Deadline,
        key: &Key,
    ) -> Result<(Stands, Option<Instant>), Failure> {
        let txn = key.look(lock, request.mode);
        let read = |mut client: Client| async move { client.txn(txn).await };
        let answer = self.members.ask(deadline, read).await.map_err(is_there)?;
        let stands = key.stands(&answer.value, 0);
        let stands = stands.ok_or_else(|| self.nonsense())?;
        let confirmed = match stands {
            Stands::First => key.lease().confirmed_lately(request.ttl, deadline).await,
            _ => None,
        };
        Ok((stands, confirmed))
    }

    /// Has the server's own Lock call wait, or looks how far it is.
    async fn call(
        &self,
        request: &Request,
        lock: &LockName,
        deadline: Deadline,
        entry: &mut QueueEntry,
    ) -> Result<Answer, Failure> {
        let Some(key) = &mut entry.key else {
            return Ok(entry.ended());
        };
        let begin = || LockCall::new(&self.members, lock, key.lease().id());
        let call = entry.call.get_or_insert_with(begin);
        match call.turn(&self.members, lock, key, deadline).await {
            Ok(Turn::Comes { created }) => {
                key.create_revision = created;
                let confirmed = key.lease().confirmed_lately(request.ttl, deadline).await;
                entry.first(confirmed)
            }
            Ok(Turn::Behind { created, seen_at }) => {
                key.create_revision = created;
                let (name, own) = (key.name.key(), &mut entry.own);
                self.watches.keep_listening(own, name, created);
                let name = name.into();
                Ok(Answer::Behind { name, seen_at })
            }
            Ok(Turn::Lost) => Ok(entry.lost()),
            Err(failure) => {
                // The lease ends with the attempt, whatever became of the call.
                entry.next_round();
                let applied = Applied::No;
                Err(Failure { applied, ..failure })
            }
        }
    }

    fn behind(&self, ahead: Ahead, entry: &mut QueueEntry) -> Answer {
        if let Some(key) = &entry.key {
            let (own, before) = (&mut entry.own, &mut entry.ahead);
            self.watches
                .keep_listening(before, &ahead.key, ahead.created);
            self.watches
                .keep_listening(own, key.name.key(), key.create_revision);
        }
        Answer::Behind {
            name: ahead.key.into(),
            seen_at: ahead.seen_at,
        }
    }

    fn nonsense(&self) -> Failure {
        let error = errors::nonsense(self.members.place());
        Failed::new(Verdict::AskElsewhere, error, Applied::Answered).into()
    }
}

impl QueueEntry {
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
        answer.map_err(|failed| {
            self.next_round();
            failed.into()
        })
    }

    /// The key, if it may be there, and what is on its way.
    pub(super) fn leave(mut self, may_be_there: bool) -> Option<(Key, Option<Flight>)> {
        let key = self.key.take()?;
        let was_sent = self.put.is_some() || self.call.is_some();
        let flight = self.put.take().map(|put| Flight {
            put,
            key: key.clone(),
        });
        (was_sent || may_be_there).then_some((key, flight))
    }

    /// The key is the first: the lock is held, if its lease was confirmed just now.
    /// A request is promised the whole of its ttl.
    fn first(&mut self, confirmed: Option<Instant>) -> Result<Answer, Failure> {
        let has_ended = |key: &Key| key.lease().is_gone();
        match confirmed {
            None if !self.key.as_ref().is_none_or(has_ended) => Err(is_there(Failed::not_sent())),
            None => Ok(self.ended()),
            Some(sent_at) => Ok(match self.next_round() {
                Some(key) => Answer::Had { key, sent_at },
                None => Answer::Lost(None),
            }),
        }
    }

    /// Its lease has ended: nothing can be attached to it any more.
    fn ended(&mut self) -> Answer {
        self.next_round();
        Answer::Lost(None)
    }

    /// The key is not there. One that was put without an answer may come yet.
    fn lost(&mut self) -> Answer {
        let in_doubt = self.in_doubt;
        Answer::Lost(self.next_round().filter(|_| in_doubt))
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
            Ok(written) if written.txn.succeeded() => Followed::Run,
            Ok(written) => match self.key.found(&written.txn) {
                Found::Own(_) => Followed::Run,
                Found::Anothers | Found::Nothing => Followed::Settled,
            },
            Err(failed) if failed.is_in_doubt() => Followed::Unknown,
            Err(_) => Followed::Settled,
        }
    }
}

/// Of a question about a key that is there.
fn is_there(failed: Failed) -> Failure {
    Failure {
        applied: Applied::Answered,
        ..failed.into()
    }
}

async fn told(listening: Option<&Listening>, seen_at: i64) {
    match listening {
        Some(listening) => listening.told(seen_at).await,
        None => std::future::pending().await,
    }
}
