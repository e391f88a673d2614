//! The commands of one operation: what the engine asks of Redis, be it one server,
//! the master that sentinels name, or a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::batcher::How;
use super::commands;
use super::config::{Config, Electorate};
use super::confirm::Confirmer;
use super::connection::Connection;
use super::connections::Connections;
use super::connector::Connector;
use super::durability;
use super::errors::{RetryPolicy, classify};
use super::listener::Listener;
use super::locate::Locator;
use super::look::{self, Seen};
use super::names::Keyspace;
use super::scripts::{self, ALIVE, CLAIM};
use super::sentinel;
use super::servers::{Attempt, Route, Servers};
use super::timer::Sending;
use super::topology::{self, Topology};
use super::values::{Process, owner_of};
use crate::backend::{
    self, BackendError, Capabilities, LockInfo, Mode, Owner, Renewed, Request, TokenTier,
};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::key::Shown;
use crate::store::{
    Abandoned, Applied, Context, Due, Ending, Failure, Followed, Freed, Granted, Late, LeftBehind,
    Looks, Opening, Store, Take, Waited, Want,
};
use crate::token::TOKENS_PER_GRANT;

/// Within the time for which a process counts as alive, twice.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// How often a lock is looked at that somebody waits for.
const PERIOD: Duration = Duration::from_secs(1);

/// So many places are asked for, and so many are undone, in one command: the
/// server does nothing else meanwhile. If there are more, the next of them is
/// granted the lock, and it goes on from there.
const DISOWNED_AT_ONCE: usize = 500;

pub(crate) struct RedisStore {
    pub(super) servers: Servers,
    pub(super) process: Process,
    pub(super) events: Events,
    confirmer: Option<Confirmer>,
    votes: bool,
    electorate: Option<Arc<dyn Electorate>>,
}

/// Commands on their way: a release behind them, over their connection, is run after
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
    type Attempt = Attempt;
    type Flight = Flight;
    type Watch = std::convert::Infallible;
    type Seen = Seen;

    const LOOKS: Looks = Looks::Together;
    const BEAT: Option<Duration> = Some(HEARTBEAT);
    const DEAD_AFTER: Duration = ALIVE;
    const CLAIM: Option<Duration> = Some(CLAIM);

    fn open(config: Config, context: Context) -> Self {
        let Config {
            mut settings,
            locator,
            votes,
            electorate,
        } = config;
        settings.request_timeout = context.request_timeout;
        let (process, events) = (Process::unique(), context.events.clone());
        let connector = Connector::new(settings.clone(), locator, context.time.clone());
        let route = if let Locator::Cluster(nodes) = &connector.locator {
            let topology = Topology::new(settings, nodes.clone(), process, &context);
            context.spawn(topology::keep_up_to_date(Arc::clone(&topology)));
            Route::BySlot(topology)
        } else {
            let listener = Listener {
                space: connector.space.clone(),
                events: events.clone(),
                // Who waits for votes listens to the locks.
                channel: (!votes).then(|| connector.space.wake_channel(process, "")),
            };
            let connections = Arc::new(Connections::new(Arc::clone(&connector), Some(listener)));
            let topology = electorate.as_ref().map(|all| Arc::clone(all.topology()));
            Route::One(connections, topology)
        };
        let confirms = connector.settings.replicas > 0;
        let confirmer = confirms.then(|| Confirmer::new(&connector));
        context.spawn(sentinel::follow(Arc::clone(&connector)));
        Self {
            servers: Servers { connector, route },
            process,
            events,
            confirmer,
            votes,
            electorate,
        }
    }

    async fn check(&self, deadline: Deadline) -> Result<(), Failure> {
        let (servers, process) = (&self.servers, self.process);
        if let Route::BySlot(topology) = &servers.route {
            return servers.check_cluster(topology, process, deadline).await;
        }
        let server = servers.connection("", deadline).await?;
        servers.check_server(&server, process, "", deadline).await?;
        if let Locator::Sentinels(sentinels) = &servers.connector.locator {
            sentinels.warn_of_their_number();
            let needed = servers.connector.settings.replicas;
            if needed > 0 {
                let attempt = &mut Attempt::default();
                let role = servers.ask("", deadline, attempt, commands::role).await?;
                sentinels.warn_of_replicas(&role.value, needed);
            }
        }
        Ok(())
    }

    fn close(&self) {
        match &self.servers.route {
            Route::One(one, _) => one.close(),
            Route::BySlot(topology) => topology.close(),
        }
        if let Some(confirmer) = &self.confirmer {
            confirmer.connections().close();
        }
        if let Some(electorate) = &self.electorate {
            electorate.close();
        }
    }

    fn capabilities(config: &Config) -> Capabilities {
        let (name, strict_with, in_order) = match config.locator {
            Locator::At(_) => ("redis", durability::STRICT_WITH, true),
            // A failover may take a replica that lacks the last of them.
            Locator::Sentinels(_) => ("redis", "", true),
            Locator::Cluster(_) | Locator::Node(_) | Locator::Slot(..) => ("cluster", "", false),
        };
        Capabilities {
            fair: true,
            tokens: TokenTier::BestEffort,
            strict_with,
            read_write: true,
            in_order,
            ..Capabilities::new(name)
        }
    }

    fn servers(config: &Config) -> Option<backend::Servers> {
        Some(config.servers())
    }

    fn tokens(&self) -> Option<TokenTier> {
        Some(self.servers.connector.tokens.get())
    }

    fn located(&self) -> Option<backend::Servers> {
        // Each master has locks of its own.
        let masters = self.servers.topology()?.map.masters();
        (!masters.is_empty()).then(|| {
            let masters = masters.iter().map(|node| (**node).clone());
            let Connector { settings, .. } = &*self.servers.connector;
            Config::new(settings.clone(), Locator::Cluster(masters.collect())).servers()
        })
    }

    fn opening(&self, request: &Request) -> Opening {
        match &self.servers.route {
            // Each slot has a counter of its own: the script is the cheapest way. A
            // place in the queue needs a subscription, and the lock may be free.
            Route::BySlot(topology) if !topology.subscriptions.hears(&request.key) => Opening::Try,
            Route::One(..) if request.mode == Mode::Write => Opening::First,
            _ => Opening::Place,
        }
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        if want != Want::First {
            return Box::pin(self.acquire(request, want, deadline, attempt)).await;
        }
        let servers = &self.servers;
        let server = servers.connection(&request.key, deadline).await?;
        let at = Sending::now(deadline);
        attempt.in_flight = Some(server.clone());
        let set = commands::take(servers.space(), request);
        let answers = server.run(set, How::Take, at).await;
        let (error, applied) = match servers.hear(&server, attempt, at.at, answers)? {
            [Value::Okay, Value::Int(last)] => {
                return self.granted(request, &server, last, at, attempt).await;
            }
            [Value::Nil, _] => return Ok(Take::Busy),
            // Taken, but without a token. The script asks for one again.
            [Value::Okay, Value::ServerError(error)] => (error, Applied::Answered),
            [Value::ServerError(error), _] => (error, Applied::No),
            _ => return Err(servers.nonsense(&server)),
        };
        let refused = servers.refused(&server, &request.key, error, deadline, attempt);
        Err(Failure {
            applied,
            ..Box::pin(refused).await
        })
    }

    /// Those of one node must not wait for long for those of another.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        match self.servers.route {
            Route::One(..) => request_timeout,
            Route::BySlot(_) => {
                let patience = self.servers.connector.settings.patience();
                patience.min(shortest / 4)
            }
        }
    }

    async fn renew(
        &self,
        due: &mut [Due<Self>],
        deadline: Deadline,
        _: &mut Attempt,
    ) -> Vec<Result<Renewed, Failure>> {
        let requests: Vec<_> = due.iter().map(|due| &due.request).collect();
        if self.is_replaced().is_err() {
            // The others may have granted them to somebody else.
            return requests.iter().map(|_| Ok(Renewed::Gone)).collect();
        }
        match (&self.confirmer, &self.servers.route) {
            (Some(confirmer), _) => confirmer.renew_all(&requests, deadline).await,
            (None, Route::BySlot(topology)) => {
                let servers = &self.servers;
                servers.renew_by_node(topology, &requests, deadline).await
            }
            (None, _) => self.servers.renew_together(&requests, deadline).await,
        }
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&()>,
        ending: Ending,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Freed, Failure> {
        let (key, servers) = (&request.key, &self.servers);
        let build = || self.release_of(ending, request);
        let how = match request.is_followed() {
            true => How::WithTheNext,
            false => How::Plain,
        };
        let answer = servers.exchange(key, how, deadline, attempt, build);
        let answer = answer.await?;
        match answer.value {
            Value::Int(1) => Ok(Freed::Released),
            Value::Int(_) => Ok(Freed::NotHeld),
            _ => Err(servers.nonsense(&answer.from)),
        }
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        self.servers.connector.endpoint.silent(for_long)
    }

    fn abandon(&self, _: &Request, attempt: Attempt, left: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(attempt.in_flight.map(|connection| Flight {
            connection,
            ending: left.ending,
        }))
    }

    async fn follow(&self, flight: Flight, request: &Request) -> Followed {
        let Flight { connection, ending } = flight;
        // Whatever was on its way, it may have left a place.
        let ending = match ending {
            Ending::Released => Ending::Left,
            ending => ending,
        };
        for in_full in [false, true] {
            let release = scripts::in_form(self.release_of(ending, request), in_full);
            match connection.run_behind(release).await {
                Ok(Value::ServerError(error)) => match classify(&error) {
                    RetryPolicy::SendScript => {}
                    // Nothing of it was run before the slot moved, or all of it.
                    RetryPolicy::Moved
                    | RetryPolicy::Ask
                    | RetryPolicy::Cluster
                    | RetryPolicy::Retry => return Followed::Run,
                    _ => break,
                },
                Ok(_) => return Followed::Settled,
                Err(_) => break,
            }
        }
        connection.discard();
        Followed::Unknown
    }

    fn late(&self, request: &Request, _: Option<&()>, sent_at: Instant) -> Late {
        Late::Until(Deadline::from(sent_at, request.ttl))
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let servers = &self.servers;
        let Route::BySlot(topology) = &servers.route else {
            return look::at_server(servers, self.process, waited, beat, deadline).await;
        };
        let limit = deadline.within(PERIOD);
        let looked = look::at_slots(servers, self.process, waited, beat, limit).await;
        let gone = topology.subscriptions.sweep(limit).await;
        self.forget(gone, limit).await;
        looked
    }

    async fn disown(
        &self,
        key: &str,
        granted: &str,
        knows: &(dyn Fn(Owner) -> bool + Sync),
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<(), Failure> {
        let space = self.servers.space();
        let places = || commands::places(space, key, self.process, DISOWNED_AT_ONCE);
        let answer = self.servers.ask(key, deadline, attempt, places).await?;
        let Ok(mut entries) = redis::from_redis_value::<Vec<String>>(answer.value) else {
            return Err(self.servers.nonsense(&answer.from));
        };
        entries.retain(|entry| owner_of(entry).is_some_and(|owner| !knows(owner)));
        entries.push(granted.to_owned());
        let disown = || commands::disown(space, key, &entries);
        let answer = self.servers.ask(key, deadline, attempt, disown).await?;
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
        match &self.servers.route {
            Route::BySlot(topology) => {
                let gone = topology.subscriptions.sweep_all(deadline).await;
                self.forget(gone, deadline).await;
            }
            Route::One(..) => look::farewell(&self.servers, self.process, "", deadline).await,
        }
    }

    async fn inspect(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<LockInfo>, Failure> {
        let mut lock = self.servers.inspect(key, deadline, attempt).await?;
        if self.votes {
            self.count_listeners(lock.as_mut_slice(), deadline).await;
        }
        Ok(lock)
    }

    async fn list(
        &self,
        prefix: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Option<Vec<LockInfo>>, Failure> {
        let mut locks = self.servers.next_of_list(prefix, deadline, attempt).await?;
        if let Some(locks) = locks.as_mut().filter(|_| self.votes) {
            self.count_listeners(locks, deadline).await;
        }
        Ok(locks)
    }
}

impl RedisStore {
    /// Whether others vote in this one's place.
    pub(super) fn is_replaced(&self) -> Result<(), BackendError> {
        self.electorate.as_ref().map_or(Ok(()), |all| all.check())
    }

    /// The command that gives back what a request has.
    fn release_of(&self, ending: Ending, request: &Request) -> Cmd {
        let space = self.servers.space();
        match ending {
            Ending::Released | Ending::Left if self.votes => commands::release_vote(space, request),
            // Who has left may be in the queue instead, or as well.
            Ending::Left => commands::release(space, request, Some(self.process)),
            // That tells nobody, where there is no queue.
            Ending::Released | Ending::Outvoted => commands::release(space, request, None),
        }
    }

    /// Nobody in this process waits for these locks of a cluster any more.
    async fn forget(&self, keys: Vec<Arc<str>>, deadline: Deadline) {
        let farewells = keys
            .iter()
            .map(|key| look::farewell(&self.servers, self.process, key, deadline));
        join_all(farewells).await;
        for key in &keys {
            // Who came in the meantime may have been passed over as dead.
            self.events.freed(key);
        }
    }

    /// The one question of a waiter, asked as often as it likes.
    pub(super) async fn acquire(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let queues = matches!(want, Want::Queue { .. });
        if queues {
            self.listen(&request.key, deadline).await;
        }
        let (servers, process) = (&self.servers, self.process);
        let highest = servers.connector.highest_token.load(Ordering::Relaxed);
        let build = || commands::acquire(servers.space(), request, process, queues, highest);
        let answer = servers.ask(&request.key, deadline, attempt, build).await?;
        match answer.value {
            Value::Int(0) => {
                self.events.heard(answer.sent_at);
                if queues {
                    self.events.beats(answer.sent_at);
                    return Ok(Take::Queued);
                }
                Ok(Take::Busy)
            }
            Value::Int(last) => {
                let at = Sending {
                    at: answer.sent_at,
                    deadline,
                };
                self.granted(request, &answer.from, last, at, attempt).await
            }
            _ => Err(servers.nonsense(&answer.from)),
        }
    }

    /// Who cannot be told of its turn would be passed over. But whether it can must not
    /// decide on whether it may wait.
    async fn listen(&self, key: &Arc<str>, deadline: Deadline) {
        match &self.servers.route {
            // A message comes over the manager's connection.
            Route::One(one, _) => one.of_manager().prepare(),
            Route::BySlot(topology) => {
                let patience = self.servers.connector.settings.patience();
                let _ = topology.listen(key, deadline.within(patience / 2)).await;
            }
        }
    }

    /// The lock is held. `last` is the last of the numbers that were drawn.
    async fn granted(
        &self,
        request: &Request,
        server: &Connection,
        last: i64,
        at: Sending,
        attempt: &mut Attempt,
    ) -> Result<Take<Self>, Failure> {
        let (mut token, mut sent_at) = (first_of(last), at.at);
        if token <= server.token_floor() {
            // The counter has lost what it was when this connection was made.
            token = Box::pin(self.draw_again(server, at.deadline, attempt)).await?;
        }
        let highest = &self.servers.connector.highest_token;
        highest.fetch_max(token + (TOKENS_PER_GRANT - 1), Ordering::Relaxed);
        if let Some(confirmer) = &self.confirmer {
            // Who leaves meanwhile leaves the lock.
            attempt.in_flight = Some(server.clone());
            let confirmed = Box::pin(self.confirmed(confirmer, request, at.deadline)).await;
            attempt.in_flight = None;
            sent_at = confirmed?;
        }
        Ok(Take::Granted(Granted {
            token,
            sent_at,
            record: (),
        }))
    }

    /// The lock counts when so many replicas have it, and from then on. Until that is
    /// so it is asked for again, as it is this owner's.
    async fn confirmed(
        &self,
        confirmer: &Confirmer,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Instant, Failure> {
        // However late the answer was seen.
        let settings = &self.servers.connector.settings;
        let deadline = deadline.max(Deadline::after(settings.patience()));
        let failure = match confirmer.renew(request, deadline).await {
            Ok(Renewed::Extended { sent_at }) => return Ok(sent_at.into_std()),
            // It is elsewhere, or free: to ask at once might find the same.
            Ok(Renewed::Gone) => Failure::not_sent(),
            Err(failure) => failure,
        };
        Err(Failure {
            applied: Applied::Answered,
            ..failure
        })
    }

    /// Lifts the counter above what it was, and draws from it. Still before any later
    /// grant, as the lock is held.
    async fn draw_again(
        &self,
        server: &Connection,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<u64, Failure> {
        let commands = commands::pipeline([
            commands::lift_tokens(&Keyspace::Server, server.token_floor()),
            commands::draw_tokens(&Keyspace::Server, 1),
        ]);
        // Who leaves meanwhile leaves the lock.
        let answers = self.servers.ask_all(server, &commands, deadline, attempt);
        let (answers, _) = answers.await.map_err(|failure| Failure {
            applied: Applied::Answered,
            ..failure
        })?;
        match <[Value; 2]>::try_from(answers) {
            Ok([Value::Int(_), Value::Int(last)]) => Ok(first_of(last)),
            Ok([Value::ServerError(error), _] | [_, Value::ServerError(error)]) => {
                let refused = self.servers.refused(server, "", error, deadline, attempt);
                Err(refused.await)
            }
            _ => Err(self.servers.nonsense(server)),
        }
    }
}

/// `INCRBY` answers with the last of the numbers that it reserves.
fn first_of(last: i64) -> u64 {
    last.unsigned_abs().saturating_sub(TOKENS_PER_GRANT - 1)
}
