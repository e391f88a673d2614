//! What the engine asks of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::{
    BackendError, Capabilities, LockInfo, Mode, Owner, Renewed, Request, Servers, TokenTier,
};
use dlock_runtime::store::{
    Abandoned, Applied, Attempt, Attempted, Context, Deadline, Due, Ending, Events, Failure,
    Followed, Freed, Granted, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want,
};
use tokio::sync::oneshot;

use super::batches::{Gathering, Member, tell};
use super::server::{ALIVE, Answer, Asked, Command, DatabaseServer, Took};
use crate::network::{LATEST, Pushed};
use crate::stores::client::{Client, Config, not_reached, silent};
use crate::stores::listening::{flags, listen};
use crate::stores::listing::{Listed, infos};
use crate::world::Flag;

/// Who is told looks as often.
const LOOK: Duration = Duration::from_secs(1);
/// Who is not: the first pause between two looks, and the longest.
const PACE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

pub(crate) struct Database {
    client: Arc<Client<DatabaseServer>>,
    context: Context,
    events: Events,
    gathering: Gathering,
    /// There is a connection to be told over.
    listens: Arc<Flag>,
}

/// A command that the manager has sent, until it has ended.
pub(crate) struct Exchange {
    ends: oneshot::Receiver<bool>,
}

/// What is asked by the manager ends there, whoever waits for it.
type Notes = Option<Exchange>;

impl Database {
    async fn ask(
        &self,
        command: Command,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<(Answer, Instant), Failure> {
        let (answers, answer) = oneshot::channel();
        let (ended, ends) = oneshot::channel();
        let (client, events) = (Arc::clone(&self.client), self.events.clone());
        self.context.spawn(async move {
            let limit = client.time.after(client.patience);
            let came = client.ask(command, limit, &mut None).await;
            if let Ok((_, sent_at)) = &came {
                events.answered(*sent_at);
            }
            let _ = ended.send(is_known(&came));
            let _ = answers.send(came);
        });
        self.answered(answer, ends, deadline, notes).await
    }

    /// Waits for what the manager has sent.
    async fn answered<T>(
        &self,
        answer: oneshot::Receiver<Result<T, Failure>>,
        ends: oneshot::Receiver<bool>,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<T, Failure> {
        *notes = Some(Exchange { ends });
        match self.client.time.bound(deadline, answer).await {
            Ok(answer) => {
                *notes = None;
                answer.unwrap_or_else(|_| Err(not_reached("the manager has stopped")))
            }
            Err(_) => Err(Failure::silent(Applied::OnItsWay)),
        }
    }

    async fn take_together(
        &self,
        asked: Asked,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<(Took, Instant), Failure> {
        let (tells, answer) = oneshot::channel();
        let (ended, ends) = oneshot::channel();
        let (passes, passed) = oneshot::channel();
        self.context.spawn(async move {
            let came = answer.await;
            let came = came.unwrap_or_else(|_| Err(not_reached("it was not sent")));
            let _ = ended.send(is_known(&came));
            let _ = passes.send(came);
        });
        let member = Member { asked, tell: tells };
        if self.gathering.join(member) {
            let (client, events) = (Arc::clone(&self.client), self.events.clone());
            let gathering = Arc::clone(&self.gathering);
            self.context
                .spawn(async move { send_all(&client, &events, &gathering).await });
        }
        self.answered(passed, ends, deadline, notes).await
    }

    fn asked(&self, request: &Request) -> Asked {
        Asked {
            key: Arc::clone(&request.key),
            owner: request.owner,
            process: self.client.config.process.id,
            mode: request.mode,
            ttl: request.ttl,
        }
    }
}

/// Nothing of it may come yet.
fn is_known<T>(came: &Result<T, Failure>) -> bool {
    match came {
        Ok(_) => true,
        Err(failure) => failure.applied == Applied::No,
    }
}

/// One command after the other, until nobody has gathered.
async fn send_all(client: &Client<DatabaseServer>, events: &Events, gathering: &Gathering) {
    loop {
        let members = gathering.next();
        if members.is_empty() {
            return;
        }
        let asked = members.iter().map(|member| member.asked.clone()).collect();
        let limit = client.time.after(client.patience);
        let came = client.ask(Command::Take(asked), limit, &mut None).await;
        let came = came.map(|(answer, sent_at)| {
            events.answered(sent_at);
            match answer {
                Answer::Taken(took) => (took, sent_at),
                _ => (Vec::new(), sent_at),
            }
        });
        tell(members, came);
    }
}

impl Store for Database {
    type Config = Config<DatabaseServer>;
    type Record = ();
    type Notes = Notes;
    type Flight = Exchange;
    type Watch = ();
    type Seen = Duration;

    const LOOKS: Looks = Looks::Together;
    const DEAD_AFTER: Duration = ALIVE;
    /// It ends by itself.
    const FLIGHT_LIMIT: Duration = Duration::from_secs(48 * 60 * 60);

    fn open(config: Self::Config, context: Context) -> Self {
        let client = Arc::new(Client::new(config, &context, false));
        let listens = Arc::<Flag>::default();
        let world = client.config.process.world();
        // Not every database has messages, or lets them through.
        if world.happens(500) {
            let events = context.events.clone();
            let hears = move |told: &Pushed| {
                if let Some(owner) = told.owner {
                    events.wake(owner, &told.key);
                }
            };
            let changes = flags(&listens, &context.events);
            context.spawn(listen(Arc::clone(&client), changes, hears));
        }
        Self {
            client,
            events: context.events.clone(),
            context,
            gathering: Gathering::default(),
            listens,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.ask(Command::List, deadline, &mut None).await.map(drop)
    }

    fn capabilities(_: &Self::Config) -> Capabilities {
        let mut capabilities = Capabilities::new("database");
        capabilities.fair = true;
        capabilities.read_write = true;
        capabilities.permits = true;
        capabilities.once = true;
        capabilities.tokens = TokenTier::Strict;
        capabilities
    }

    fn servers(_: &Self::Config) -> Option<Servers> {
        None
    }

    fn opening(&self, request: &Request) -> Opening {
        match request.mode {
            Mode::Write => Opening::Cheap,
            _ => Opening::Try,
        }
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let asked = self.asked(request);
        let (took, sent_at) = match want {
            Want::First => self.take_together(asked, deadline, notes).await?,
            Want::Try | Want::Queue { .. } => {
                let beat = matches!(want, Want::Queue { beat: true, .. });
                let waits = want != Want::Try;
                let command = Command::Ask { asked, waits, beat };
                let (answer, sent_at) = self.ask(command, deadline, notes).await?;
                if beat {
                    self.events.beats(sent_at);
                }
                match answer {
                    Answer::Took(took) => (took, sent_at),
                    _ => (Took::Busy, sent_at),
                }
            }
        };
        Ok(match took {
            Took::Granted(token) => Take::Granted(Granted::new(token, sent_at, ())),
            Took::Queued => Take::Queued,
            Took::Busy => Take::Busy,
            Took::Remembered => Take::Done,
        })
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
            Ok(_) => due.iter().map(|_| Ok(Renewed::Gone)).collect(),
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
        let release = Command::Release {
            key: Arc::clone(&request.key),
            owner: request.owner,
            left: ending != Ending::Released,
            done: match ending {
                Ending::Done(time) => Some(time),
                _ => None,
            },
        };
        Ok(match self.ask(release, deadline, notes).await?.0 {
            Answer::Done(true) => Freed::Released,
            _ => Freed::NotHeld,
        })
    }

    async fn forget(
        &self,
        key: &str,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<bool> {
        let forget = self.ask(Command::Forget(key.into()), deadline, notes);
        Ok(matches!(forget.await?.0, Answer::Done(true)))
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        silent(for_long)
    }

    fn abandon(&self, _: &Request, flight: Notes, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(flight)
    }

    /// What it did is for the release to undo.
    async fn follow(&self, flight: Exchange, _: &Request) -> Followed {
        match flight.ends.await {
            Ok(true) => Followed::Run,
            _ => Followed::Unknown,
        }
    }

    fn late(&self, _: &Request, _: Option<&()>, sent_at: Instant) -> Late {
        // A little more, for clocks that differ.
        Late::Until(Deadline::from(sent_at, LATEST + LATEST / 20))
    }

    fn pace(&self, seen: &mut Duration) -> Duration {
        if self.listens.is_set() {
            return LOOK;
        }
        *seen = (*seen * 2).clamp(PACE.0, PACE.1);
        self.client.time.jitter(*seen)
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        beat: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        let keys = waited
            .iter()
            .map(|waited| Arc::clone(&waited.key))
            .collect();
        let process = self.client.config.process.id;
        let look = Command::Look {
            keys,
            process,
            beat,
        };
        let (answer, sent_at) = self.ask(look, deadline, &mut None).await?;
        if beat {
            self.events.beats(sent_at);
        }
        let Answer::Seen(may_ask, places) = answer else {
            return Ok(());
        };
        // A sign of life shows whose place was lost.
        for (waited, may_ask) in waited.iter_mut().zip(may_ask) {
            let key = &waited.key;
            let has_place = |owner| {
                places
                    .iter()
                    .any(|place| place == &(Arc::clone(key), owner))
            };
            let wakes: Vec<_> = waited.waiters.iter().map(|waiter| waiter.owner).collect();
            let wakes: Vec<_> = wakes
                .into_iter()
                .filter(|owner| may_ask.contains(owner) || (beat && !has_place(*owner)))
                .collect();
            waited.wake(|owner| wakes.contains(&owner));
        }
        let is_nobodys = |(key, owner): &(Arc<str>, Owner)| !self.events.knows(*owner, key);
        let nobodys: Vec<_> = places.into_iter().filter(is_nobodys).collect();
        if beat && !nobodys.is_empty() {
            self.ask(Command::Leave(nobodys), deadline, &mut None)
                .await?;
        }
        Ok(())
    }

    async fn farewell(&self, deadline: Deadline) {
        let farewell = Command::Farewell(self.client.config.process.id);
        let _ = self.ask(farewell, deadline, &mut None).await;
    }

    async fn inspect(
        &self,
        key: &str,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Option<LockInfo>> {
        let (answer, _) = self.ask(Command::List, deadline, notes).await?;
        Ok(infos(listed(answer), |known| known == key).pop())
    }

    async fn list(
        &self,
        prefix: &str,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        let (answer, _) = self.ask(Command::List, deadline, notes).await?;
        Ok(Some(infos(listed(answer), |known| {
            known.starts_with(prefix)
        })))
    }
}

fn listed(answer: Answer) -> Vec<Listed> {
    match answer {
        Answer::Locks(locks) => locks,
        _ => Vec::new(),
    }
}
