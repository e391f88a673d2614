//! The scripted store as one of several voters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::{Answer, Command, Fate, Link, Notes, ONE_WAY, Scripted, Sim, failed, nothing};
use crate::backend::{BackendError, LockInfo, Mode, Owner, Request};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::quorum::voter::{Holder, Vote, Voter};

use crate::store::{Applied, Attempt, Attempted, Store};

/// The additional state of a voter.
#[derive(Default)]
pub(super) struct State {
    subscribers: Vec<Subscriber>,
    /// Nobody receives its messages.
    loses_messages: bool,
    /// Whoever holds the lock reads.
    is_read: bool,
    identity: Option<String>,
    /// The voters, if this one knows them.
    electorate: Vec<Arc<Sim>>,
    /// The highest token that it was told has been given.
    given: u64,
    /// How long it takes to connect.
    pub(super) dials_for: Duration,
}

/// A process that may subscribe.
pub(super) struct Subscriber {
    pub(super) events: Events,
    pub(super) listens: Arc<AtomicBool>,
}

impl State {
    pub(super) fn is_opened_by(&mut self, subscriber: Subscriber) {
        self.subscribers.push(subscriber);
    }

    /// Says in the answer to a release how many are told of it. `listens`: of the process that asks.
    pub(super) fn answers(&self, listens: &Arc<AtomicBool>, request: &Request) {
        let is_told = |subscriber: &&Subscriber| {
            !self.loses_messages && subscriber.listens.load(Ordering::Relaxed)
        };
        let told = self.subscribers.iter().filter(is_told).count();
        let mut subscribers = self.subscribers.iter();
        if let Some(own) = subscribers.find(|subscriber| Arc::ptr_eq(&subscriber.listens, listens))
            && told > 0
        {
            own.events.notified(request, told);
        }
    }

    /// Reports that its vote was given back by this owner.
    pub(super) fn tell(&self, owner: Owner) {
        for subscriber in self.subscribers.iter().filter(|_| !self.loses_messages) {
            if subscriber.listens.load(Ordering::Relaxed) {
                let events = subscriber.events.clone();
                tokio::spawn(async move {
                    sleep(ONE_WAY).await;
                    events.freed_by(&owner.to_string(), "key");
                });
            }
        }
    }
}

impl Sim {
    pub(in crate::engine::tests) fn loses_messages(&self, lost: bool) {
        self.state().voter.loses_messages = lost;
    }

    pub(in crate::engine::tests) fn is_read(&self, is_read: bool) {
        self.state().voter.is_read = is_read;
    }

    fn as_holder(&self, owner: Owner) -> Holder {
        let mode = match self.state().voter.is_read {
            true => Mode::Read,
            false => Mode::Write,
        };
        Holder { mode, owner }
    }

    pub(in crate::engine::tests) fn is_identified(&self, as_what: &str) {
        self.state().voter.identity = Some(as_what.to_owned());
    }

    pub(in crate::engine::tests) fn knows_who_votes(&self, voters: &[Arc<Sim>]) {
        self.state().voter.electorate = voters.to_vec();
    }

    pub(in crate::engine::tests) fn given(&self) -> u64 {
        self.state().voter.given
    }

    pub(in crate::engine::tests) fn counter(&self) -> u64 {
        self.state().token
    }

    pub(in crate::engine::tests) fn dials_for(&self, duration: Duration) {
        self.state().voter.dials_for = duration;
    }

    /// Sets its counter.
    pub(in crate::engine::tests) fn counts_from(&self, token: u64) {
        self.state().token = token;
    }

    /// It has restarted and forgotten its state.
    pub(in crate::engine::tests) fn forgets(&self) {
        let mut state = self.state();
        state.holder = None;
        state.token = 0;
    }

    /// How often it was asked for this.
    pub(in crate::engine::tests) fn count(&self, what: &str) -> usize {
        let state = self.state();
        state.sent.iter().filter(|sent| **sent == what).count()
    }
}

impl Voter for Scripted<()> {
    type Connection = Link;
    type Listening = ();

    async fn electorate(voters: Vec<Arc<Sim>>, _: Duration) -> Result<Vec<Arc<Sim>>, BackendError> {
        let known = voters[0].state().voter.electorate.clone();
        Ok(if known.is_empty() { voters } else { known })
    }

    fn place(&self) -> String {
        String::from("a scripted voter")
    }

    async fn identity(&self, _: Deadline) -> Option<String> {
        self.sim.state().voter.identity.clone()
    }

    fn is_connected(&self) -> bool {
        let link = self.link(Command::Raise(0));
        link.as_ref().is_some_and(Link::is_open)
    }

    async fn vote(
        &self,
        request: &Request,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Vote> {
        let command = Command::First(request.owner, request.ttl);
        let fate = self.sim.state().fates.pop_front();
        match self.send(command, fate, deadline, notes).await?.0 {
            Answer::Granted { token, .. } => Ok(Vote::Yes { last: token }),
            Answer::Held => {
                let holder = self.sim.holder();
                Ok(Vote::No(holder.map(|owner| self.sim.as_holder(owner))))
            }
            answer => Err(failed(answer)),
        }
    }

    async fn raise(&self, last: u64, deadline: Deadline) -> Attempted<()> {
        let fate = self.sim.state().fates.pop_front();
        let mut notes = Notes::default();
        let command = Command::Raise(last);
        match self.send(command, fate, deadline, &mut notes).await?.0 {
            Answer::Done(_) => Ok(()),
            answer => Err(failed(answer)),
        }
    }

    fn given(&self, last: u64) {
        let mut state = self.sim.state();
        state.voter.given = state.voter.given.max(last);
    }

    async fn values(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> Attempted<Vec<Option<Holder>>> {
        let mut notes = Notes::default();
        match self
            .send(Command::Look, None, deadline, &mut notes)
            .await?
            .0
        {
            Answer::Looked(holder) => {
                let holder = holder.map(|owner| self.sim.as_holder(owner));
                Ok(vec![holder; keys.len()])
            }
            answer => Err(failed(answer)),
        }
    }

    async fn keys(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Option<BTreeSet<String>>> {
        let listed = self.list(prefix, attempt).await?;
        Ok(listed.map(|locks| locks.into_iter().map(|lock| lock.key).collect()))
    }

    async fn look_at_each(&self, keys: &[String], deadline: Deadline) -> Attempted<Vec<LockInfo>> {
        let mut notes = Notes::default();
        self.send(Command::Look, None, deadline, &mut notes).await?;
        let shown = self.sim.shown(|lock| keys.contains(&lock.key));
        Ok(shown.unwrap_or_default())
    }

    async fn listen(
        &self,
        keys: &BTreeSet<Arc<str>>,
        (): &mut (),
        deadline: Deadline,
    ) -> Attempted<()> {
        let listens_for = self.sim.state().listens_for;
        if let Some(listens_for) = listens_for.filter(|_| !keys.is_empty()) {
            sleep(listens_for).await;
        }
        let mut notes = Notes::default();
        self.send(Command::Ping, None, deadline, &mut notes).await?;
        self.listens.store(keys.contains("key"), Ordering::Relaxed);
        Ok(())
    }

    fn asked_over(notes: &Notes) -> Option<Link> {
        notes.in_flight.clone()
    }

    async fn ping(&self, connection: Option<&Link>, deadline: Deadline) -> Attempted<()> {
        let Some(connection) = connection else {
            let mut notes = Notes::default();
            let answer = self.send(Command::Ping, None, deadline, &mut notes);
            return answer.await.map(drop);
        };
        let answer = connection.send(&self.sim, Command::Ping, Fate::Fine);
        match self.time.bound(deadline, answer).await {
            Ok(Ok(Ok(_))) => Ok(()),
            _ => {
                connection.break_up();
                Err(nothing(Applied::No))
            }
        }
    }
}
