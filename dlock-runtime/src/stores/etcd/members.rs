//! The members of the cluster, and a request to one of them.
//!
//! Requests go to one member as long as it answers, and to the next one when it does not. The
//! client's own balancing over three members would send every third request to one that hangs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tokio::sync::OnceCell;

use super::errors::{self, ErrorClass, Failed, classify};
use super::floor;
use super::settings::Settings;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::{Applied, Cause, Context, Failure};
use crate::sync::Mutex;

/// How many keys are read in one transaction. Servers take 128 operations (`--max-txn-ops`).
pub(super) const KEYS_AT_ONCE: usize = 100;

/// The members of one cluster. The connection to one of them belongs to the runtime that made it,
/// which is the manager's.
pub(super) struct Members {
    pub(super) settings: Settings,
    pub(super) time: Time,
    pub(super) context: Context,
    current: Mutex<Arc<Member>>,
}

/// A member that is asked. Once it has been left, its connection ends with the requests that still
/// use it: the connection may be dead without any sign of it.
#[derive(Default)]
pub(super) struct Member {
    index: usize,
    client: OnceCell<Client>,
}

impl Members {
    pub(super) fn new(settings: Settings, context: Context) -> Self {
        // Processes begin with different members.
        let index = fastrand::usize(..settings.hosts.len().max(1));
        Self {
            current: Mutex::new(Member::new(index)),
            settings,
            time: context.time.clone(),
            context,
        }
    }

    /// How long one answer may take.
    pub(super) fn patience(&self) -> Deadline {
        self.time.after(self.context.patience())
    }

    /// How long an answer may take that keeps a lease of this ttl alive. A third of the ttl has
    /// passed when it is asked for, and time must be left for two more attempts. A healthy member is
    /// not left for a few milliseconds: no lease of etcd is shorter than a second.
    pub(super) fn patience_within(&self, ttl: Duration) -> Duration {
        let ttl = ttl.max(Duration::from_secs(1));
        self.context.patience().min(ttl / 4)
    }

    /// The member that requests go to.
    pub(super) fn current(&self) -> Arc<Member> {
        Arc::clone(&self.current.lock())
    }

    /// The connection to a member. With a user, the first request that needs it logs in.
    pub(super) async fn client(&self, member: &Arc<Member>) -> Result<Client, Error> {
        let endpoint = self.settings.endpoint(&self.settings.hosts[member.index]);
        let options = || self.settings.connect_options(self.context.patience());
        let connect = || Client::connect([endpoint], Some(options()));
        member.client.get_or_try_init(connect).await.cloned()
    }

    /// This member did not do what it was asked, or gave no answer. Requests go to the next one
    /// from here on; if there is no other, over another connection.
    pub(super) fn leave(&self, member: &Arc<Member>) {
        let mut current = self.current.lock();
        // Another request may have left it already.
        if Arc::ptr_eq(&current, member) {
            *current = Member::new((member.index + 1) % self.settings.hosts.len());
        }
    }

    /// Makes a request to the current member.
    pub(super) async fn ask<T, F>(
        &self,
        deadline: Deadline,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.ask_one(deadline.min(self.patience()), ask).await
    }

    pub(super) async fn txn(&self, txn: Txn, deadline: Deadline) -> Result<TxnResponse, Failed> {
        let send = |mut client: Client| async move { client.txn(txn).await };
        self.ask(deadline, send).await
    }

    /// When each of these keys was created. `None`: it is not there.
    pub(super) async fn created_at(
        &self,
        keys: impl Iterator<Item = &str>,
        deadline: Deadline,
    ) -> Result<Vec<Option<i64>>, Failed> {
        let keys_only = GetOptions::new().with_keys_only();
        let gets = keys.map(|key| TxnOp::get(key, Some(keys_only.clone())));
        let gets: Vec<_> = gets.collect();
        let answers = self.txn(Txn::new().and_then(gets), deadline).await?;
        let created = answers.op_responses().into_iter().map(|found| match found {
            TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::create_revision),
            _ => None,
        });
        Ok(created.collect())
    }

    /// Writes the floor, unless it is as high already.
    pub(super) async fn raise_floor(&self, to: u64, deadline: Deadline) -> Result<(), Failure> {
        let name = self.settings.names.floor();
        loop {
            let look = Txn::new().and_then([TxnOp::get(&*name, None)]);
            let answers = self.txn(look, deadline).await?.op_responses();
            if floor::found(&answers, &name, &self.settings.place())? >= to {
                return Ok(());
            }
            let seen = answers.iter().find_map(|answer| match answer {
                TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::mod_revision),
                _ => None,
            });
            let is_same = Compare::mod_revision(&*name, CompareOp::Equal, seen.unwrap_or(0));
            let put = TxnOp::put(&*name, to.to_string(), None);
            let raise = Txn::new().when([is_same]).and_then([put]);
            // If this fails, another process has written the floor meanwhile.
            if self.txn(raise, deadline).await?.succeeded() {
                return Ok(());
            }
        }
    }

    /// Makes a request to the current member, which may take all of this time.
    pub(super) async fn ask_one<T, F>(
        &self,
        limit: Deadline,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let member = self.current();
        let mut sent_at = None;
        // Boxed: the client's own futures are large, and many of ours contain this one.
        let attempt = Box::pin(async {
            let client = self.client(&member).await?;
            sent_at = Some(self.time.now());
            let answer = ask(client.clone()).await;
            if let Err(error) = &answer
                && classify(error) == ErrorClass::LogIn
            {
                // The request was refused, so it has done nothing. If the login is not answered,
                // the next attempt shows that.
                sent_at = None;
                let again = self.time.bound(self.patience(), client.refresh_token());
                again.await.unwrap_or(Ok(()))?;
            }
            answer
        });
        let (class, cause) = match self.time.bound(limit, attempt).await {
            Ok(Ok(value)) => {
                if let Some(sent_at) = sent_at {
                    self.context.events.answered(sent_at);
                }
                return Ok(value);
            }
            Ok(Err(error)) => {
                let told = errors::described(&self.settings.place(), &error);
                (classify(&error), Cause::Error(told))
            }
            Err(_) => (ErrorClass::AskElsewhere, Cause::Silence),
        };
        let applied = match (class, sent_at) {
            (ErrorClass::AskElsewhere, Some(sent_at)) => Applied::Unknown { sent_at },
            (ErrorClass::AskLater, Some(_)) => Applied::Answered,
            _ => Applied::No,
        };
        if class == ErrorClass::AskElsewhere {
            self.leave(&member);
        }
        Err(Failed {
            class,
            cause,
            applied,
        })
    }
}

impl Member {
    fn new(index: usize) -> Arc<Self> {
        Arc::new(Self {
            index,
            client: OnceCell::new(),
        })
    }
}
