//! What the engine asks of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::{BackendError, Capabilities, LockInfo, Renewed, Request, Servers, TokenTier};
use dlock_runtime::store::{
    Abandoned, Attempt, Attempted, Context, Deadline, Due, Ending, Events, Failure, Followed,
    Freed, Granted, Late, LeftBehind, Looks, Opening, Store, Take, Waited, Want,
};

use super::server::{Answer, Command, PollingServer};
use crate::network::{Connection, LATEST};
use crate::stores::client::{Client, Config, silent};
use crate::stores::listing::{Listed, infos};

/// The first pause between two looks, and the longest.
const PACE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

type Flight = Arc<Connection<PollingServer>>;

pub(crate) struct Polling {
    client: Client<PollingServer>,
    events: Events,
}

impl Polling {
    async fn ask(
        &self,
        command: Command,
        deadline: Deadline,
        flight: &mut Option<Flight>,
    ) -> Result<(Answer, Instant), Failure> {
        let answered = self.client.ask(command, deadline, flight).await?;
        self.events.answered(answered.1);
        Ok(answered)
    }
}

impl Store for Polling {
    type Config = Config<PollingServer>;
    type Record = ();
    type Notes = Option<Flight>;
    type Flight = Flight;
    type Watch = ();
    type Seen = Duration;

    const LOOKS: Looks = Looks::Each;
    const BEAT: Option<Duration> = None;

    fn open(config: Self::Config, context: Context) -> Self {
        Self {
            client: Client::new(config, &context, false),
            events: context.events,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.ask(Command::List, deadline, &mut None).await.map(drop)
    }

    fn capabilities(_: &Self::Config) -> Capabilities {
        let mut capabilities = Capabilities::new("polling");
        capabilities.once = true;
        capabilities.tokens = TokenTier::Strict;
        capabilities
    }

    fn servers(_: &Self::Config) -> Option<Servers> {
        None
    }

    fn opening(&self, _: &Request) -> Opening {
        Opening::Cheap
    }

    async fn take(
        &self,
        request: &Request,
        _: Want,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let process = self.client.config.process.id;
        let command = Command::Take(
            Arc::clone(&request.key),
            request.owner,
            process,
            request.ttl,
        );
        let (answer, sent_at) = self.ask(command, deadline, notes).await?;
        Ok(match answer {
            Answer::Granted(token) => Take::Granted(Granted::new(token, sent_at, ())),
            Answer::Remembered => Take::Done,
            _ => Take::Busy,
        })
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let mut renewed = Vec::new();
        for Due { request, .. } in due {
            let command = Command::Renew(Arc::clone(&request.key), request.owner, request.ttl);
            let answer = self.ask(command, deadline, &mut None).await;
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
        let done = match ending {
            Ending::Done(time) => Some(time),
            _ => None,
        };
        let command = Command::Release(Arc::clone(&request.key), request.owner, done);
        Ok(match self.ask(command, deadline, notes).await?.0 {
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

    fn abandon(&self, _: &Request, flight: Option<Flight>, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(flight)
    }

    /// Its answer comes before that of what is sent behind it.
    async fn follow(&self, flight: Flight, _: &Request) -> Followed {
        if !flight.is_open() {
            return Followed::Unknown;
        }
        let limit = self.client.time.after(LATEST);
        let behind = flight.send(Command::Look(Vec::new()));
        match self.client.time.bound(limit, behind).await {
            Ok(Ok(_)) => Followed::Run,
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

    fn pace(&self, seen: &mut Duration) -> Duration {
        *seen = (*seen * 2).clamp(PACE.0, PACE.1);
        self.client.time.jitter(*seen)
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        let keys = waited
            .iter()
            .map(|waited| Arc::clone(&waited.key))
            .collect();
        let (answer, _) = self.ask(Command::Look(keys), deadline, &mut None).await?;
        if let Answer::Holders(holders) = answer {
            for (waited, holder) in waited.iter_mut().zip(holders) {
                match holder {
                    None => waited.wake_all(),
                    // It has the lock by a command that came late, and does not know.
                    Some(holder) => waited.wake(|owner| owner == holder),
                }
            }
        }
        Ok(())
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
