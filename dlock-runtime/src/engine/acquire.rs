//! Taking a lock, on every store.
//!
//! What cannot tell its own success from somebody else's is sent once at most
//! ([`Want::First`]). Everything after it knows its owner and may be asked as
//! often as there is cause: to wait is to ask once more. Whatever the store may
//! have of the request is noted before anything is sent, and what the caller
//! leaves behind goes to the [cleanup](super::cleanup).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Running;
use super::call::{Call, Rare};
use super::lease_table::LeaseTable;
use crate::backend::{BackendError, Grant, Request};
use crate::in_flight::Counted;
use crate::store::{Abandoned, Behind, Granted, LeftBehind, Looks, Opening, Store, Take, Want};
use crate::token::FencingToken;

impl<S: Store> Running<S> {
    pub(crate) async fn try_acquire(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut acquisition = Acquisition::new(self, request);
        if let Some(grant) = acquisition.open(self.store.opening(request)).await? {
            return Ok(Some(grant));
        }
        match acquisition.ask(Want::Try).await? {
            Asked::Granted(grant) => Ok(Some(grant)),
            Asked::Held | Asked::Behind(_) => Ok(None),
            Asked::Contended => acquisition.try_again().await,
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
            Opening::Try => match acquisition.ask(Want::Try).await? {
                Asked::Granted(grant) => return Ok(grant),
                // After a tie it is not asked again at once. And where nobody has a
                // place, there is no more to ask for.
                Asked::Contended => Some(Asked::Contended),
                answer if S::LOOKS == Looks::Each => Some(answer),
                _ => {
                    acquisition.call.was_answered();
                    None
                }
            },
            Opening::First | Opening::Cheap | Opening::Place => None,
        };
        acquisition.wait(answer).await
    }

    /// Notes a grant. `false` if it has ended already: whoever cleared what ended
    /// with it may have been there before. If it came after, the loss is told.
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

/// A request on its way to a grant. Dropped before that, what it may have left
/// at the store is given back.
struct Acquisition<'a, S: Store> {
    running: &'a Arc<Running<S>>,
    request: &'a Request,
    call: Call<'a, S>,
    /// When the last question was asked, or one before it.
    asked: Instant,
    left: LeftBehind,
    /// A stop of the engine waits for those who wait, and for what they leave.
    counted: Option<Counted>,
}

/// What has come of a question, and of those that were asked for it.
enum Asked<S: Store> {
    Granted(Grant),
    Held,
    Behind(Behind<S>),
    Contended,
}

/// Who only tries takes so many ties for a lock that is held.
const TIES: u32 = 10;

/// A watch that fails sooner has not waited: its store has failed since the one
/// before it.
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

    /// It waits for others, not for the store.
    fn hold_back(&mut self, pause: Duration) -> Rare<'_, ()> {
        Box::pin(async move {
            self.request.progress().asks_later();
            let time = &self.running.time;
            time.sleep(time.after(pause)).await;
            self.request.progress().asks_now();
            self.call.start_again();
        })
    }

    /// The cheapest question. `None` says nothing: what asks for more must be asked.
    async fn open(&mut self, opening: Opening) -> Result<Option<Grant>, BackendError> {
        let asked = match opening {
            Opening::First => match self.attempt(Want::First).await? {
                Some(take) => self.answered(take),
                None => None,
            },
            // What knows its owner, until it is answered.
            Opening::Cheap => Some(self.ask(Want::First).await?),
            Opening::Try | Opening::Place => None,
        };
        match asked {
            Some(Asked::Granted(grant)) => return Ok(Some(grant)),
            Some(_) => self.call.was_answered(),
            None => {}
        }
        Ok(None)
    }

    /// After a tie.
    fn try_again(&mut self) -> Rare<'_, Result<Option<Grant>, BackendError>> {
        Box::pin(async move {
            for _ in 1..TIES {
                self.call.wait_for_others().await;
                match self.ask(Want::Try).await? {
                    Asked::Granted(grant) => return Ok(Some(grant)),
                    Asked::Held | Asked::Behind(_) => break,
                    Asked::Contended => {}
                }
            }
            Ok(None)
        })
    }

    /// `answer`: the store was asked already.
    fn wait(&mut self, answer: Option<Asked<S>>) -> Rare<'_, Result<Grant, BackendError>> {
        Box::pin(async move {
            let running = self.running;
            self.counted = Some(running.tasks.count());
            let waits = running.stopping.run_until_cancelled(self.go_on(answer));
            waits.await.unwrap_or_else(|| Err(running.has_stopped()))
        })
    }

    /// Asks whenever there is cause to.
    async fn go_on(&mut self, mut answer: Option<Asked<S>>) -> Result<Grant, BackendError> {
        let running = self.running;
        // Before it asks: a grant may be told before the answer has come.
        let mut waiting = running.events.waiters().enter(self.request);
        loop {
            let asked = match answer.take() {
                Some(asked) => asked,
                None => {
                    self.request.progress().asks_again();
                    let beat = S::BEAT.is_some() && !running.events.is_known();
                    self.ask(Want::Queue { beat }).await?
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
                    let (store, attempt) = (&running.store, &mut self.call.attempt);
                    let failed = tokio::select! {
                        biased;
                        woken = waiting.woken(began) => { woken?; None }
                        ended = store.wait(self.request, behind.watch, attempt) => ended.err(),
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

    /// Asks until the store has answered, by what knows its owner.
    async fn ask(&mut self, want: Want) -> Result<Asked<S>, BackendError> {
        loop {
            if let Some(take) = self.attempt(want).await?
                && let Some(asked) = self.answered(take)
            {
                return Ok(asked);
            }
        }
    }

    /// What that means. `None`: the store is to be asked again.
    fn answered(&mut self, take: Take<S>) -> Option<Asked<S>> {
        let (there, asked) = match take {
            Take::Granted(granted) => {
                let grant = self.granted(granted);
                if grant.is_none() {
                    self.call.was_answered();
                }
                return grant.map(Asked::Granted);
            }
            Take::PlaceLost(record) => {
                self.place_lost(record);
                return None;
            }
            // Who asked was told.
            Take::Done => return None,
            Take::Contended => return Some(Asked::Contended),
            Take::Busy => (false, Asked::Held),
            Take::Queued => (true, Asked::Held),
            Take::Behind(behind) => (true, Asked::Behind(behind)),
        };
        self.request.was_held_when(self.asked);
        self.left.there = there;
        Some(asked)
    }

    /// One attempt: `None` if it failed and another may be made.
    async fn attempt(&mut self, want: Want) -> Result<Option<Take<S>>, BackendError> {
        let deadline = self.call.begin()?;
        // The first is asked when the call begins: it need not look at its clock again.
        if want != Want::First {
            self.asked = self.running.time.now();
        }
        self.left.in_flight = true;
        let store = &self.running.store;
        let taking = store.take(self.request, want, deadline, &mut self.call.attempt);
        match taking.await {
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

    /// What may have come of it goes with its record, and not with the next place.
    fn place_lost(&mut self, record: Option<S::Record>) {
        let left = std::mem::take(&mut self.left);
        if let Some(record) = record {
            let (request, abandoned) = (self.request.clone(), Abandoned::at_rest(Some(record)));
            self.running.clean_up(request, abandoned, &left);
        }
        self.call.give_more_time();
    }

    /// The lock is held. `None`: it has been lost already.
    fn granted(&mut self, granted: Granted<S>) -> Option<Grant> {
        let running = self.running;
        let (token, sent_at) = (granted.token, granted.sent_at);
        let longest = S::longest_lease(&granted.record);
        let longest = longest.or_else(|| running.store.longest_for(self.request));
        if let Some(sent_at) = self.left.unknown {
            running.note_unknown(self.request, Some(&granted.record), sent_at);
        }
        // From here on it is the caller's; or it has ended, and all with it.
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
            let attempt = std::mem::take(&mut self.call.attempt);
            self.running.leave_behind(self.request, attempt, &self.left);
        }
    }
}
