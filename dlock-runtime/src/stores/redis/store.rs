//! The commands of each operation that the engine asks of Redis: of one server, of the master
//! that sentinels name, or of a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::batcher::How;
use super::commands;
use super::config::Config;
use super::connection::Connection;
use super::connections::Connections;
use super::connector::{Connector, Listener};
use super::durability;
use super::errors::{RetryPolicy, classify};
use super::locate::Locator;
use super::look::{PERIOD, Seen};
use super::names::{Keyspace, Topic};
use super::redisson::{self, field::Field};
use super::scripts::{self, ALIVE_FOR, CLAIM};
use super::sentinel;
use super::servers::{Answer, Notes, RedisStore, Route, unexpected_answer};
use super::subscriptions::Subscriptions;
use super::topology::{self, Topology};
use super::values::{LockValue, Process, done_by, owner_of};
use crate::apart::{all, apart};
use crate::backend::{
    self, BackendError, Capabilities, Finding, HolderInfo, Listed, LockInfo, Mode, Owner, Protocol,
    Renewed, Request, SHOWN_WAITERS, TokenTier,
};
use crate::deadline::Deadline;
use crate::key::Shown;
use crate::store::{
    Abandoned, Applied, Attempt, Attempted, Break, Context, Due, Ending, Failure, Followed, Freed,
    Granted, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want, Whose,
};
use crate::token::TOKENS_PER_GRANT;

/// Fits twice into the time for which a process counts as alive.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// How long a subscription in a cluster outlives its last waiter.
const LINGERS: Duration = Duration::from_secs(3);

/// How long it outlives its last waiter in Redisson's layout. A task that waits again at once
/// keeps the subscription.
const LEAVES_AFTER: Duration = Duration::from_millis(50);

/// The answer of `acquire.lua` to a waiter that was taken out of the queue.
const TAKEN_OUT: &[u8] = b"x:";

/// The most places that are read, and undone, in one command, since the server does nothing else
/// meanwhile. If there are more, the next of them gets the lock, and is disowned in turn.
const DISOWNED_AT_ONCE: usize = 500;

/// Commands in flight. A release that is sent behind them, over the same connection, is run after
/// them.
pub(crate) struct Flight {
    connection: Connection,
    ending: Ending,
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for RedisStore {
    type Config = Config;
    type Record = ();
    type Notes = Notes;
    type Flight = Flight;
    type Watch = std::convert::Infallible;
    type Seen = Seen;

    const LOOKS: Looks = Looks::Together;
    const BEAT: Option<Duration> = Some(HEARTBEAT);
    const DEAD_AFTER: Duration = ALIVE_FOR;
    const CLAIM: Option<Duration> = Some(CLAIM);

    fn open(config: Config, context: Context) -> Self {
        let Config {
            mut settings,
            locator,
            votes,
            electorate,
        } = config;
        settings.request_timeout = context.request_timeout;
        settings.label.clone_from(&context.label);
        let (process, events) = (Process::unique(), context.events.clone());
        let connector = Connector::new(settings.clone(), locator, context.time.clone());
        let (route, subscriptions) = if let Locator::Cluster(nodes) = &connector.locator {
            let topology = Topology::new(settings, nodes, process, &context);
            context.spawn(topology::keep_up_to_date(Arc::clone(&topology)));
            let subscriptions = Arc::clone(&topology.subscriptions);
            (Route::BySlot(topology), Some(subscriptions))
        } else {
            let (space, by_lock) = (&connector.space, connector.space.redisson().is_some());
            let listener = Listener {
                space: space.clone(),
                events: events.clone(),
                // Waiters for votes listen to the lock's own channel, and so do those in
                // Redisson's layout.
                channel: (!votes && !by_lock).then(|| space.wake_channel(process, "", None)),
            };
            let connections = Arc::new(Connections::new(Arc::clone(&connector), Some(listener)));
            let topology = electorate.as_ref().map(|all| Arc::clone(all.topology()));
            let subscriptions = || Subscriptions::new(process, space.clone(), None, &context);
            let subscriptions = by_lock.then(|| Arc::new(subscriptions()));
            (Route::One(connections, topology), subscriptions)
        };
        let confirms = connector.settings.replicas > 0;
        let confirming = confirms.then(|| Arc::new(Connections::new(Arc::clone(&connector), None)));
        context.spawn(sentinel::follow(Arc::clone(&connector)));
        let store = Self {
            connector,
            route,
            confirming,
            process,
            events,
            votes,
            electorate,
            subscriptions,
        };
        if store.space().redisson().is_some()
            && let Some(subscriptions) = &store.subscriptions
        {
            let (subscriptions, events) = (Arc::clone(subscriptions), store.events.clone());
            let (time, patience) = (context.time.clone(), context.patience());
            // In this layout, waiters are visible to others only by their subscriptions, so an
            // idle one must end soon.
            context.spawn(async move {
                loop {
                    events.waiters().left().await;
                    time.sleep(time.after(LEAVES_AFTER)).await;
                    subscriptions
                        .leave_idle(LEAVES_AFTER, time.after(patience))
                        .await;
                }
            });
        }
        store
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        if let Route::BySlot(topology) = &self.route {
            return self.check_cluster(topology, deadline).await;
        }
        let server = self.connection("", deadline).await?;
        self.check_server(&server, "", deadline).await?;
        if let Locator::Sentinels(sentinels) = &self.connector.locator {
            sentinels.warn_of_their_number();
            let needed = self.connector.settings.replicas;
            if needed > 0 {
                let role = self.ask("", deadline, &commands::role).await?;
                sentinels.warn_of_replicas(&role.value, needed);
            }
        }
        Ok(())
    }

    async fn examine(&self, deadline: Deadline) -> Vec<Finding> {
        self.look_at_servers(deadline).await
    }

    fn close(&self) {
        match &self.route {
            Route::One(one, _) => one.close(),
            Route::BySlot(topology) => topology.close(),
        }
        if let Some(confirming) = &self.confirming {
            confirming.close();
        }
        if let Some(electorate) = &self.electorate {
            electorate.close();
        }
    }

    fn capabilities(config: &Config) -> Capabilities {
        let (name, strict_with, in_order) = match config.locator {
            Locator::At(_) => ("redis", durability::STRICT_WITH, true),
            // A failover may promote a replica that lacks the last tokens.
            Locator::Sentinels(_) => ("redis", "", true),
            Locator::Cluster(_) | Locator::Node(_) | Locator::Slot(..) => ("cluster", "", false),
        };
        let own = Capabilities {
            fair: true,
            tokens: TokenTier::BestEffort,
            strict_with,
            read_write: true,
            permits: true,
            once: true,
            in_order,
            ..Capabilities::new(name)
        };
        match config.settings.recipe {
            Some(recipe) => recipe.capabilities(own),
            None => own,
        }
    }

    fn servers(config: &Config) -> Option<backend::Servers> {
        Some(config.servers())
    }

    fn tokens(&self) -> Option<TokenTier> {
        match self.space() {
            Keyspace::Redisson(_) => None,
            _ => Some(match self.connector.is_strict.load(Ordering::Acquire) {
                true => TokenTier::Strict,
                false => TokenTier::BestEffort,
            }),
        }
    }

    fn located(&self) -> Option<backend::Servers> {
        // Each master has other locks, so all of them are listed.
        let masters = self.topology()?.map.masters();
        (!masters.is_empty()).then(|| {
            let hosts = masters.iter().map(ToString::to_string);
            let servers = backend::Servers::new(Protocol::Redis, hosts);
            servers.encrypted(self.connector.settings.encrypted())
        })
    }

    fn opening(&self, request: &Request) -> Opening {
        match (&self.route, &self.subscriptions) {
            // Each slot has a counter of its own, so the script is the cheapest way. A place in
            // the queue needs a subscription first, and the lock may be free.
            (_, Some(subscriptions)) if !subscriptions.is_subscribed(&self.topic(request)) => {
                Opening::Try
            }
            (_, Some(_)) => Opening::Place,
            (Route::One(..), None) if request.mode == Mode::Write => Opening::First,
            _ => Opening::Place,
        }
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let queues = matches!(want, Want::Queue { .. });
        let redisson = self.space().redisson();
        if let Some(layout) = redisson
            && let Err(error) = layout.check(request)
        {
            return Err(Failure::refused(error));
        }
        let answer = match self.ask_plainly(request, want, deadline, notes).await? {
            Some(answer) => answer,
            None => {
                apart(async {
                    if queues {
                        self.listen(request, deadline).await;
                    }
                    self.ask_for_lock(request, queues, deadline, notes).await
                })
                .await?
            }
        };
        let has_no_tokens = redisson.is_some_and(|layout| !layout.recipe.has_tokens());
        let drawn = match answer.value {
            drawn @ Value::Int(_) => drawn,
            Value::Okay => answer.behind,
            Value::BulkString(_) | Value::Nil => return self.not_granted(request, queues, &answer),
            _ => return Err(unexpected_answer(&answer.from)),
        };
        let (server, mut sent_at) = (answer.from, answer.sent_at);
        let last = match drawn {
            Value::Nil if has_no_tokens => 0,
            Value::Int(last) => self.drawn(&server, &request.key, last)?,
            // The lock is granted, but without a token. The next attempt runs the script, which
            // draws one.
            Value::ServerError(error) => {
                let refused = self.refused(&server, &request.key, error, deadline, notes);
                return Err(refused.await.with(Applied::Answered));
            }
            _ => return Err(unexpected_answer(&server)),
        };
        self.connector.given(last);
        if self.confirming.is_some() {
            // If the caller leaves meanwhile, the lock has to be given back.
            notes.in_flight = Some(server);
            let confirmed = apart(self.confirmed(request, deadline)).await;
            notes.in_flight = None;
            sent_at = confirmed?;
        }
        Ok(Take::Granted(Granted {
            // `drawn` has checked that the whole block is above the floor.
            token: last.saturating_sub(TOKENS_PER_GRANT - 1),
            sent_at,
            record: (),
        }))
    }

    /// In a cluster, the leases of one node must not wait long for those of another.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        match self.route {
            Route::One(..) => request_timeout,
            Route::BySlot(_) => {
                let patience = self.connector.settings.patience();
                patience.min(shortest / 4)
            }
        }
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let requests: Vec<_> = due.iter().map(|due| &due.request).collect();
        if self.check_electorate().is_err() {
            // The slots that vote instead may have granted the locks to other owners.
            return requests.iter().map(|_| Ok(Renewed::Gone)).collect();
        }
        self.renew_all(&requests, deadline).await
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&()>,
        ending: Ending,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let build = || self.release_of(ending, request);
        let is_marked = matches!(ending, Ending::Done(_));
        let how = match request.is_followed() {
            // The mark must be as durable as the lock was.
            _ if is_marked && self.confirming.is_some() => How::Confirmed,
            true => How::WithTheNext,
            false => How::Plain,
        };
        let answer = self.exchange(&request.key, how, deadline, notes, &build);
        let answer = answer.await?;
        match answer.value {
            Value::Int(1) if how == How::Confirmed => {
                self.check_replicas(&answer)?;
                Ok(Freed::Released)
            }
            Value::Int(1) => Ok(Freed::Released),
            #[cfg(feature = "quorum")]
            Value::Int(more) if self.votes && more > 1 => {
                let told = usize::try_from(more - 1).unwrap_or_default();
                self.events.notified(request, told);
                Ok(Freed::Released)
            }
            Value::Int(_) => Ok(Freed::NotHeld),
            _ => Err(unexpected_answer(&answer.from)),
        }
    }

    async fn raise_tokens(&self, floor: u64, deadline: Deadline) -> Attempted<()> {
        self.raise_to_floor(floor, deadline).await
    }

    async fn forget(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<bool> {
        if self.space().redisson().is_some() {
            return Err(Failure::refused(BackendError::cannot_forget("redisson")));
        }
        let forget = || commands::forget(self.space(), key);
        let answer = self.ask(key, attempt.deadline, &forget).await?;
        match answer.value {
            Value::Int(forgotten) => Ok(forgotten == 1),
            _ => Err(unexpected_answer(&answer.from)),
        }
    }

    async fn break_off(
        &self,
        broken: &Break,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let (space, key) = (self.space(), &*broken.key);
        let build = || match &broken.whose {
            Whose::Holder(holder) if self.votes => commands::break_vote(space, key, &holder.owner),
            Whose::Holder(holder) => commands::break_lease(space, key, &holder.owner),
            Whose::Waiter(waiter) => commands::take_out(space, key, &waiter.owner),
        };
        if let (Whose::Waiter(_), true) = (&broken.whose, self.votes || space.redisson().is_some())
        {
            return Err(broken.refused(match space.redisson() {
                Some(_) => "redisson",
                None => "redis",
            }));
        }
        let answer = self.exchange(key, How::Plain, deadline, notes, &build);
        let answer = answer.await?;
        match answer.value {
            Value::Int(0) => Ok(Freed::NotHeld),
            Value::Int(_) => Ok(Freed::Released),
            _ => Err(unexpected_answer(&answer.from)),
        }
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        self.connector.endpoint.silent(for_long)
    }

    fn abandon(&self, _: &Request, notes: Notes, left: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(notes.in_flight.map(|connection| Flight {
            connection,
            ending: left.ending,
        }))
    }

    async fn follow(&self, flight: Flight, request: &Request) -> Followed {
        let Flight { connection, ending } = flight;
        // Whatever was in flight, it may have left a place in the queue.
        let ending = match ending {
            Ending::Released => Ending::Left,
            ending => ending,
        };
        // With the full script, since it is sent only once.
        let release = scripts::in_full(&self.release_of(ending, request));
        match connection.run_behind(release).await {
            Ok(Value::ServerError(error)) => {
                use RetryPolicy::{Ask, Cluster, Moved, Retry};
                // The commands in flight were run either completely before the slot moved, or not
                // at all.
                if let Moved | Ask | Cluster | Retry = classify(&error) {
                    return Followed::Run;
                }
            }
            Ok(_) => return Followed::Settled,
            Err(_) => {}
        }
        connection.discard();
        Followed::Unknown
    }

    fn late(&self, request: &Request, _: Option<&()>, sent_at: Instant) -> Late {
        Late::Until(Deadline::from(sent_at, request.ttl))
    }

    fn pace(&self, seen: &mut Seen) -> Duration {
        seen.ends.map_or(PERIOD, redisson::look::pace)
    }

    fn longest_for(&self, request: &Request) -> Option<Duration> {
        self.space().redisson()?.longest_for(request)
    }

    fn is_owner(holder: &HolderInfo, owner: Owner) -> bool {
        Field::read(&holder.owner).is_some_and(|field| field.owner == owner) || holder.shows(owner)
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        let Some(subscriptions) = &self.subscriptions else {
            return self.look(waited, beat, deadline).await;
        };
        let limit = deadline.within(PERIOD);
        // Side by side: a node that is silent must not leave the others without time for theirs.
        let leaving = async {
            let gone = subscriptions.leave_idle(LINGERS, limit).await;
            self.forget(gone, limit).await;
        };
        tokio::join!(self.look(waited, beat, limit), leaving).0
    }

    async fn disown(
        &self,
        key: &str,
        granted: &str,
        knows: &(dyn Fn(Owner) -> bool + Sync),
        deadline: Deadline,
    ) -> Attempted<()> {
        let space = self.space();
        let places = || commands::places(space, key, DISOWNED_AT_ONCE);
        let answer = self.ask(key, deadline, &places).await?;
        let Ok(places) = redis::from_redis_value::<Vec<Vec<u8>>>(answer.value) else {
            return Err(unexpected_answer(&answer.from));
        };
        // What is no text is somebody else's.
        let places = places.into_iter();
        let mut entries: Vec<_> = places
            .filter_map(|place| String::from_utf8(place).ok())
            .collect();
        let process = format!(":{}", self.process);
        entries.retain(|entry| {
            let is_unknown = |owner| !knows(owner);
            entry.ends_with(&process) && owner_of(entry).is_some_and(is_unknown)
        });
        entries.push(granted.to_owned());
        let disown = || commands::disown(space, key, &entries);
        let answer = self.ask(key, deadline, &disown).await?;
        tracing::debug!(
            target: "dlock::store",
            "lock `{}` was granted to {} who do not wait for it any more; the server had {:?} of \
             their places and grants",
            Shown(key),
            entries.len(),
            answer.value
        );
        Ok(())
    }

    async fn farewell(&self, deadline: Deadline) {
        match &self.subscriptions {
            Some(subscriptions) => {
                let gone = subscriptions.leave_idle(Duration::ZERO, deadline).await;
                self.forget(gone, deadline).await;
            }
            None => self.farewell_to("", deadline).await,
        }
    }

    fn stored_as(&self, key: &str) -> Vec<String> {
        self.space().stored_as(key)
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        self.look_at(key, SHOWN_WAITERS, attempt.deadline).await
    }

    async fn list_some(
        &self,
        prefix: &str,
        most: usize,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Listed>> {
        self.next_of_list(prefix, most, deadline, notes).await
    }
}

impl RedisStore {
    /// Fails if other slots vote instead of this one.
    pub(super) fn check_electorate(&self) -> Result<(), BackendError> {
        self.electorate.as_ref().map_or(Ok(()), |all| all.check())
    }

    /// The command that gives back what a request holds.
    fn release_of(&self, ending: Ending, request: &Request) -> Cmd {
        let space = self.space();
        if self.votes {
            return commands::release_vote(space, request, ending != Ending::Outvoted);
        }
        // A caller that has left may have a place in the queue instead, or as well. A mark needs
        // this argument too, since the script counts its arguments.
        let queued_by = (ending != Ending::Released).then_some(self.process);
        let done_for = match ending {
            Ending::Done(time) => Some(time),
            Ending::Released | Ending::Left | Ending::Outvoted => None,
        };
        commands::release(space, request, queued_by, done_for)
    }

    /// Removes the sign of life for these locks of a cluster: nobody in this process waits for
    /// them any more.
    async fn forget(&self, keys: Vec<Arc<str>>, deadline: Deadline) {
        let farewells = keys.iter().map(|key| self.farewell_to(key, deadline));
        all(farewells).await;
        for key in &keys {
            // A waiter that came in the meantime may have been passed over as dead.
            self.events.freed(key);
        }
    }

    /// What the request listens to while it waits.
    fn topic(&self, request: &Request) -> Topic {
        self.space().topic(&request.key, request.owner)
    }

    /// Takes a free lock by the plain command, as the first question. It is asked again after it
    /// was refused for want of replicas: up to Redis 6.2, a master that was cut off refuses only
    /// plain commands, and would grant the lock to the script. `None`: the script is to be asked.
    async fn ask_plainly(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<Option<Answer>, Failure> {
        let was_refused = std::mem::take(&mut notes.lacks_replicas);
        let is_first = want == Want::First;
        if !(is_first || was_refused) {
            return Ok(None);
        }
        let set = || commands::take(self.space(), request);
        let answer = self.exchange(&request.key, How::Take, deadline, notes, &set);
        let answer = answer.await.map_err(|failure| match failure.applied {
            // The server refused the command, so it has done nothing.
            Applied::Answered => failure.with(Applied::No),
            _ => failure,
        })?;
        // If somebody has the lock, only the script can give a place in the queue.
        Ok((is_first || answer.value == Value::Okay).then_some(answer))
    }

    /// Asks for the lock by the script, which a waiter may repeat as often as it likes.
    pub(super) async fn ask_for_lock(
        &self,
        request: &Request,
        queues: bool,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<Answer, Failure> {
        let highest = self.connector.highest_token.load(Ordering::Relaxed);
        let build = || commands::acquire(self.space(), request, self.process, queues, highest);
        let asked = self.exchange(&request.key, How::Plain, deadline, notes, &build);
        asked.await
    }

    /// What the answer says to a request that did not get the lock.
    fn not_granted(
        &self,
        request: &Request,
        queues: bool,
        answer: &Answer,
    ) -> Result<Take<Self>, Failure> {
        self.events.answered(answer.sent_at);
        if let Some(layout) = self.space().redisson() {
            let has_place = queues && layout.recipe.queues();
            return Ok(if has_place { Take::Queued } else { Take::Busy });
        }
        if let Value::BulkString(value) = &answer.value {
            if done_by(value).is_some() {
                return Ok(Take::Done);
            }
            if let (Mode::Permits(_), Some(held)) = (request.mode, LockValue::parse(value)) {
                // One of the holders that share the lock.
                request.note_mode(held.mode);
            }
        }
        if !queues {
            return Ok(Take::Busy);
        }
        if answer.value == Value::BulkString(TAKEN_OUT.into()) {
            return Err(Failure::refused(BackendError::taken_out()));
        }
        self.events.beats(answer.sent_at);
        Ok(Take::Queued)
    }

    /// Subscribes before the request takes a place: a waiter that cannot be notified of its turn
    /// would be passed over. If the subscription fails, the request waits all the same.
    async fn listen(&self, request: &Request, deadline: Deadline) {
        let heard = &self.topic(request);
        match &self.route {
            Route::One(one, _) => match &self.subscriptions {
                // Messages come over the manager's connection.
                None => one.of_manager().prepare(),
                Some(subscriptions) if subscriptions.is_subscribed(heard) => {}
                Some(subscriptions) => {
                    // Makes sure that the subscription is left again, whatever becomes of the
                    // caller.
                    self.events.beats(self.connector.time.now());
                    let patience = self.connector.settings.patience();
                    let limit = deadline.within(patience / 2);
                    if let Ok(connection) = one.of_manager().connection(limit).await {
                        let _ = subscriptions.listen(heard, &connection, limit).await;
                    }
                }
            },
            Route::BySlot(topology) => {
                let patience = self.connector.settings.patience();
                let _ = topology.listen(heard, deadline.within(patience / 2)).await;
            }
        }
    }

    /// With `replicas=N`, the lock counts from the moment when N replicas have it. Until then the
    /// lock, which this owner already has, is confirmed again.
    async fn confirmed(&self, request: &Request, deadline: Deadline) -> Result<Instant, Failure> {
        // There is time for this, however late the first answer was seen.
        let patience = self.connector.settings.patience();
        let deadline = deadline.max(Deadline::after(patience));
        let failure = match self.renew_one(request, deadline).await {
            Ok(Renewed::Extended { sent_at }) => return Ok(sent_at.into_std()),
            // The lock is at another server, or free. Asking again at once might find the same.
            Ok(Renewed::Gone) => Failure::not_sent(),
            Err(failure) => failure,
        };
        Err(failure.with(Applied::Answered))
    }
}
