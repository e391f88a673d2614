//! etcd as the engine's store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};

use super::acquire::{Attempt, EtcdStore, Flight};
use super::leases::Leases;
use super::members::Members;
use super::places::Places;
use super::queue::{Key, Question};
use super::settings::{Recipe, Settings};
use super::watches::Watches;
use super::{errors, inspect};
use crate::backend::{
    BackendError, Capabilities, HolderInfo, LockInfo, Owner, Protocol, Renewed, Request, Servers,
    TokenTier,
};
use crate::deadline::Deadline;
use crate::store::{
    Abandoned, Context, Due, Ending, Failure, Followed, Freed, Late, LeftBehind, Looks, Opening,
    Scope, Store, Take, Waited, Want,
};

impl Store for EtcdStore {
    type Config = Settings;
    type Record = Key;
    type Attempt = Attempt;
    type Flight = Flight;
    /// The revision at which a request was seen not to be the first.
    type Watch = i64;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    /// A place lasts as long as its lease, which is kept alive.
    const BEAT: Option<Duration> = None;
    /// The lease goes on for others.
    const EXPIRES: bool = false;
    const AT_HOME: bool = true;
    /// It has a limit of its own.
    const FLIES_FOR: Duration = Duration::MAX;

    fn open(settings: Settings, context: Context) -> Self {
        let members = Arc::new(Members::new(settings, context.clone()));
        let watches = Watches::new(Arc::clone(&members));
        context.spawn(Arc::clone(&watches).run());
        Self {
            leases: Leases::new(Arc::clone(&members)),
            places: Places::new(),
            members,
            watches,
        }
    }

    /// That locks can be read.
    async fn check(&self, deadline: Deadline) -> Result<(), Failure> {
        let prefix = &*self.members.settings.names.prefix;
        let options = GetOptions::new().with_prefix().with_count_only();
        let count = |mut client: Client| async move { client.get(prefix, Some(options)).await };
        self.members.ask(deadline, count).await?;
        Ok(())
    }

    /// What `min_hold` keeps has a lease that is not among these.
    async fn shut_down(&self, _: bool, deadline: Deadline) {
        self.leases.stop(deadline).await;
    }

    fn capabilities(settings: &Settings) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: settings.recipe == Recipe::Queue,
            ..Capabilities::new("etcd")
        }
    }

    fn servers(settings: &Settings) -> Option<Servers> {
        let servers = Servers::new(Protocol::Etcd, settings.hosts.iter().cloned());
        Some(servers.encrypted(settings.encrypted))
    }

    /// The transaction of a place says who is ahead: with nobody, it is the lock.
    fn opening(&self, _: &Request) -> Opening {
        Opening::Place
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let asked = Question {
            request,
            lock: self.members.settings.names.lock(&request.key),
            waits: matches!(want, Want::Queue { .. }),
            deadline,
        };
        self.pursue(&asked, attempt).await
    }

    async fn renew(
        &self,
        due: &mut [Due<Self>],
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Vec<Result<Renewed, Failure>> {
        self.renew_all(due, deadline).await
    }

    async fn release(
        &self,
        _: &Request,
        record: Option<&Key>,
        ending: Ending,
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Result<Freed, Failure> {
        let Some(key) = record else {
            return Ok(Freed::NotHeld);
        };
        let txn = if ending == Ending::Released {
            key.delete(key.is_there())
        } else {
            // A lease that is to end may do so.
            key.lease_ref.leave();
            // Whenever it was written: and what comes late must not find somebody
            // else there.
            key.delete(key.is_own())
        };
        let delete = |mut client: Client| async move { client.txn(txn).await };
        let answer = self.members.ask(deadline, delete).await?;
        Ok(if answer.succeeded() {
            Freed::Released
        } else {
            Freed::NotHeld
        })
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        errors::silent(&self.members.settings.place(), for_long)
    }

    fn abandon(&self, _: &Request, attempt: Attempt, _: &LeftBehind) -> Abandoned<Self> {
        attempt.leave()
    }

    async fn follow(&self, flight: Flight, _: &Request) -> Followed {
        flight.follow().await
    }

    /// A put may wait in the socket of a member that is paused, and no number of
    /// deletions is the last word. But nothing can be attached to a lease that has
    /// ended: so nobody else gets this one.
    fn late(&self, _: &Request, record: Option<&Key>, _: Instant) -> Late {
        match record {
            Some(key) => {
                key.lease().retire();
                Late::In(key.lease().scope())
            }
            None => Late::Never,
        }
    }

    fn is_owner(holder: &HolderInfo, owner: Owner, record: Option<&Key>) -> bool {
        // What the server's Lock call makes has no value, and is shown by its name.
        holder.shows(owner) || record.is_some_and(|key| key.name.is_of(&holder.owner))
    }

    fn scope(key: &Key) -> Option<Scope> {
        (!key.moved).then(|| key.lease().scope())
    }

    fn has_ended(&self, scope: Scope) -> bool {
        self.leases.has_ended(scope)
    }

    async fn wait(&self, _: &Request, seen_at: i64, attempt: &mut Attempt) -> Result<(), Failure> {
        attempt.wait(seen_at).await
    }

    /// The keys that are watched, the own ones of those who wait among them: they
    /// are told by what watches.
    async fn recheck(
        &self,
        _: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        self.watches.look(deadline).await
    }

    async fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Result<Option<LockInfo>, Failure> {
        let lock = self.members.settings.names.lock(key);
        let mut locks = inspect::locks(&self.members, &lock.0, deadline).await?;
        Ok(locks.pop())
    }

    async fn list(
        &self,
        prefix: &str,
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        let prefix = self.members.settings.names.beginning_with(prefix);
        Ok(Some(
            inspect::locks(&self.members, &prefix, deadline).await?,
        ))
    }
}
