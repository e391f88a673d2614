//! Takes a lock, on every store.
//!
//! A command that cannot tell its own success from another's is sent at most once
//! ([`Want::First`]). Every later command names its owner and may be repeated as needed: to wait is
//! to ask again. Before anything is sent, the engine notes what the store may then have of the
//! request. What the caller leaves behind goes to the [cleanup](super::cleanup).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::Running;
use super::call::{Call, Rare};
use super::lease_table::LeaseTable;
use crate::apart::outlined;
use crate::backend::{BackendError, Grant, Request};
use crate::deadline::Deadline;
use crate::in_flight::Counted;
use crate::store::{Abandoned, Behind, Granted, LeftBehind, Looks, Opening, Store, Take, Want};
use crate::token::FencingToken;

impl<S: Store> Running<S> {
    pub(crate) async fn try_acquire(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut acquisition = Acquisition::new(self, request);
        // Of earlier requests: this one, too, may leave something at single voters.
        let remains = self.remains(&request.key);
        if let Some(grant) = acquisition.open(self.store.opening(request)).await? {
            return Ok(Some(grant));
        }
        let grant = match outlined(acquisition.ask(Want::Try)).await? {
            Asked::Granted(grant) => Some(grant),
            Asked::Held | Asked::Behind(_) => None,
            Asked::Contended => acquisition.try_again().await?,
        };
        match (grant, remains) {
            (None, Some(remains)) => acquisition.try_after(remains).await,
            (grant, _) => Ok(grant),
        }
    }

    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Grant, BackendError> {
        let mut acquisition = Acquisition::new(self, request);
        if let Some(pause) = self.store.hold_back(request) {
            acquisition.hold_back(pause).await;
        }
        let opening = self.store.opening(request);
        if let Some(grant) = acquisition.open(opening).await? {
            return Ok(grant);
        }
        let answer = match opening {
            Opening::Try => match outlined(acquisition.ask(Want::Try)).await? {
                Asked::Granted(grant) => return Ok(grant),
                // A tie is followed by a pause, not by another question. And a store whose rechecks
                // are [`Looks::Each`] has no places to ask for, so this answer is enough.
                Asked::Contended => Some(Asked::Contended),
                answer if S::LOOKS == Looks::Each => Some(answer),
                _ => {
                    acquisition.call.extend_for_next_question();
                    None
                }
            },
            Opening::First | Opening::Cheap | Opening::Place => None,
        };
        acquisition.wait(answer).await
    }

    /// Records a grant. Returns `false` if the store's lease or session behind it has ended
    /// already: the entries of that scope may have been cleared before this one was made. If the
    /// scope ends later, the loss is reported.
    fn enter(&self, request: &Request, granted: Granted<S>) -> bool {
        if !LeaseTable::<S::Record>::keeps() {
            return true;
        }
        let Granted {
            sent_at, record, ..
        } = granted;
        if S::EXPIRES {
            self.table.forget_due(sent_at);
        }
        let scope = S::scope(&record);
        let longest = S::longest_lease(&record).unwrap_or(request.ttl);
        let due = Self::due(sent_at, longest.min(request.ttl));
        self.table.insert(request, record, due);
        let has_ended = scope.is_some_and(|scope| self.store.has_ended(scope));
        !(has_ended && self.table.remove(request.owner))
    }
}

/// A request that may lead to a grant. If dropped before that, what it may have left at the store
/// is given back.
struct Acquisition<'a, S: Store> {
    running: &'a Arc<Running<S>>,
    request: &'a Request,
    call: Call<'a, S>,
    /// A time no later than when the last question was sent.
    asked: Instant,
    left: LeftBehind,
    /// Makes a stop of the engine wait for those who wait, and for what they leave behind.
    counted: Option<Counted>,
}

/// The outcome of a question, repeated until the store has answered.
enum Asked<S: Store> {
    Granted(Grant),
    Held,
    Behind(Behind<S>),
    Contended,
}

/// A call that does not wait takes the lock for held after this many ties at most.
const TIES: u32 = 10;

/// A watch that fails sooner than this has not waited: the store has been failing since before the
/// watch.
const AT_ONCE: Duration = Duration::from_millis(250);

impl<'a, S: Store> Acquisition<'a, S> {
    fn new(running: &'a Arc<Running<S>>, request: &'a Request) -> Self {
        let call = running.call();
        Self {
            running,
            request,
            asked: call.started(),
            call,
            left: LeftBehind::default(),
            counted: None,
        }
    }

    /// A pause in favour of other callers. It does not count as silence of the store.
    fn hold_back(&mut self, pause: Duration) -> Rare<'_, ()> {
        Box::pin(async move {
            self.request.progress().asks_later();
            let time = &self.running.time;
            time.sleep(time.after(pause)).await;
            self.request.progress().asks_now();
            self.call.start_again();
        })
    }

    /// Asks the cheapest question. `None` does not mean that the lock is held: the fuller question
    /// must follow.
    async fn open(&mut self, opening: Opening) -> Result<Option<Grant>, BackendError> {
        let asked = match opening {
            Opening::First => match outlined(self.attempt(Want::First)).await? {
                Some(take) => {
                    let asked = self.answered(take);
                    if asked.is_none() {
                        self.call.extend_for_next_question();
                    }
                    // The command may have been run twice, and have met its own first run. The
                    // answer to the fuller question settles it.
                    self.left.there = !matches!(asked, Some(Asked::Granted(_)));
                    asked
                }
                None => None,
            },
            // This command names its owner, so it is repeated until answered.
            Opening::Cheap => Some(outlined(self.ask(Want::First)).await?),
            Opening::Try | Opening::Place => None,
        };
        match asked {
            Some(Asked::Granted(grant)) => return Ok(Some(grant)),
            Some(_) => {
                self.request.progress().asks_again();
                self.call.extend_for_next_question();
            }
            None => {}
        }
        Ok(None)
    }

    /// Tries a few more times after a tie, while the request timeout lasts: an election with a
    /// silent voter takes a good part of it.
    fn try_again(&mut self) -> Rare<'_, Result<Option<Grant>, BackendError>> {
        Box::pin(async move {
            let time = &self.running.time;
            let end = Deadline::from(self.call.started(), self.running.request_timeout);
            for _ in 1..TIES {
                self.call.wait_for_others().await;
                if time.has_passed(end) {
                    break;
                }
                match outlined(self.ask(Want::Try)).await? {
                    Asked::Granted(grant) => return Ok(Some(grant)),
                    Asked::Held | Asked::Behind(_) => break,
                    Asked::Contended => {}
                }
            }
            Ok(None)
        })
    }

    /// Tries once more when the store was told what earlier requests of this process have left of
    /// the lock: perhaps nothing else keeps it.
    fn try_after<'b>(
        &'b mut self,
        remains: BoxFuture<'b, ()>,
    ) -> Rare<'b, Result<Option<Grant>, BackendError>> {
        Box::pin(async move {
            let time = &self.running.time;
            let a_moment = time.after(self.running.request_timeout / 2);
            if time.bound(a_moment, remains).await.is_err() {
                return Ok(None);
            }
            self.request.progress().asks_again();
            self.call.extend_for_next_question();
            match outlined(self.ask(Want::Try)).await? {
                Asked::Granted(grant) => Ok(Some(grant)),
                Asked::Held | Asked::Behind(_) | Asked::Contended => Ok(None),
            }
        })
    }

    /// Waits for the lock. `answer` is the store's answer to an earlier question.
    fn wait(&mut self, answer: Option<Asked<S>>) -> Rare<'_, Result<Grant, BackendError>> {
        Box::pin(async move {
            let running = self.running;
            self.counted = Some(running.tasks.count());
            let waits = running.stopping.run_until_cancelled(self.go_on(answer));
            waits.await.unwrap_or_else(|| Err(running.has_stopped()))
        })
    }

    /// Asks the store, and asks again whenever there is cause to.
    async fn go_on(&mut self, mut answer: Option<Asked<S>>) -> Result<Grant, BackendError> {
        let running = self.running;
        // Entered before the first question: the notification of a grant may come before the
        // answer.
        let mut waiting = running.events.waiters().enter(self.request);
        loop {
            let asked = match answer.take() {
                Some(asked) => asked,
                None => {
                    self.request.progress().asks_again();
                    let beat = S::BEAT.is_some() && !running.events.is_known();
                    let has_place = self.left.there;
                    outlined(self.ask(Want::Queue { beat, has_place })).await?
                }
            };
            match asked {
                Asked::Granted(grant) => {
                    if S::CLAIM.is_some() {
                        let holders = running.events.holders();
                        holders.insert(self.request.owner, self.request.clone());
                    }
                    return Ok(grant);
                }
                Asked::Contended => self.call.wait_for_others().await,
                Asked::Held => {
                    waiting.woken(running.time.now()).await?;
                    self.call.give_more_time();
                }
                Asked::Behind(behind) => {
                    waiting.watches(behind.name);
                    let began = running.time.now();
                    let (store, notes) = (&running.store, &mut self.call.notes);
                    let failed = tokio::select! {
                        biased;
                        woken = waiting.woken(began) => { woken?; None }
                        ended = store.wait(self.request, behind.watch, notes) => ended.err(),
                    };
                    let waited = running.time.now().saturating_duration_since(began);
                    if failed.is_none() || waited >= AT_ONCE {
                        self.call.give_more_time();
                    }
                    if let Some(failure) = failed {
                        self.call.failed(failure).await?;
                    }
                }
            }
        }
    }

    /// Asks until the store has answered. The command must name its owner.
    async fn ask(&mut self, want: Want) -> Result<Asked<S>, BackendError> {
        let mut lost_before = false;
        loop {
            if let Some(take) = outlined(self.attempt(want)).await? {
                if let Some(asked) = self.answered(take) {
                    return Ok(asked);
                }
                if lost_before {
                    self.call.lost_again().await?;
                } else {
                    lost_before = true;
                    self.call.give_more_time();
                }
            }
        }
    }

    /// What the answer means. `None`: what the store gave has ended already, so it must be asked
    /// again.
    fn answered(&mut self, take: Take<S>) -> Option<Asked<S>> {
        let (there, asked) = match take {
            Take::Granted(granted) => return self.granted(granted).map(Asked::Granted),
            Take::PlaceLost(record) => {
                self.place_lost(record);
                return None;
            }
            // `attempt` has reported this to the caller as an error.
            Take::Done => return None,
            Take::Contended => return Some(Asked::Contended),
            Take::Busy => (false, Asked::Held),
            Take::Queued => (true, Asked::Held),
            Take::Behind(behind) => (true, Asked::Behind(behind)),
        };
        // First: a subscriber that is told of the holder may panic.
        self.left.there = there;
        self.request.note_held_at(self.asked);
        Some(asked)
    }

    /// Makes one attempt. `None` if it failed and another may be made.
    async fn attempt(&mut self, want: Want) -> Result<Option<Take<S>>, BackendError> {
        let attempt = self.call.begin()?;
        // The first question is sent when the call begins, so `asked` is right already and the
        // clock need not be read again.
        if want != Want::First {
            self.asked = self.running.time.now();
        }
        self.left.in_flight = true;
        let store = &self.running.store;
        match store.take(self.request, want, attempt).await {
            Ok(take) => {
                self.left.in_flight = false;
                if let Take::Done = take {
                    return Err(BackendError::done());
                }
                Ok(Some(take))
            }
            Err(failure) => {
                self.left.note(&failure);
                self.call.failed(failure).await?;
                Ok(None)
            }
        }
    }

    /// Cleans up what the lost place may have left, by its record: a late command may still refer
    /// to it. The next place starts with nothing left behind.
    fn place_lost(&mut self, record: Option<S::Record>) {
        let left = std::mem::take(&mut self.left);
        if let Some(record) = record {
            let (request, abandoned) = (self.request.clone(), Abandoned::at_rest(Some(record)));
            self.running.clean_up(request, abandoned, &left);
        }
    }

    /// The store has granted the lock. `None`: it has been lost already.
    fn granted(&mut self, granted: Granted<S>) -> Option<Grant> {
        let running = self.running;
        let (token, sent_at) = (granted.token, granted.sent_at);
        let longest = S::longest_lease(&granted.record);
        let longest = longest.or_else(|| running.store.longest_for(self.request));
        if let Some(sent_at) = self.left.unknown {
            running.note_unknown(self.request, Some(&granted.record), sent_at);
        }
        // From here on the grant is the caller's responsibility, or it has ended and nothing is
        // left to clean up.
        self.left = LeftBehind::default();
        if !running.enter(self.request, granted) {
            running.unknown.remove(self.request.owner);
            return None;
        }
        let sent_at = tokio::time::Instant::from_std(sent_at);
        let grant = Grant::new(FencingToken::from(token), sent_at);
        Some(longest.map_or(grant, |longest| grant.at_most(longest)))
    }
}

impl<S: Store> Drop for Acquisition<'_, S> {
    fn drop(&mut self) {
        if !self.left.is_nothing() {
            let notes = std::mem::take(&mut self.call.notes);
            self.running.leave_behind(self.request, notes, &self.left);
        }
    }
}
