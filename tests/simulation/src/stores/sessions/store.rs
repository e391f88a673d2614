//! What the engine asks of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::{BackendError, Capabilities, LockInfo, Renewed, Request, Servers, TokenTier};
use dlock_runtime::store::{
    Abandoned, Attempt, Attempted, Behind, Context, Deadline, Due, Ending, Followed, Freed,
    Granted, Late, LeftBehind, Looks, Opening, Scope, Store, Take, Time, Waited, Want,
};

use super::server::{Answer, SessionServer, What};
use super::session::{Attached, Keeper, SURE};
use crate::network::LATEST;
use crate::stores::client::{Config, silent};
use crate::stores::listing::{Listed, infos};

pub(crate) struct Sessions {
    keeper: Arc<Keeper>,
    time: Time,
}

impl Store for Sessions {
    type Config = Config<SessionServer>;
    /// The session of the node.
    type Record = u64;
    type Notes = Option<Attached>;
    type Flight = Attached;
    type Watch = ();
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    const BEAT: Option<Duration> = None;
    const EXPIRES: bool = false;

    fn open(config: Self::Config, context: Context) -> Self {
        Self {
            keeper: Keeper::begin(config, &context),
            time: context.time,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.keeper
            .ask(What::Beat, deadline, &mut None)
            .await
            .map(drop)
    }

    async fn shut_down(&self, holds: bool, deadline: Deadline) {
        if !holds {
            let _ = self.keeper.ask(What::Close, deadline, &mut None).await;
        }
    }

    fn capabilities(_: &Self::Config) -> Capabilities {
        let mut capabilities = Capabilities::new("sessions");
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

    fn opening(&self, _: &Request) -> Opening {
        Opening::Place
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let what = What::Take {
            key: Arc::clone(&request.key),
            owner: request.owner,
            mode: request.mode,
            waits: matches!(want, Want::Queue { .. }),
        };
        let (answer, sent_at, session) = self.keeper.ask(what, deadline, notes).await?;
        Ok(match answer {
            Answer::Granted(token) => Take::Granted(Granted::new(token, sent_at, session)),
            Answer::Behind(name) => Take::Behind(Behind::new(name, ())),
            Answer::Remembered => Take::Done,
            _ => Take::Busy,
        })
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        let mut renewed = Vec::new();
        for Due { request, .. } in due {
            let what = What::IsHeld(Arc::clone(&request.key), request.owner);
            let answer = self.keeper.ask(what, deadline, &mut None).await;
            renewed.push(answer.map(|(answer, sent_at, _)| match answer {
                Answer::Done(true) => Renewed::extended(sent_at),
                _ => Renewed::Gone,
            }));
        }
        renewed
    }

    async fn release(
        &self,
        request: &Request,
        _: Option<&u64>,
        ending: Ending,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        let done = match ending {
            Ending::Done(time) => Some(time),
            _ => None,
        };
        let what = What::Delete(Arc::clone(&request.key), request.owner, done);
        Ok(match self.keeper.ask(what, deadline, notes).await?.0 {
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
        let what = What::Forget(key.into());
        let (answer, ..) = self.keeper.ask(what, deadline, notes).await?;
        Ok(matches!(answer, Answer::Done(true)))
    }

    fn silent(&self, for_long: Duration) -> BackendError {
        silent(for_long)
    }

    fn abandon(&self, _: &Request, flight: Option<Attached>, _: &LeftBehind) -> Abandoned<Self> {
        Abandoned::in_flight(flight)
    }

    async fn follow(&self, (session, connection): Attached, request: &Request) -> Followed {
        if !connection.is_open() {
            return Followed::Unknown;
        }
        let what = What::Delete(Arc::clone(&request.key), request.owner, None);
        let release = connection.send(self.keeper.command(Some(session), &connection, what));
        match self.time.bound(self.time.after(LATEST), release).await {
            Ok(Ok(Answer::Done(_))) => Followed::Settled,
            _ => Followed::Unknown,
        }
    }

    /// Over the next connection, the session refuses what comes over the last.
    fn late(&self, _: &Request, _: Option<&u64>, _: Instant) -> Late {
        Late::Never
    }

    fn longest_lease(_: &u64) -> Option<Duration> {
        Some(SURE)
    }

    fn scope(record: &u64) -> Option<Scope> {
        Some(Scope(*record))
    }

    fn has_ended(&self, scope: Scope) -> bool {
        self.keeper.has_ended(scope.0)
    }

    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        let names = waited.iter().map(|waited| waited.key.to_string()).collect();
        let (answer, ..) = self
            .keeper
            .ask(What::Look(names), deadline, &mut None)
            .await?;
        if let Answer::Here(here) = answer {
            let gone = waited.iter_mut().zip(here).filter(|(_, here)| !here);
            gone.for_each(|(waited, _)| waited.wake_all());
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
        let (answer, ..) = self.keeper.ask(What::List, deadline, notes).await?;
        Ok(infos(listed(answer), |known| known == key).pop())
    }

    async fn list(
        &self,
        prefix: &str,
        Attempt {
            deadline, notes, ..
        }: Attempt<'_, Self>,
    ) -> Attempted<Option<Vec<LockInfo>>> {
        let (answer, ..) = self.keeper.ask(What::List, deadline, notes).await?;
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
