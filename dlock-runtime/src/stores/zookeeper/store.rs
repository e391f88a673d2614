//! The operations that the engine asks of ZooKeeper: a node for each request, in the lock's folder.
//!
//! An attempt knows its node before the node is made. If the answer is lost, the next attempt finds
//! the node by its name; if the caller leaves, the cleanup does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client::Error;

use super::broken::RemovalNotice;
use super::ensemble::Ensemble;
use super::errors::{self, TOO_OLD};
use super::floor::Queue;
use super::folders::Folders;
use super::inspect::Listing;
use super::names::{self, Member};
use super::nodes::Node;
use super::queue::{QueuePosition, queue_position};
use super::records::{Held, Record, Refusals};
use super::session::AT_ONCE;
use super::settings::Settings;
use crate::backend::origin::unix_ms;
use crate::backend::{
    BackendError, BackendErrorKind, Capabilities, Finding, HolderInfo, Listed, LockInfo, Mode,
    Owner, Protocol, Renewed, Request, Servers, TokenTier,
};
use crate::deadline::Deadline;
use crate::store::{
    Abandoned, Applied, Attempt, Attempted, Behind, Break, Cause, Context, Due, Ending, Failure,
    Freed, Granted, Late, LeftBehind, Looks, Opening, Scope, Store, Take, Waited, Want,
};
use crate::token::of_transaction;

/// How often a process looks at all nodes that it waits for, in case a notification was lost. (The
/// client sets its watches again at each new connection, and the server then reports what was
/// missed.)
const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

pub(crate) struct ZooKeeperStore {
    pub(super) ensemble: Arc<Ensemble>,
    held: Held,
    folders: Arc<Folders>,
}

/// What a request waits for.
pub(crate) enum Awaited {
    /// The end of the node at this path. The first is the request's own node.
    Node(Node, Arc<str>),
    /// That this node of its own is one of the holders in its folder.
    Turn(Node),
}

/// What an operation remembers between its attempts.
#[derive(Default)]
pub(crate) struct Notes {
    /// The request's node, which may not be there yet.
    node: Option<Node>,
    /// The request was behind others at some time.
    has_waited: bool,
    /// The node that tells a waiter to leave the queue.
    notice: Option<RemovalNotice>,
    /// A list of locks, as far as it was read.
    listing: Option<Listing>,
    /// There was a mark to forget.
    forgotten: bool,
}

impl Store for ZooKeeperStore {
    type Config = Settings;
    type Record = Arc<Record>;
    type Notes = Notes;
    type Flight = Infallible;
    type Watch = Awaited;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    /// A place lasts as long as the session.
    const BEAT: Option<Duration> = None;
    /// So does a lock.
    const EXPIRES: bool = false;

    fn open(settings: Settings, context: Context) -> Self {
        Self {
            folders: Folders::new(context.clone(), BETWEEN_LOOKS),
            ensemble: Ensemble::new(settings, context),
            held: Held::default(),
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.ensemble.connect(deadline).await
    }

    async fn examine(&self, deadline: Deadline) -> Vec<Finding> {
        self.look_at_servers(deadline).await
    }

    async fn shut_down(&self, holds: bool, deadline: Deadline) {
        self.ensemble.leave(holds, deadline).await;
    }

    fn capabilities(_: &Settings) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: true,
            permits: true,
            once_with: "set `zookeeper.extendedTypesEnabled=true` on all of its servers",
            // Every grant and renewal is a write on a majority of the servers.
            min_ttl: Duration::from_millis(100),
            ..Capabilities::new("zookeeper")
        }
    }

    fn servers(settings: &Settings) -> Option<Servers> {
        let servers = Servers::new(Protocol::ZooKeeper, settings.hosts.iter().cloned());
        Some(servers.encrypted(settings.encrypted))
    }

    fn remembers(&self) -> Option<bool> {
        self.ensemble.remembers.get().copied()
    }

    fn opening(&self, _: &Request) -> Opening {
        Opening::Place
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let node = &mut notes.node;
        let is_over = |node: &mut Node| node.session.is_over();
        node.take_if(is_over);
        let has_waited = notes.has_waited;
        let taken = self.pursue(request, want, has_waited, deadline, node).await;
        notes.has_waited |= matches!(taken, Ok(Take::Behind(_)));
        taken.or_else(|failure| {
            if node.take_if(is_over).is_some() {
                return Ok(Take::PlaceLost(None));
            }
            // The node is found by its name, or is swept away when it comes.
            Err(failure.with(match node {
                Some(_) => Applied::Answered,
                None => Applied::No,
            }))
        })
    }

    /// A lease counts from when its node was last seen, so a renewal that comes soon after that
    /// needs no look. The exception is the first one of a lock that was waited for: with its look,
    /// the node is told since when the lock is held. So a shorter section pays nothing for that.
    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let now = self.now();
        let is_due = |due: &&Due<Self>| {
            let (request, record) = (&due.request, &due.record);
            record.is_to_say_since(request) || record.is_to_be_seen(request.ttl, now)
        };
        let looked_at = due.iter().filter(is_due);
        let looked_at = looked_at.map(|due| Arc::clone(&due.record)).collect();
        let mut refusals = Refusals::default();
        let looked = self.held.look_at(looked_at, now, deadline, &mut refusals);
        let failure = looked.await.err();
        let extended = |due: &Due<Self>| {
            let (ttl, record) = (due.request.ttl, &due.record);
            let Some(seen_at) = record.seen_at() else {
                return Ok(Renewed::Gone);
            };
            if record.is_to_be_seen(ttl, now) {
                let failure = refusals.of(record).or(failure.as_ref());
                return Err(failure.cloned().unwrap_or_else(Failure::not_sent));
            }
            // `min_hold` may ask for a longer time than a live holder can be sure of. The node
            // stays for as long as the session.
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
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let Some(record) = record else {
            return Ok(Freed::NotHeld);
        };
        let node = notes.node.get_or_insert_with(|| record.node.clone());
        if let Ending::Done(time) = ending {
            return match self.ensemble.mark(request, node, time, deadline).await {
                Err(_) if record.node.session.is_over() => {
                    Ok(match self.ensemble.is_marked(request, deadline).await? {
                        true => Freed::Released,
                        false => Freed::Lost,
                    })
                }
                marked => marked,
            };
        }
        match node.delete(request.owner, deadline).await {
            Ok(was_held) => Ok(Freed::of(was_held)),
            // It ended with the session, or had been deleted before.
            Err(_) if record.node.session.is_over() => Ok(Freed::Lost),
            Err(failure) => {
                if let (Ending::Left, Cause::Error(error)) = (ending, &failure.cause)
                    && error.kind() != BackendErrorKind::Unavailable
                {
                    tracing::warn!(
                        target: "dlock::store",
                        "a node in {} cannot be deleted, and stays until the session ends: {error}",
                        node.folder
                    );
                }
                Err(failure)
            }
        }
    }

    async fn raise_tokens(&self, floor: u64, deadline: Deadline) -> Attempted<()> {
        self.ensemble.raise_floor(floor, deadline).await
    }

    async fn forget(
        &self,
        key: &str,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<bool> {
        let forgotten = &mut notes.forgotten;
        self.ensemble.forget_marks(key, deadline, forgotten).await?;
        Ok(*forgotten)
    }

    async fn break_off(
        &self,
        broken: &Break,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        self.ensemble
            .break_node(broken, deadline, &mut notes.notice)
            .await
    }

    fn silent(&self, _: Duration) -> BackendError {
        errors::no_answer(&self.ensemble.settings.place())
    }

    fn abandon(&self, _: &Request, notes: Notes, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::at_rest(notes.node.map(Record::left))
    }

    /// What a session has sent is run in this order, or never. The exception is a creation that
    /// comes when the session moves back, and is swept away (`wanted`).
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

    async fn wait(&self, request: &Request, awaited: Awaited, _: &mut Notes) -> Attempted<()> {
        let (session, ended) = match awaited {
            Awaited::Node(
                Node {
                    session, folder, ..
                },
                path,
            ) => {
                // The request may have been told to leave since it listed the folder.
                let out = names::join(&folder, &names::out(request.owner));
                let ended = session.wait_for_the_end_of(&path, Some(&out)).await;
                (session, ended)
            }
            Awaited::Turn(node) => {
                let turn = self.folders.enter(&node);
                let ended = node.session.outlasts(turn.comes()).await;
                drop(turn);
                (node.session, ended)
            }
        };
        // If the session has ended, so has the place in the queue.
        ended.or_else(|failure| session.is_over().then_some(()).ok_or(failure))
    }

    fn pace(&self, (): &mut ()) -> Duration {
        BETWEEN_LOOKS
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        for waited in waited.chunks_mut(AT_ONCE) {
            self.look_at(waited, deadline).await?;
        }
        Ok(())
    }

    /// Holders are shown by the names of their nodes.
    fn is_owner(holder: &HolderInfo, owner: Owner) -> bool {
        holder.owner.starts_with(&names::own(owner))
    }

    fn stored_as(&self, key: &str) -> Vec<String> {
        vec![self.ensemble.folder(key)]
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        let session = self.ensemble.session(attempt.deadline).await?;
        self.ensemble
            .info(&session, key, true, attempt.deadline)
            .await
    }

    async fn list_some(
        &self,
        prefix: &str,
        most: usize,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Listed>> {
        let listing = &mut notes.listing;
        self.ensemble
            .next_of_list(prefix, most, deadline, listing)
            .await
    }
}

impl ZooKeeperStore {
    /// One attempt of a request. It goes on with the node of an earlier attempt, if there is one.
    async fn pursue(
        &self,
        request: &Request,
        want: Want,
        has_waited: bool,
        deadline: Deadline,
        node: &mut Option<Node>,
    ) -> Result<Take<Self>, Failure> {
        if let Some(made) = node
            && !made.find(request.owner, deadline).await?
        {
            *node = None;
        }
        let floor = || self.ensemble.floor();
        let (Queue { names, floor }, seen_at) = match node {
            Some(made) => made.session.queue(&made.folder, &floor(), deadline).await?,
            None => self.ensemble.make(request, deadline, node).await?,
        };
        let Some(own) = node else {
            return Ok(Take::PlaceLost(None));
        };
        let too_old = || own.session.refused(&own.folder, TOO_OLD);
        let member = Member::read(&own.name).ok_or_else(too_old)?;
        if names::is_at_the_end(member.sequence) {
            self.ensemble.used_up.lock().insert(own.folder.clone());
            own.delete(request.owner, deadline).await?;
            let refused = errors::used_up(&own.session.place, &own.folder);
            *node = None;
            return Err(refused);
        }
        if own.is_done(&names, deadline).await? {
            own.delete(request.owner, deadline).await?;
            *node = None;
            return Ok(Take::Done);
        }
        if names.contains(&names::out(request.owner)) {
            own.delete(request.owner, deadline).await?;
            *node = None;
            return Err(Failure::refused(BackendError::taken_out()));
        }
        if let Mode::Permits(_) = request.mode {
            let others = names.iter().filter_map(|name| Member::read(name));
            others.for_each(|other| request.note_mode(other.mode));
        }
        match queue_position(&names, &member) {
            QueuePosition::Behind(_) | QueuePosition::BehindSome if want == Want::Try => {
                // Before the deletion, which may fail.
                request.note_held_at(seen_at);
                // Deleted before the answer: when the caller asks again, this node must not be in
                // its way.
                own.delete(request.owner, deadline).await?;
                *node = None;
                return Ok(Take::Busy);
            }
            QueuePosition::Behind(before) => {
                let name: Arc<str> = names::join(&own.folder, &before).into();
                let watch = Awaited::Node(own.clone(), Arc::clone(&name));
                return Ok(Take::Behind(Behind { name, watch }));
            }
            QueuePosition::BehindSome => {
                // The recheck looks at the request's own node; the folder is watched and listed
                // anyway.
                let (name, watch) = (own.path().into(), Awaited::Turn(own.clone()));
                return Ok(Take::Behind(Behind { name, watch }));
            }
            QueuePosition::Holds => {
                if has_waited {
                    own.since.get_or_insert_with(unix_ms);
                }
                let floor = floor.map_err(Failure::refused)?;
                let granted = self.granted(request, own, floor, seen_at, deadline).await?;
                if let Some(granted) = granted {
                    return Ok(Take::Granted(granted));
                }
            }
            QueuePosition::Missing => {}
        }
        // Somebody else has deleted the node. The next one is at the end of the queue.
        *node = None;
        Ok(Take::PlaceLost(None))
    }

    /// The node is one of the holders. `None`: it is not there any more.
    async fn granted(
        &self,
        request: &Request,
        node: &Node,
        floor: u64,
        mut seen_at: Instant,
        deadline: Deadline,
    ) -> Result<Option<Granted<Self>>, Failure> {
        let session = &node.session;
        let ttl = request.ttl.min(session.longest);
        // After a wait, the session's last confirmed write may be long ago. Most of the lease must
        // still be ahead, so another write is made.
        let ends = session.begin(seen_at, ttl) + ttl;
        if ends.saturating_duration_since(self.now()) < ttl * 3 / 4 {
            match session.check(&[(node.path(), None)], deadline).await? {
                Ok(sent_at) => seen_at = sent_at,
                Err((_, Error::NoNode)) => return Ok(None),
                Err((_, error)) => return Err(session.refused(&node.path(), error)),
            }
        }
        // The number of the transaction rises from node to node, even if the folder is made anew.
        let token = of_transaction(node.czxid, floor);
        Ok(Some(Granted {
            token: token.ok_or_else(|| session.refused(&node.folder, TOO_OLD))?,
            sent_at: session.begin(seen_at, ttl),
            record: self.held.enter(node.clone(), ttl, seen_at),
        }))
    }

    async fn look_at(
        &self,
        waited: &mut [Waited<Self>],
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let session = self.ensemble.session(deadline).await?;
        let root = &self.ensemble.settings.root;
        let paths: Vec<_> = waited.iter().map(|before| before.key.to_string()).collect();
        let found = session.read(root, &paths, deadline).await?;
        for (before, found) in waited.iter_mut().zip(found) {
            if found.is_err() {
                before.wake_all();
            }
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        self.ensemble.context.time.now()
    }
}
