//! The commands of one operation: what the engine asks of Redis, be it one server,
//! the master that sentinels name, or a cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio_util::sync::CancellationToken;

use super::attempt::Attempt;
use super::commands;
use super::config::{Config, Found};
use super::confirm::Confirmer;
use super::connection::Connection;
use super::connector::Listener;
use super::durability;
use super::errors::{Remedy, remedy};
use super::look::{self, Seen};
use super::names::Keyspace;
use super::process::Process;
use super::scripts::{ALIVE, CLAIM, Form};
use super::sentinel;
use super::server_connections::One;
use super::servers::{Answer, Route, Servers};
use super::settings;
use super::topology::{self, Subscriptions, Topology};
use super::values::owner_of;
use super::wake_ups::{VotesGivenBack, WakeUps};
use crate::backend::{
    self, BackendError, Capabilities, LockInfo, Mode, Owner, Renewed, Request, TokenTier,
};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::key::Shown;
use crate::store::{
    Abandoned, Context, Due, Ending, Failure, Followed, Freed, Late, LeftBehind, Looks, Opening,
    Store, Take, Waited, Want,
};

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
    pub(super) confirmer: Option<Confirmer>,
    found: Found,
    votes: bool,
    release: Release,
    /// Its tasks are to end.
    stopping: CancellationToken,
}

/// The command that gives a lease back. With a process, the owner may be in the
/// queue of that instead, or as well.
type Release = fn(&Keyspace, Form, &Request, Option<Process>) -> Cmd;

/// Commands on their way: a release behind them, over their connection, is run after
/// them.
pub(crate) struct Flight {
    connection: Connection,
    release: Release,
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

    fn open(mut config: Config, context: Context) -> Self {
        config.settings.request_timeout = context.request_timeout;
        let Context { time, events, .. } = context;
        let (process, stopping) = (Process::unique(), CancellationToken::new());
        let release = match config.votes {
            false => commands::release,
            true => commands::release_vote,
        };
        let (connector, route) = match &config.found {
            Found::ByNodes(..) => {
                let subscriptions = Subscriptions::new(process, events.clone());
                let listeners = subscriptions.listeners();
                let topology = Topology::new(config.nodes(), time.clock(), listeners);
                topology::start(&topology, &subscriptions, &time, &stopping);
                let connector = config.connector(topology.place.clone(), time.clock());
                let route = Route::Cluster {
                    topology,
                    subscriptions,
                };
                (connector, route)
            }
            found => {
                let connector = config.connector(config.settings.place(), time.clock());
                let (space, events) = (config.settings.space.clone(), events.clone());
                let listener: Arc<dyn Listener> = match config.votes {
                    false => Arc::new(WakeUps { process, events }),
                    true => Arc::new(VotesGivenBack { space, events }),
                };
                let connections = One::new(&connector, listener);
                let route = match found {
                    Found::OfSlot(topology, _) => Route::Voter {
                        connections,
                        topology: Arc::clone(topology),
                    },
                    _ => Route::One(connections),
                };
                (connector, route)
            }
        };
        let replicas = connector.settings.replicas;
        let confirmer = (replicas > 0).then(|| Confirmer::start(&connector, &time));
        if let (Found::BySentinels(sentinels), Route::One(one)) = (&config.found, &route) {
            let confirming = confirmer.iter().map(Confirmer::connections);
            let all = std::iter::once(&one.connections).chain(confirming);
            let follow = sentinel::follow(
                Arc::clone(sentinels),
                Arc::clone(&connector),
                all.cloned().collect(),
                stopping.clone(),
            );
            time.spawn(follow);
        }
        Self {
            servers: Servers { connector, route },
            process,
            events,
            confirmer,
            votes: config.votes,
            found: config.found,
            release,
            stopping,
        }
    }

    async fn check(&self, deadline: Deadline) -> Result<(), Failure> {
        let (servers, process) = (&self.servers, self.process);
        if let Route::Cluster { topology, .. } = &servers.route {
            return servers.check_cluster(topology, process, deadline).await;
        }
        let link = servers.link("", deadline).await?;
        servers.check_server(&link, process, "", deadline).await?;
        if let Found::BySentinels(sentinels) = &self.found {
            sentinels.warn_of_their_number();
            let needed = servers.connector.settings.replicas;
            if needed > 0 {
                let (attempt, role) = (&mut Attempt::default(), |_| commands::role());
                let role = servers.ask("", deadline, attempt, role).await?;
                sentinels.warn_of_replicas(&role.value, needed);
            }
        }
        Ok(())
    }

    fn close(&self) {
        self.stopping.cancel();
        match &self.servers.route {
            Route::One(one)
            | Route::Voter {
                connections: one, ..
            } => one.close(),
            Route::Cluster { topology, .. } => topology.close(),
        }
        if let Some(confirmer) = &self.confirmer {
            confirmer.connections().close();
        }
    }

    fn capabilities(config: &Config) -> Capabilities {
        let (name, strict_with, in_order) = match config.found {
            Found::At(_) => ("redis", durability::STRICT_WITH, true),
            // A failover may take a replica that lacks the last of them.
            Found::BySentinels(_) => ("redis", "", true),
            Found::ByNodes(..) | Found::OfSlot(..) => ("cluster", "", false),
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
        Some(match &config.found {
            Found::At(_) | Found::OfSlot(..) => settings::servers([&config.settings]),
            Found::ByNodes(_, nodes) => settings::servers(nodes),
            Found::BySentinels(sentinels) => {
                let mut servers = settings::servers([&config.settings]);
                let (name, hosts) = sentinels.servers();
                (servers.name, servers.hosts) = (Some(name), hosts);
                servers
            }
        })
    }

    fn tokens(&self) -> Option<TokenTier> {
        Some(self.servers.connector.tokens.get())
    }

    fn located(&self) -> Option<backend::Servers> {
        let Route::Cluster { topology, .. } = &self.servers.route else {
            return None;
        };
        // Each master has locks of its own.
        let masters = topology.masters().into_iter();
        let masters: Vec<_> = masters.map(|node| node.address.to_string()).collect();
        let mut servers = settings::servers(&topology.seeds);
        if !masters.is_empty() {
            servers.hosts = masters;
        }
        Some(servers)
    }

    fn opening(&self, request: &Request) -> Opening {
        match &self.servers.route {
            // Each slot has a counter of its own: the script is the cheapest way. A
            // place in the queue needs a subscription, and the lock may be free.
            Route::Cluster { subscriptions, .. } if !subscriptions.hears(&request.key) => {
                Opening::Try
            }
            Route::One(_) | Route::Voter { .. } if request.mode == Mode::Write => Opening::First,
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
        self.first(request, deadline, attempt).await
    }

    /// Those of one node must not wait for long for those of another.
    fn renews_within(&self, request_timeout: Duration, shortest: Duration) -> Duration {
        match self.servers.route {
            Route::One(_) | Route::Voter { .. } => request_timeout,
            Route::Cluster { .. } => {
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
        match (&self.confirmer, &self.servers.route) {
            (Some(confirmer), _) => confirmer.renew(&requests, deadline).await,
            (None, Route::Cluster { topology, .. }) => {
                self.servers
                    .renew_by_node(topology, &requests, deadline)
                    .await
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
        // Who has left may be in the queue instead, or as well.
        let queued_by = (ending == Ending::Left).then_some(self.process);
        let release = self.release_of(ending);
        let build = |form| release(servers.space(), form, request, queued_by);
        let followed = request.is_followed();
        let answer = servers.exchange(key, followed, deadline, attempt, build);
        match answer.await? {
            Answer {
                value: Value::Int(1),
                ..
            } => Ok(Freed::Released),
            Answer {
                value: Value::Int(_),
                ..
            } => Ok(Freed::NotHeld),
            Answer { link, .. } => Err(servers.nonsense(&link)),
        }
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        self.servers.connector.place.silent(for_long)
    }

    fn abandon(&self, _: &Request, attempt: Attempt, left: &LeftBehind) -> Abandoned<Self> {
        let release = self.release_of(left.ending);
        Abandoned::in_flight(attempt.in_flight.map(|connection| Flight {
            connection,
            release,
        }))
    }

    async fn follow(&self, flight: Flight, request: &Request) -> Followed {
        for form in [Form::Digest, Form::Source] {
            let (space, process) = (self.servers.space(), self.process);
            let release = (flight.release)(space, form, request, Some(process));
            match flight.connection.run_behind(release).await {
                Ok(Value::ServerError(error)) => match remedy(&error) {
                    Remedy::SendScript => {}
                    // Nothing of it was run before the slot moved, or all of it.
                    Remedy::Moved | Remedy::Ask | Remedy::Cluster | Remedy::Retry => {
                        return Followed::Run;
                    }
                    _ => break,
                },
                Ok(_) => return Followed::Settled,
                Err(_) => break,
            }
        }
        flight.connection.discard();
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
        match &servers.route {
            Route::Cluster { subscriptions, .. } => {
                let limit = deadline.within(PERIOD);
                let looked = look::at_slots(servers, self.process, waited, beat, limit).await;
                self.forget(subscriptions.sweep(), limit).await;
                looked
            }
            _ => look::at_server(servers, self.process, waited, beat, deadline).await,
        }
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
        let places = |form| commands::places(space, form, key, self.process, DISOWNED_AT_ONCE);
        let answer = self.servers.ask(key, deadline, attempt, places).await?;
        let Ok(mut entries) = redis::from_redis_value::<Vec<String>>(answer.value) else {
            return Err(self.servers.nonsense(&answer.link));
        };
        entries.retain(|entry| owner_of(entry).is_some_and(|owner| !knows(owner)));
        entries.push(granted.to_owned());
        let disown = |form| commands::disown(space, form, key, &entries);
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
            Route::Cluster { subscriptions, .. } => {
                self.forget(subscriptions.sweep_all(), deadline).await;
            }
            _ => look::farewell(&self.servers, self.process, deadline).await,
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
    /// Who cannot be told of its turn would be passed over. But whether it can must not
    /// decide on whether it may wait.
    pub(super) async fn listen(&self, key: &Arc<str>, deadline: Deadline, attempt: &mut Attempt) {
        match &self.servers.route {
            // A message comes over the manager's connection.
            Route::One(one)
            | Route::Voter {
                connections: one, ..
            } => one.lane.prepare(),
            Route::Cluster { subscriptions, .. } if attempt.subscription.is_none() => {
                let subscription = Box::new(subscriptions.subscribe(key));
                let subscription = attempt.subscription.insert(subscription);
                let connector = &self.servers.connector;
                let limit = deadline.within(connector.settings.patience() / 2);
                let _ = connector.clock.bound(limit, subscription.is_heard()).await;
            }
            Route::Cluster { .. } => {}
        }
    }

    fn release_of(&self, ending: Ending) -> Release {
        match ending {
            Ending::Released | Ending::Left => self.release,
            // That tells nobody, where there is no queue.
            Ending::Outvoted => commands::release,
        }
    }

    /// Nobody in this process waits for these locks of a cluster any more.
    async fn forget(&self, keys: Vec<Arc<str>>, deadline: Deadline) {
        look::forget(&self.servers, self.process, &keys, deadline).await;
        for key in &keys {
            // Who came in the meantime may have been passed over as dead.
            self.events.freed(key);
        }
    }
}
