//! The [`Store`] primitives of a quorum.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};

use super::ballot::no_quorum;
use super::election::Notes;
use super::lease::Votes;
use super::look::{AT_THE_START, is_out};
use super::member::Member;
use super::subscriptions::{Subscription, Subscriptions, VoterListener};
use super::turns::Turns;
use super::voter::{Holder, Voter};
use super::{Quorum, Voters};
use crate::backend::origin::Process;
use crate::backend::{
    BackendError, Capabilities, Finding, Listed, LockInfo, Mode, Renewed, Request, Servers,
    TokenTier,
};
use crate::deadline::Deadline;
use crate::store::{
    Abandoned, Attempt, Attempted, Break, Context, Due, Ending, Freed, Late, LeftBehind, Looks,
    Opening, Store, Take, Waited, Want, Whose,
};

/// How long a waiter that was woken by the first voter waits for more of them: a release reaches
/// the voters one after the other.
const RELEASE_SPREADS: Duration = Duration::from_millis(20);

impl<V: Voter> Store for Quorum<V> {
    type Config = Voters<V::Config>;
    type Record = Arc<Votes<V::Notes>>;
    type Notes = Notes<V::Notes>;
    /// The voters' engines follow what is in flight.
    type Flight = Infallible;
    /// The wait is for a message after this number of messages.
    type Watch = u64;
    type Seen = ();

    const LOOKS: Looks = Looks::Together;
    const BEAT: Option<Duration> = None;

    /// A renewal that reaches only a minority extends votes of a lease that is about to end.
    const EXPIRES: bool = false;

    async fn complete(
        config: Voters<V::Config>,
        request_timeout: Duration,
    ) -> Result<Voters<V::Config>, BackendError> {
        Ok(Voters {
            voters: V::electorate(config.voters, request_timeout).await?,
            ..config
        })
    }

    fn open(config: Voters<V::Config>, context: Context) -> Self {
        let subscriptions = Subscriptions::of(config.voters.len());
        let turns = Arc::new(Turns::default());
        let members = config.voters.into_iter().enumerate();
        let members = members.map(|(voter, config)| {
            let listener = VoterListener {
                voter,
                subscriptions: Arc::clone(&subscriptions),
                turns: Arc::clone(&turns),
                time: context.time.clone(),
            };
            Member::open(voter, config, &context, listener)
        });
        Self {
            members: members.collect(),
            subscriptions,
            turns,
            name: config.name,
            patience: context.patience(),
            events: context.events,
            time: context.time,
        }
    }

    async fn check(&self, deadline: Deadline) -> Attempted<()> {
        self.see_to_voters(deadline).await
    }

    /// Has a limit of its own: a voter that does not answer must not use up the time of the
    /// others.
    async fn examine(&self, _: Deadline) -> Vec<Finding> {
        let limit = self.time.after(self.patience);
        let looks = self
            .members
            .iter()
            .map(|member| member.engine.examine(limit));
        join_all(looks).await.concat()
    }

    async fn settle(&self) {
        let settled = self.members.iter().map(async |member| {
            tokio::select! {
                biased;
                () = member.engine.settle() => {}
                () = member.until_silent() => {}
            }
        });
        join_all(settled).await;
    }

    /// If a majority has nothing left, that is enough for a grant.
    fn remains(&self, key: &str) -> Option<BoxFuture<'_, ()>> {
        let (mut clear, mut waits) = (0, Vec::new());
        for member in &self.members {
            match member.engine.remains(key) {
                Some(remains) => waits.push((member, remains)),
                None => clear += usize::from(member.answers()),
            }
        }
        if waits.is_empty() || clear >= self.majority() {
            return None;
        }
        Some(Box::pin(async move {
            let waits = waits.into_iter().map(async |(member, remains)| {
                tokio::select! {
                    biased;
                    () = remains => {}
                    () = member.until_silent() => {}
                }
            });
            join_all(waits).await;
        }))
    }

    async fn shut_down(&self, _: bool, _: Deadline) {
        join_all(self.members.iter().map(|member| member.engine.stop())).await;
    }

    fn close(&self) {
        self.members.iter().for_each(|member| member.engine.close());
    }

    fn capabilities(config: &Voters<V::Config>) -> Capabilities {
        let of_voters = || config.voters.iter().map(V::capabilities);
        Capabilities {
            tokens: of_voters()
                .map(|one| one.tokens)
                .min()
                .unwrap_or(TokenTier::None),
            strict_with: config.strict_with,
            read_write: of_voters().all(|one| one.read_write),
            // Each voter would grant all permits, and to other requests than its neighbours do.
            permits: false,
            permits_with: config.permits_with,
            once_with: config.once_with,
            // A majority must answer well within the ttl.
            min_ttl: Duration::from_millis(100),
            ..Capabilities::new(config.name)
        }
    }

    fn servers(config: &Voters<V::Config>) -> Option<Servers> {
        let mut servers = config.voters.iter().map(V::servers);
        let first = servers.next()??;
        Some(servers.flatten().fold(first, |mut all, one| {
            all.hosts.extend(one.hosts);
            all
        }))
    }

    /// As the first voter knows it.
    fn located(&self) -> Option<Servers> {
        self.members.first()?.voter().located()
    }

    /// The tier of the voter whose tokens are worth least. A voter that never answered makes the
    /// tier of all unknown.
    fn tokens(&self) -> Option<TokenTier> {
        let tiers = self.members.iter().map(|member| member.voter().tokens());
        tiers.min().flatten()
    }

    fn opening(&self, _: &Request) -> Opening {
        Opening::Try
    }

    fn hold_back(&self, request: &Request) -> Option<Duration> {
        let process = turn_of(request)?;
        self.turns
            .pause_before_trying(&request.key, process, self.time.now())
    }

    async fn take(
        &self,
        request: &Request,
        want: Want,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        if matches!(want, Want::Queue { .. }) && attempt.notes.subscription.is_none() {
            // A release before the subscription is active would be missed.
            let limit = self.time.after(self.patience_for(request.ttl));
            let subscription = self.subscription(request, attempt.notes);
            let listened = subscription.listened(self.majority());
            let _ = self.time.bound(limit, listened).await;
        }
        self.elect(request, want, attempt).await
    }

    /// The lease keeper repeats a renewal that has failed. The other leases of the batch must not
    /// wait for it.
    fn renews_within(&self, _: Duration, shortest: Duration) -> Duration {
        self.patience_for(shortest)
    }

    async fn renew(&self, due: &mut [Due<Self>], deadline: Deadline) -> Vec<Attempted<Renewed>> {
        self.extend(due, deadline).await
    }

    async fn release(
        &self,
        request: &Request,
        votes: Option<&Arc<Votes<V::Notes>>>,
        _: Ending,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Freed> {
        match votes {
            Some(votes) => self.free(request, votes, attempt.deadline).await,
            None => Ok(Freed::NotHeld),
        }
    }

    /// Raising more than half of the counters is enough; the others are raised by processes that
    /// know the floor. See [`ballot`](super::ballot).
    async fn raise_tokens(&self, floor: u64, deadline: Deadline) -> Attempted<()> {
        let voters = || self.members.iter().map(|member| member.voter());
        voters().for_each(|voter| voter.given(floor));
        let raise = |member: &'_ Arc<Member<V>>| {
            let member = Arc::clone(member);
            async move { member.engine.raise_tokens(floor).await }
        };
        let raised = self.ask_most(self.all(), Some(deadline), AT_THE_START, raise, is_out);
        raised.await.map(drop)
    }

    async fn break_off(&self, broken: &Break, attempt: Attempt<'_, Self>) -> Attempted<Freed> {
        match broken.whose {
            Whose::Holder(_) => self.break_votes(broken, attempt.deadline).await,
            Whose::Waiter(_) => Err(broken.refused(self.name)),
        }
    }

    fn silent(&self, _: Duration) -> BackendError {
        no_quorum(self.members.len(), 0, std::iter::empty())
    }

    /// The voters' engines clean up; nothing is left to this one.
    fn abandon(
        &self,
        request: &Request,
        mut notes: Notes<V::Notes>,
        _: &LeftBehind,
    ) -> Abandoned<Self> {
        self.leave(request, &mut notes);
        Abandoned::at_rest(None)
    }

    /// The voters' engines track late commands.
    fn late(&self, _: &Request, _: Option<&Arc<Votes<V::Notes>>>, _: Instant) -> Late {
        Late::Never
    }

    async fn wait(
        &self,
        request: &Request,
        since: u64,
        notes: &mut Notes<V::Notes>,
    ) -> Attempted<()> {
        let subscription = self.subscription(request, notes);
        subscription.freed(since, 1).await;
        let all = subscription.freed(since, self.majority());
        let _ = self.time.bound(self.time.after(RELEASE_SPREADS), all).await;
        if let Some(process) = turn_of(request) {
            let pause = self.turns.pause(&request.key, process);
            self.time.sleep(self.time.after(pause)).await;
        }
        Ok(())
    }

    /// Wakes the waiters that could get the votes of a majority.
    async fn recheck(
        &self,
        waited: &mut [Waited<Self>],
        _: bool,
        deadline: Deadline,
    ) -> Attempted<()> {
        let keys: Vec<_> = waited.iter().map(|key| Arc::clone(&key.key)).collect();
        let asked = self.time.now();
        let limit = deadline.min(Deadline::from(asked, self.patience));
        let answers = self.ask_chosen(Some(limit), async |member| {
            let values = member.voter().values(&keys, limit).await;
            values.map_err(|failure| member.error(failure, asked))
        });
        let answers = answers.await?;
        for (index, key) in waited.iter_mut().enumerate() {
            let values = || answers.iter().map(|values| values.get(index).copied());
            for waiter in &mut key.waiters {
                let in_the_way =
                    |holder: Holder| holder.mode == Mode::Write || waiter.mode == Mode::Write;
                let free = values().filter(|value| !value.flatten().is_some_and(in_the_way));
                waiter.wake |= free.count() >= self.majority();
            }
        }
        Ok(())
    }

    /// The names at all voters; several voters may use the same name.
    fn stored_as(&self, key: &str) -> Vec<String> {
        let mut all: Vec<_> = self
            .members
            .iter()
            .flat_map(|member| member.engine.store.stored_as(key))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    async fn inspect(&self, key: &str, attempt: Attempt<'_, Self>) -> Attempted<Option<LockInfo>> {
        let look = async |member: &Arc<Member<V>>| {
            let lock = member.engine.inspect(key).await?;
            Ok(lock.into_iter().collect())
        };
        Ok(self
            .agreed(Some(attempt.deadline), look)
            .await?
            .into_iter()
            .next())
    }

    /// Ends when the voters do: each has as much time for each of its steps as an answer may take.
    async fn list(&self, prefix: &str, _: Attempt<'_, Self>) -> Attempted<Option<Vec<LockInfo>>> {
        let agreed = self.agreed(None, |member| member.engine.list(prefix));
        agreed.await.map(Some)
    }

    /// The first step finds the keys, the others look at some of the first.
    async fn list_some(
        &self,
        prefix: &str,
        most: usize,
        Attempt { deadline, notes }: Attempt<'_, Self>,
    ) -> Attempted<Option<Listed>> {
        self.next_of_list(prefix, most, deadline, &mut notes.listing)
            .await
    }
}

/// Whose turn the request waits for. Readers are not in each other's way.
fn turn_of(request: &Request) -> Option<Process> {
    let process = request.owner.process()?;
    (request.mode == Mode::Write).then_some(process)
}

impl<V: Voter> Quorum<V> {
    pub(super) fn subscription<'a>(
        &self,
        request: &Request,
        notes: &'a mut Notes<V::Notes>,
    ) -> &'a Subscription {
        let subscribe = || self.subscriptions.subscribe(&request.key);
        notes.subscription.get_or_insert_with(subscribe)
    }
}

#[cfg(test)]
impl<V: Voter> Quorum<V> {
    /// This voter must be told something of this lock until the answer is dropped.
    pub(crate) fn remains_at(&self, voter: usize, key: &str) -> impl Drop + use<V> {
        self.members[voter].engine.leave(key)
    }

    pub(crate) async fn stop_voter(&self, voter: usize) {
        self.members[voter].engine.stop().await;
    }
}

/// The tasks of the voters end with the quorum.
impl<V: Voter> Drop for Quorum<V> {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.engine.halt());
    }
}
