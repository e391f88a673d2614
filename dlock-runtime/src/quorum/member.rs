//! One voter: an engine of its own, and whether it answers.
//!
//! A voter that is known not to answer is not asked, as long as the others are a majority. So it
//! costs no time, and no vote is in flight to it that would have to be given back. A task for
//! each voter finds out whether it answers; whenever something was decided without the voter, the
//! task is notified.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use super::subscriptions::{Subscriptions, VoterListener};
use super::voter::{Vote, Voter};
use crate::backend::{BackendError, BackendErrorKind, Request};
use crate::deadline::Deadline;
use crate::engine::Running;
use crate::engine::call::{attempts, parts};
use crate::engine::time::Backoff;
use crate::outlast::outlast;
use crate::store::{Attempt, Cause, Context, Failure, LeftBehind};
use crate::sync::{Mutex, found};

/// How soon a healthy voter answers, even on a busy machine.
const SOON: Duration = Duration::from_millis(300);

/// After each doubt, a voter is checked at most this often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The longest pause before another attempt to listen to a voter.
const LAST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Member<V: Voter> {
    pub(super) number: usize,
    pub(super) engine: Arc<Running<V>>,
    /// How long one answer may take.
    patience: Duration,
    answers: AtomicBool,
    /// Notified when the voter falls silent.
    silent: Notify,
    doubts: mpsc::Sender<Option<V::Connection>>,
    /// The last refusal that was logged.
    complaint: Mutex<String>,
}

/// One voter's part in an election.
#[derive(Default)]
pub(super) struct Part<A> {
    pub(super) notes: A,
    pub(super) left: LeftBehind,
}

impl<V: Voter> Member<V> {
    /// Opens the engine of a voter. The member's tasks end with that engine.
    pub(super) fn open(
        number: usize,
        config: V::Config,
        context: &Context,
        listener: VoterListener,
    ) -> Arc<Self> {
        let engine = Running::open(
            config,
            context.time.clone(),
            context.request_timeout,
            context.label.as_ref(),
        );
        let subscriptions = Arc::clone(&listener.subscriptions);
        engine.events.set_listener(listener);
        // One pending doubt is enough.
        let (doubts, inbox) = mpsc::channel(1);
        let member = Arc::new(Self {
            number,
            engine,
            patience: context.patience(),
            answers: AtomicBool::new(true),
            silent: Notify::new(),
            doubts,
            complaint: Mutex::default(),
        });
        let attends = Arc::clone(&member).attend(inbox);
        member.engine.spawn_until_stop(attends);
        let listens = Arc::clone(&member).listen(subscriptions);
        member.engine.spawn_until_stop(listens);
        member
    }

    pub(super) fn voter(&self) -> &V {
        &self.engine.store
    }

    /// Asks for its vote. What the question may leave is noted in `part` as it happens, since the
    /// caller may leave at any moment.
    pub(super) async fn vote(
        &self,
        request: &Request,
        part: &mut Part<V::Notes>,
        deadline: Deadline,
    ) -> Vote {
        let asked = self.engine.time.now();
        part.left.in_flight = true;
        let attempt = Attempt::new(deadline, &mut part.notes);
        match self.voter().vote(request, attempt).await {
            Ok(vote) => {
                part.left.in_flight = false;
                part.left.there = !matches!(vote, Vote::No(_));
                vote
            }
            Err(failure) => {
                part.left.note(&failure);
                Vote::Failed(self.error(failure, asked))
            }
        }
    }

    /// The keys of its locks that begin so. Each step has as long as an answer may take.
    pub(super) async fn keys(&self, prefix: &str) -> Result<BTreeSet<String>, BackendError> {
        let mut call = self.engine.call();
        parts!(call, |attempt| self.voter().keys(prefix, attempt))
    }

    /// Called when the lock is granted by other votes. Returns the part if its request is still
    /// in flight; the release of the lock sees to it.
    pub(super) fn in_flight(
        &self,
        request: &Request,
        part: Part<V::Notes>,
    ) -> Option<Part<V::Notes>> {
        if let Some(sent_at) = part.left.unknown {
            self.engine.note_unknown(request, None, sent_at);
        }
        // Otherwise it was not sent.
        let was_sent = part.left.in_flight && V::asked_over(&part.notes).is_some();
        was_sent.then_some(part)
    }

    /// The error of a question that was asked at `asked` and failed.
    pub(super) fn error(&self, failure: Failure, asked: Instant) -> BackendError {
        match failure.cause {
            Cause::Error(error) | Cause::NotReached(error) => error,
            Cause::Silence => {
                let now = self.engine.time.now();
                self.voter().silent(now.saturating_duration_since(asked))
            }
        }
    }

    /// Whether the voter answered at the last check.
    pub(super) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Resolves when the voter does not answer.
    pub(super) async fn until_silent(&self) {
        found(&self.silent, || (!self.answers()).then_some(())).await;
    }

    /// Something was decided without this voter, which was asked over this connection, or could
    /// not be asked.
    pub(super) fn doubt(&self, connection: Option<V::Connection>) {
        let _ = self.doubts.try_send(connection);
    }

    pub(super) fn falls_silent(&self) {
        self.answers.store(false, Ordering::Relaxed);
        self.silent.notify_waiters();
    }

    /// Logs, once, that the voter refuses for a reason that an operator must see to.
    pub(super) fn complain(&self, error: &BackendError) {
        if error.kind() == BackendErrorKind::Unavailable {
            return;
        }
        let text = error.to_string();
        let mut complaint = self.complaint.lock();
        if *complaint == text {
            return;
        }
        complaint.clone_from(&text);
        // A subscriber's code is not ours, and may come here again.
        drop(complaint);
        outlast(|| {
            tracing::warn!(target: "dlock::store", "{text}; locks go on with the other nodes");
        });
    }

    /// Checks the voter whenever it is in doubt.
    async fn attend(self: Arc<Self>, mut doubts: mpsc::Receiver<Option<V::Connection>>) {
        let time = &self.engine.time;
        while let Some(connection) = doubts.recv().await {
            self.look(connection).await;
            time.sleep(time.after(BETWEEN_LOOKS)).await;
        }
    }

    async fn look(&self, connection: Option<V::Connection>) {
        let (time, place) = (&self.engine.time, self.voter().place());
        let timeout = self.engine.request_timeout;
        let was_silent = !self.answers();
        if was_silent || !self.answers_within(SOON).await {
            self.falls_silent();
            if !was_silent {
                outlast(|| {
                    tracing::warn!(target: "dlock::store", "{place} does not answer; locks go on with the other nodes");
                });
            }
            let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
            // Long enough to find a connection dead and replace it.
            while !self.answers_within(timeout).await {
                backoff.wait(time).await;
            }
            self.answers.store(true, Ordering::Relaxed);
            outlast(|| tracing::info!(target: "dlock::store", "{place} answers again"));
        }
        // The voter answers. If this connection is dead, the ping gives it up.
        if let Some(connection) = connection {
            let limit = time.after(self.patience);
            let _ = self.voter().ping(Some(&connection), limit).await;
        }
    }

    async fn answers_within(&self, limit: Duration) -> bool {
        let limit = self.engine.time.after(limit);
        self.voter().ping(None, limit).await.is_ok()
    }

    /// Listens to the keys that are waited for.
    async fn listen(self: Arc<Self>, subscriptions: Arc<Subscriptions>) {
        let time = &self.engine.time;
        let mut listening = V::Listening::default();
        let mut backoff = Backoff::new(Duration::from_millis(20), LAST_PAUSE);
        loop {
            subscriptions.changed[self.number].notified().await;
            loop {
                let keys = subscriptions.wanted();
                let listens = self
                    .voter()
                    .listen(&keys, &mut listening, time.after(self.patience));
                if listens.await.is_ok() {
                    subscriptions.listens(self.number, &keys);
                    backoff.reset();
                    break;
                }
                backoff.wait(time).await;
            }
        }
    }
}
