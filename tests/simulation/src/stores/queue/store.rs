//! What the engine asks of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::{
    BackendError, Capabilities, LockInfo, Mode, Owner, Renewed, Request, Servers, TokenTier,
};
use dlock_runtime::store::{
    Abandoned, Attempt, Attempted, Context, Deadline, Due, Ending, Events, Failure, Followed,
    Freed, Granted, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want,
};

use super::server::{Answer, Asked, CLAIM, Command, DEAD_AFTER, QueueServer};
use crate::network::{Connection, LATEST, Pushed};
use crate::stores::Config;
use crate::stores::client::{Client, not_reached, silent};
use crate::stores::listening::{flags, listen};
use crate::stores::listing::{Listed, infos};
use crate::world::Flag;

pub(crate) struct Queue {
    client: Arc<Client<QueueServer>>,
    events: Events,
    listens: Arc<Flag>,
    /// What a process that writes asks first: of those of one server, not all the same.
    opens: Opening,
}

#[derive(Default)]
pub(crate) struct Notes {
    flight: Option<Arc<Connection<QueueServer>>>,
}

impl Queue {
    async fn ask(
        &self,
        command: Command,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<(Answer, Instant), Failure> {
        let answered = self
            .client
            .ask(command, deadline, &mut notes.flight)
            .await?;
        self.events.answered(answered.1);
        Ok(answered)
    }

    /// Who cannot be told would wait in vain.
    async fn listened(&self, deadline: Deadline) -> Result<(), Failure> {
        let listening = self.client.time.bound(deadline, self.listens.until_set());
        let why = "there is no connection to listen on";
        listening.await.map_err(|_| not_reached(why))
    }

    fn asked(&self, request: &Request) -> Asked {
        Asked {
            owner: request.owner,
            process: self.client.config.process.id,
            mode: request.mode,
            ttl: request.ttl,
        }
    }
}

impl Store for Queue {
    type Config = Config<QueueServer>;
    type Record = ();
    type Notes = Notes;
    type Flight = (Arc<Connection<QueueServer>>, Ending);
    type Watch = ();
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    const DEAD_AFTER: Duration = DEAD_AFTER;
    const CLAIM: Option<Duration> = Some(CLAIM);

    fn open(config: Self::Config, context: Context) -> Self {
        let client = Arc::new(Client::new(config, &context, false));
        let listens = Arc::<Flag>::default();
        let events = context.events.clone();
        let hears = move |told: &Pushed| {
            if let Some(owner) = told.owner {
                events.granted(owner, &told.key, &owner.to_string());
            }
        };
        let changes = flags(&listens, &context.events);
        context.spawn(listen(Arc::clone(&client), changes, hears));
        let world = client.config.process.world();
        let opens = match world.draw(|chance| chance.u8(..4)) {
            0 => Opening::Cheap,
            1 => Opening::Try,
            _ => Opening::First,
        };
        Self {
            client,
            events: context.events,
            listens,
            opens,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.ask(Command::List, deadline, &mut Notes::default())
            .await
            .map(drop)
    }

    fn capabilities(_: &Self::Config) -> Capabilities {
        let mut capabilities = Capabilities::new("queue");
        capabilities.fair = true;
        capabilities.read_write = true;
        capabilities.permits = true;
        capabilities.once = true;
        capabilities.tokens = TokenTier::BestEffort;
        capabilities.in_order = true;
        capabilities
    }

    fn servers(_: &Self::Config) -> Option<Servers> {
        None
    }

    fn opening(&self, request: &Request) -> Opening {
        match request.mode {
            Mode::Write => self.opens,
            _ if self.opens == Opening::First => Opening::Place,
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
        let (key, asked) = (Arc::clone(&request.key), self.asked(request));
        let command = match want {
            Want::First if self.opens == Opening::First => Command::First(key, asked),
            Want::First | Want::Try => Command::Ask {
                key,
                asked,
                waits: false,
                beat: false,
            },
            Want::Queue { beat, .. } => {
                self.listened(deadline).await?;
                Command::Ask {
                    key,
                    asked,
                    waits: true,
                    beat,
                }
            }
        };
        let (answer, sent_at) = self.ask(command, deadline, notes).await?;
        if let Want::Queue { beat: true, .. } = want {
            self.events.beats(sent_at);
        }
        Ok(match answer {
            Answer::Granted(token) => Take::Granted(Granted::new(token, sent_at, ())),
            Answer::Queued => Take::Queued,
            Answer::Remembered => Take::Done,
            _ => Take::Busy,
        })
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let mut renewed = Vec::new();
        for Due { request, .. } in due {
            let command = Command::Renew(Arc::clone(&request.key), request.owner, request.ttl);
            let answer = self.ask(command, deadline, &mut Notes::default()).await;
            renewed.push(answer.map(|(answer, sent_at)| match answer {
                Answer::Done(true) => Renewed::extended(sent_at),
                _ => Renewed::Gone,
            }));
        }
        renewed
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
        let (answer, _) = self.ask(releases(request, ending), deadline, notes).await?;
        Ok(match answer {
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
        let (answer, _) = self
            .ask(Command::Forget(key.into()), deadline, notes)
            .await?;
        Ok(matches!(answer, Answer::Done(true)))
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
        let alive = beat.then_some(self.client.config.process.id);
        let command = Command::Look { keys, alive };
        let (answer, _) = self.ask(command, deadline, &mut Notes::default()).await?;
        if let Answer::Seen(seen) = answer {
            for (waited, (holders, waiting)) in waited.iter_mut().zip(seen) {
                match holders.is_empty() {
                    true => waited.wake_all(),
                    // It has the lock, or no place any more.
                    false => {
                        waited.wake(|owner| holders.contains(&owner) || !waiting.contains(&owner))
                    }
                }
            }
        }
        Ok(())
    }

    async fn disown(
        &self,
        key: &str,
        granted: &str,
        knows: &(dyn Fn(Owner) -> bool + Sync),
        deadline: Deadline,
    ) -> Attempted<()> {
        let key: Arc<str> = key.into();
        let mut gone = Vec::new();
        let places = Command::Places(Arc::clone(&key), self.client.config.process.id);
        let look = Command::Look {
            keys: vec![Arc::clone(&key)],
            alive: None,
        };
        for (command, of_all) in [(look, false), (places, true)] {
            let (answer, _) = self.ask(command, deadline, &mut Notes::default()).await?;
            let owners = match answer {
                Answer::Holders(owners) => owners,
                Answer::Seen(seen) => seen.into_iter().map(|(holders, _)| holders).collect(),
                _ => continue,
            };
            gone.extend(owners.into_iter().flatten().filter(|owner| match of_all {
                true => !knows(*owner),
                false => owner.to_string() == granted && !knows(*owner),
            }));
        }
        for owner in gone {
            let disown = Command::Disown(Arc::clone(&key), owner);
            self.ask(disown, deadline, &mut Notes::default()).await?;
        }
        Ok(())
    }

    async fn farewell(&self, deadline: Deadline) {
        let farewell = Command::Farewell(self.client.config.process.id);
        let _ = self.ask(farewell, deadline, &mut Notes::default()).await;
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

fn releases(request: &Request, ending: Ending) -> Command {
    Command::Release {
        key: Arc::clone(&request.key),
        owner: request.owner,
        place_too: ending != Ending::Released,
        done: match ending {
            Ending::Done(time) => Some(time),
            _ => None,
        },
    }
}

fn listed(answer: Answer) -> Vec<Listed> {
    match answer {
        Answer::Locks(locks) => locks,
        _ => Vec::new(),
    }
}
