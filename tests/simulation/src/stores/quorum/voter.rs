//! What the quorum asks of a node: its vote.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock::backend::{
    BackendError, Capabilities, HolderInfo, LockInfo, Mode, Owner, Renewed, Request, Servers,
    TokenTier,
};
use dlock_runtime::quorum::voter::{Holder, Vote, Voter};
use dlock_runtime::store::{
    Abandoned, Applied, Attempt, Attempted, Context, Deadline, Due, Ending, Events, Failure,
    Followed, Freed, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want,
};

use super::node::{Answer, Asked, Command, Node};
use crate::network::{Connection, LATEST, Pushed};
use crate::stores::client::{Client, Config, not_reached, silent, unknown};
use crate::stores::listening::listen;

type Sent = Arc<Connection<Node>>;

pub(crate) struct Voting {
    client: Arc<Client<Node>>,
    events: Events,
    ear: Arc<Ear>,
    /// The highest number that this process was given.
    given: AtomicU64,
}

/// The connection that it listens over, while there is one.
type Ear = Mutex<Option<Sent>>;

#[derive(Default)]
pub(crate) struct Notes {
    flight: Option<Sent>,
}

impl Voting {
    /// An answer that is later than the deadline may come yet. One that is later than
    /// any is not waited for.
    async fn ask(
        &self,
        command: Command,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<(Answer, Instant), Failure> {
        let time = &self.client.time;
        let connection = self.client.connection(deadline).await?;
        let sent_at = time.now();
        notes.flight = Some(Arc::clone(&connection));
        let patience = time.after(self.client.patience);
        let answer = time.bound(patience.min(deadline), connection.send(command));
        match answer.await {
            Ok(answer) => {
                notes.flight = None;
                let answer = answer.map_err(|_| unknown(sent_at))?;
                self.events.answered(sent_at);
                Ok((answer, sent_at))
            }
            Err(_) if deadline < patience => Err(Failure::silent(Applied::OnItsWay)),
            Err(_) => {
                notes.flight = None;
                connection.close();
                Err(unknown(sent_at))
            }
        }
    }

    async fn ask_alone(&self, command: Command, deadline: Deadline) -> Result<Answer, Failure> {
        let (answer, _) = self.ask(command, deadline, &mut Notes::default()).await?;
        Ok(answer)
    }

    async fn locks(
        &self,
        is_one: impl Fn(&str) -> bool,
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, Failure> {
        let Answer::Locks(locks) = self.ask_alone(Command::List, deadline).await? else {
            return Err(nonsense());
        };
        let locks = locks.into_iter().filter(|(key, _)| is_one(key));
        let locks = locks.filter_map(|(key, holders)| {
            let mode = holders.first()?.asked.mode;
            let holders = holders.iter();
            let holders =
                holders.map(|holder| HolderInfo::new(holder.asked.owner.to_string(), None));
            Some(LockInfo::new(key.to_string(), mode, holders.collect(), 0))
        });
        Ok(locks.collect())
    }
}

fn set(ear: &Ear, connection: Option<Sent>) {
    *ear.lock().unwrap_or_else(PoisonError::into_inner) = connection;
}

impl Voter for Voting {
    type Connection = Sent;
    /// What is listened to, over which connection.
    type Listening = Option<(u64, BTreeSet<Arc<str>>)>;

    fn place(&self) -> String {
        format!("{:?}", self.client.config.server.id)
    }

    async fn identity(&self, _: Deadline) -> Option<String> {
        Some(self.place())
    }

    fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    async fn vote(
        &self,
        request: &Request,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Vote> {
        let asked = Asked {
            owner: request.owner,
            process: self.client.config.process.id,
            mode: request.mode,
            ttl: request.ttl,
        };
        let above = self.given.load(Ordering::Relaxed);
        let command = Command::Vote(Arc::clone(&request.key), asked, above);
        match self.ask(command, deadline, notes).await?.0 {
            Answer::Yes(last) => Ok(Vote::Yes { last }),
            Answer::No(held) => Ok(Vote::No(held.map(holder))),
            _ => Err(nonsense()),
        }
    }

    async fn raise(&self, last: u64, deadline: Deadline) -> Attempted<()> {
        self.ask_alone(Command::Raise(last), deadline)
            .await
            .map(drop)
    }

    fn given(&self, last: u64) {
        self.given.fetch_max(last, Ordering::Relaxed);
    }

    async fn values(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> Attempted<Vec<Option<Holder>>> {
        match self
            .ask_alone(Command::Look(keys.to_vec()), deadline)
            .await?
        {
            Answer::Holders(held) => Ok(held.into_iter().map(|held| held.map(holder)).collect()),
            _ => Err(nonsense()),
        }
    }

    async fn keys(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Option<BTreeSet<String>>> {
        let is_one = |known: &str| known.starts_with(prefix);
        let locks = self.locks(is_one, attempt.deadline).await?;
        Ok(Some(locks.into_iter().map(|lock| lock.key).collect()))
    }

    async fn look_at_each(&self, keys: &[String], deadline: Deadline) -> Attempted<Vec<LockInfo>> {
        let is_one = |known: &str| keys.iter().any(|key| key == known);
        self.locks(is_one, deadline).await
    }

    async fn listen(
        &self,
        keys: &BTreeSet<Arc<str>>,
        listening: &mut Self::Listening,
        deadline: Deadline,
    ) -> Attempted<()> {
        let ear = self
            .ear
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let connection = ear.ok_or_else(Failure::not_sent)?;
        let wanted = Some((connection.number(), keys.clone()));
        if *listening == wanted {
            return Ok(());
        }
        let command = Command::Listen(connection.process, keys.clone());
        let sent = connection.send(command);
        match self.client.time.bound(deadline, sent).await {
            Ok(Ok(_)) => {
                *listening = wanted;
                Ok(())
            }
            _ => {
                // What it is listened to over it is not known any more.
                connection.breaks(false);
                Err(Failure::not_sent())
            }
        }
    }

    fn asked_over(notes: &Notes) -> Option<Sent> {
        notes.flight.clone()
    }

    async fn ping(&self, connection: Option<&Sent>, deadline: Deadline) -> Attempted<()> {
        let Some(connection) = connection else {
            return self.ask_alone(Command::Ping, deadline).await.map(drop);
        };
        let answer = connection.send(Command::Ping);
        match self.client.time.bound(deadline, answer).await {
            Ok(Ok(_)) => Ok(()),
            _ => {
                connection.close();
                Err(Failure::not_sent())
            }
        }
    }
}

impl Store for Voting {
    type Config = Config<Node>;
    type Record = ();
    type Notes = Notes;
    type Flight = (Sent, Ending);
    type Watch = ();
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    const BEAT: Option<Duration> = None;

    fn open(config: Self::Config, context: Context) -> Self {
        let client = Arc::new(Client::new(config, &context, false));
        let ear = Arc::<Ear>::default();
        let (ears, events) = (Arc::clone(&ear), context.events.clone());
        let changes = move |connection: Option<&Sent>| {
            set(&ears, connection.cloned());
            // Nothing is listened to before, and nothing heard behind.
            events.missed();
        };
        let events = context.events.clone();
        let hears = move |told: &Pushed| events.freed(&told.key);
        context.spawn(listen(Arc::clone(&client), changes, hears));
        Self {
            client,
            events: context.events,
            ear,
            given: AtomicU64::new(0),
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.ask_alone(Command::Ping, deadline).await.map(drop)
    }

    fn capabilities(_: &Self::Config) -> Capabilities {
        let mut capabilities = Capabilities::new("node");
        capabilities.read_write = true;
        capabilities.tokens = TokenTier::BestEffort;
        capabilities
    }

    fn servers(_: &Self::Config) -> Option<Servers> {
        None
    }

    fn opening(&self, _: &Request) -> Opening {
        Opening::Try
    }

    /// A node alone grants nothing.
    async fn take(&self, _: &Request, _: Want, _: Attempt<'_, Self>) -> Attempted<Take<Self>> {
        Err(nonsense())
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let leases = due.iter().map(|Due { request, .. }| {
            let key = Arc::clone(&request.key);
            (key, request.owner, request.ttl)
        });
        let command = Command::Renew(leases.collect());
        match self.ask(command, deadline, &mut Notes::default()).await {
            Ok((Answer::Renewed(extended), sent_at)) => {
                let answer = |extended| match extended {
                    true => Renewed::extended(sent_at),
                    false => Renewed::Gone,
                };
                extended.into_iter().map(answer).map(Ok).collect()
            }
            Ok(_) => due.iter().map(|_| Err(nonsense())).collect(),
            Err(failure) => due.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&()>,
        ending: Ending,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let release = releases(request, ending);
        Ok(match self.ask(release, deadline, notes).await? {
            (Answer::Done(true), _) => Freed::Released,
            _ => Freed::NotHeld,
        })
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        silent(for_long)
    }

    fn abandon(&self, _: &Request, notes: Notes, left: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(notes.flight.map(|flight| (flight, left.ending)))
    }

    async fn follow(&self, (flight, ending): Self::Flight, request: &Request) -> Followed {
        if !flight.is_open() {
            return Followed::Unknown;
        }
        let limit = self.client.time.after(LATEST);
        let release = flight.send(releases(request, ending));
        match self.client.time.bound(limit, release).await {
            Ok(Ok(_)) => Followed::Settled,
            _ => {
                flight.close();
                Followed::Unknown
            }
        }
    }

    fn late(&self, _: &Request, _: Option<&()>, sent_at: Instant) -> Late {
        // A little more, for clocks that differ.
        Late::Until(Deadline::from(sent_at, LATEST + LATEST / 20))
    }

    async fn recheck(&self, _: &mut [Waited<Self>], _: bool, _: Deadline) -> Attempted<()> {
        Ok(())
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        Ok(self
            .locks(|known| known == key, attempt.deadline)
            .await?
            .pop())
    }

    async fn list(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        let is_one = |known: &str| known.starts_with(prefix);
        self.locks(is_one, attempt.deadline).await.map(Some)
    }
}

fn releases(request: &Request, ending: Ending) -> Command {
    Command::Release {
        key: Arc::clone(&request.key),
        owner: request.owner,
        tells: ending != Ending::Outvoted,
    }
}

fn holder((mode, owner): (Mode, Owner)) -> Holder {
    Holder { mode, owner }
}

fn nonsense() -> Failure {
    not_reached("the answer makes no sense")
}
