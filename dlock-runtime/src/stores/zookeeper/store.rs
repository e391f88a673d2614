//! What the engine asks of ZooKeeper: a node for each request, in the lock's
//! folder.
//!
//! An attempt knows its node from before it is made: if the answer is lost, the
//! next one finds it by its name, and if the caller leaves, the cleanup does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client::MultiReadResult;

use super::ensemble::Ensemble;
use super::errors::{self, Failed, TOO_OLD};
use super::inspect::Listing;
use super::names::{self, Member};
use super::nodes::Node;
use super::queue::{Standing, standing};
use super::records::{Held, Record};
use super::session::{Checked, Session};
use super::settings::Settings;
use crate::backend::{
    BackendError, BackendErrorKind, Capabilities, HolderInfo, LockInfo, Owner, Protocol, Renewed,
    Request, Servers, TokenTier,
};
use crate::deadline::Deadline;
use crate::store::{
    Abandoned, Applied, Behind, Cause, Context, Due, Ending, Failure, Freed, Granted, Late,
    LeftBehind, Looks, Opening, Scope, Store, Take, Waited, Want,
};
use crate::token::TOKENS_PER_GRANT;

/// How often a process looks at all that it waits for: it makes up for a lost
/// notification. (The client sets its watches again at each new connection, and
/// is told then what it has missed.)
const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// How many nodes one look is about: it must stay well below the megabyte that the
/// server takes (`jute.maxbuffer`).
const AT_ONCE: usize = 200;

pub(crate) struct ZooKeeperStore {
    ensemble: Arc<Ensemble>,
    held: Held,
}

/// What an operation remembers.
#[derive(Default)]
pub(crate) struct Attempt {
    /// The request's node, or one that comes yet.
    node: Option<Node>,
    listing: Listing,
}

/// The node before one's own.
pub(crate) struct Watch {
    session: Arc<Session>,
    path: Arc<str>,
}

impl Store for ZooKeeperStore {
    type Config = Settings;
    type Record = Arc<Record>;
    type Attempt = Attempt;
    type Flight = Infallible;
    type Watch = Watch;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    /// A place lasts for as long as the session.
    const BEAT: Option<Duration> = None;
    /// And so does a lock.
    const EXPIRES: bool = false;

    fn open(settings: Settings, context: Context) -> Self {
        Self {
            ensemble: Ensemble::new(settings, context),
            held: Held::default(),
        }
    }

    async fn check(&self, deadline: Deadline) -> Result<(), Failure> {
        self.ensemble.connect(deadline).await
    }

    async fn shut_down(&self, holds: bool, deadline: Deadline) {
        self.ensemble.leave(holds, deadline).await;
    }

    fn capabilities(_: &Settings) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: true,
            // Every grant and renewal is a write on a majority of the servers.
            min_ttl: Duration::from_millis(100),
            ..Capabilities::new("zookeeper")
        }
    }

    fn servers(settings: &Settings) -> Option<Servers> {
        let servers = Servers::new(Protocol::ZooKeeper, settings.hosts.iter().cloned());
        Some(servers.encrypted(settings.encrypted))
    }

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
        let node = &mut attempt.node;
        node.take_if(|node| node.session.is_over());
        match self.pursue(request, want, deadline, node).await {
            Err(Failed::Over) => {
                *node = None;
                Ok(Take::PlaceLost(None))
            }
            answer => answer.map_err(|failed| {
                // It will be found by its name, or never comes.
                let applied = match node {
                    Some(_) => Applied::Answered,
                    None => Applied::No,
                };
                let folder = self.ensemble.folder(&request.key);
                self.ensemble.failure(failed, &folder, applied)
            }),
        }
    }

    /// A lease counts from when its node was last seen: a renewal that comes soon
    /// after is answered by that.
    async fn renew(
        &self,
        due: &mut [Due<Self>],
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Vec<Result<Renewed, Failure>> {
        let now = self.now();
        let looked = self.held.look_at(due, now, deadline).await;
        let failure = looked.err().map(|failed| self.failure_anywhere(failed));
        let extended = |due: &Due<Self>| {
            let (ttl, record) = (due.request.ttl, due.record.as_ref());
            let seen = record.and_then(|record| Some((record, record.seen_at()?)));
            let Some((record, seen_at)) = seen else {
                return Ok(Renewed::Gone);
            };
            if record.is_to_be_seen(ttl, now) {
                return Err(failure.clone().unwrap_or_else(Failure::not_sent));
            }
            // `min_hold` may ask for longer than the session lets a live holder be sure
            // of; its node stays for as long as the session does.
            let sent_at = record.node.session.begin(seen_at, ttl).into();
            Ok(Renewed::Extended { sent_at })
        };
        due.iter().map(extended).collect()
    }

    async fn release(
        &self,
        request: &Request,
        record: Option<&Arc<Record>>,
        ending: Ending,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Freed, Failure> {
        let Some(record) = record else {
            return Ok(Freed::NotHeld);
        };
        let node = attempt.node.get_or_insert_with(|| record.node.clone());
        let sent_at = self.now();
        match self.ensemble.delete(request.owner, node, deadline).await {
            Ok(true) => Ok(Freed::Released),
            Ok(false) => Ok(Freed::NotHeld),
            // With the session, whether or not it had been deleted before.
            Err(Failed::Over) => Ok(Freed::Lost),
            Err(failed) => {
                let applied = match failed {
                    Failed::Lost | Failed::TooLate => Applied::Unknown { sent_at },
                    _ => Applied::No,
                };
                let failure = self.ensemble.failure(failed, &node.folder, applied);
                if let (Ending::Left, Cause::Error(error)) = (ending, &failure.cause)
                    && error.kind() != BackendErrorKind::Unavailable
                {
                    let folder = &node.folder;
                    tracing::warn!(
                        target: "dlock::store",
                        "a node in {folder} cannot be deleted, and stays until the session ends: {error}"
                    );
                }
                Err(failure)
            }
        }
    }

    fn silent(&self, _: Duration) -> BackendError {
        errors::no_answer(&self.ensemble.settings.place())
    }

    fn abandon(&self, _: &Request, attempt: Attempt, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::at_rest(attempt.node.map(Record::left))
    }

    /// What a session has sent is done in its order, or never.
    fn late(&self, _: &Request, _: Option<&Arc<Record>>, _: Instant) -> Late {
        Late::Never
    }

    fn longest_lease(record: &Arc<Record>) -> Option<Duration> {
        Some(record.node.session.longest)
    }

    fn scope(record: &Arc<Record>) -> Option<Scope> {
        Some(record.node.session.scope())
    }

    fn has_ended(&self, scope: Scope) -> bool {
        self.ensemble.has_ended(scope)
    }

    async fn wait(&self, _: &Request, watch: Watch, _: &mut Attempt) -> Result<(), Failure> {
        let Watch { session, path } = watch;
        match self.ensemble.wait_for_the_end_of(&session, &path).await {
            // With the session, the place in the queue is gone.
            Ok(()) | Err(Failed::Over) => Ok(()),
            Err(failed) => Err(self.ensemble.failure(failed, &path, Applied::No)),
        }
    }

    fn pace(&self, (): &mut ()) -> Duration {
        BETWEEN_LOOKS
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        for waited in waited.chunks_mut(AT_ONCE) {
            let looked = self.look_at(waited, deadline).await;
            looked.map_err(|failed| self.failure_anywhere(failed))?;
        }
        Ok(())
    }

    /// They are shown by the names of their nodes.
    fn is_owner(holder: &HolderInfo, owner: Owner, _: Option<&Arc<Record>>) -> bool {
        holder.owner.starts_with(&names::own(owner))
    }

    async fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Result<Option<LockInfo>, Failure> {
        let info = self.ensemble.info(key, true, deadline).await;
        info.map_err(|failed| {
            let folder = self.ensemble.folder(key);
            self.ensemble.failure(failed, &folder, Applied::No)
        })
    }

    async fn list(
        &self,
        prefix: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        let listing = &mut attempt.listing;
        let listed = self.ensemble.next_of_list(prefix, deadline, listing).await;
        listed.map_err(|failed| self.failure_anywhere(failed))
    }
}

impl ZooKeeperStore {
    /// One attempt of a request: with the node that those before it have made, if
    /// there is one.
    async fn pursue(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        node: &mut Option<Node>,
    ) -> Result<Take<Self>, Failed> {
        if let Some(unheard) = node.as_mut().filter(|node| !node.is_heard_of())
            && !self.ensemble.find(request.owner, unheard, deadline).await?
        {
            *node = None;
        }
        let listed = match node {
            Some(made) => {
                let (session, folder) = (&made.session, &made.folder);
                self.ensemble.list(session, folder, false, deadline).await?
            }
            None => self.ensemble.make(request, deadline, node).await?,
        };
        let Some(own) = node else {
            return Ok(Take::PlaceLost(None));
        };
        let member = Member::read(&own.name).ok_or(TOO_OLD)?;
        let standing = standing(&listed.names, &member);
        let is_used_up = member.sequence.is_at_the_end();
        if is_used_up || (want == Want::Try && matches!(standing, Standing::Behind(_))) {
            if is_used_up {
                self.ensemble.used_up.keep_in_mind(&own.folder);
            } else {
                // Before the answer to what follows.
                request.is_held_by_somebody();
            }
            // Here and now: who asks again must not find itself in the way.
            self.ensemble.delete(request.owner, own, deadline).await?;
            *node = None;
            return if is_used_up {
                Err(Failed::UsedUp)
            } else {
                Ok(Take::Busy)
            };
        }
        match standing {
            Standing::Behind(before) => return Ok(behind(own, &before)),
            Standing::Holds => {
                let granted = self.granted(request, own, listed.sent_at, deadline);
                if let Some(granted) = granted.await? {
                    return Ok(Take::Granted(granted));
                }
            }
            Standing::Missing => {}
        }
        // It was taken away behind its back: the next is at the end of the queue.
        *node = None;
        Ok(Take::PlaceLost(None))
    }

    /// The node is the first. `None`: it is not there any more.
    async fn granted(
        &self,
        request: &Request,
        node: &Node,
        mut seen_at: Instant,
        deadline: Deadline,
    ) -> Result<Option<Granted<Self>>, Failed> {
        let session = &node.session;
        let ttl = request.ttl.min(session.longest);
        // After a wait, the session's last write may be long ago: most of the lease is
        // to be ahead.
        let ends = session.begin(seen_at, ttl) + ttl;
        if ends.saturating_duration_since(self.now()) < ttl * 3 / 4 {
            let path = std::iter::once(node.path());
            match session.check(path, deadline).await? {
                Checked::There(sent_at) => seen_at = sent_at,
                Checked::Missing(_) => return Ok(None),
            }
        }
        Ok(Some(Granted {
            token: token(node.czxid).ok_or(TOO_OLD)?,
            sent_at: session.begin(seen_at, ttl),
            record: self.held.enter(node.clone(), ttl, seen_at),
        }))
    }

    async fn look_at(&self, waited: &mut [Waited<Self>], deadline: Deadline) -> Result<(), Failed> {
        let session = self.ensemble.session(deadline).await?;
        session.connected(deadline).await?;
        let answers = {
            let mut question = session.client.new_multi_reader();
            for before in &*waited {
                let asked = question.add_get_data(&before.key);
                asked.map_err(|error| session.failed(error))?;
            }
            question.commit()
        };
        let answers = session.answer(deadline, answers).await?;
        for (before, answer) in waited.iter_mut().zip(answers) {
            if matches!(answer, MultiReadResult::Error { .. }) {
                before.wake_all();
            }
        }
        Ok(())
    }

    /// Of what is about more than one lock.
    fn failure_anywhere(&self, failed: Failed) -> Failure {
        let root = &self.ensemble.settings.root;
        self.ensemble.failure(failed, root, Applied::No)
    }

    fn now(&self) -> Instant {
        self.ensemble.context.time.now()
    }
}

fn behind(node: &Node, before: &str) -> Take<ZooKeeperStore> {
    let path: Arc<str> = names::join(&node.folder, before).into();
    Take::Behind(Behind {
        name: Arc::clone(&path),
        watch: Watch {
            session: Arc::clone(&node.session),
            path,
        },
    })
}

/// The transaction that made the node, with room for hand-overs. It rises from
/// node to node, whatever becomes of the folder and its own numbers.
fn token(czxid: i64) -> Option<u64> {
    u64::try_from(czxid).ok()?.checked_mul(TOKENS_PER_GRANT)
}
