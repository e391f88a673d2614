//! The ensemble, as this process reaches it: over one session after the other.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use zookeeper_client::SessionState;

use super::session::Session;
use super::settings::Settings;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::store::{Context, Failure, Next, Scope};
use crate::sync::Mutex;

/// Between attempts to open a session.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long a session may take to be closed. Nobody is any worse off if it then
/// just expires.
const TO_CLOSE: Duration = Duration::from_secs(1);

pub(super) struct Ensemble {
    pub(super) settings: Settings,
    pub(super) context: Context,
    session: watch::Sender<Current>,
    /// Whether the servers have nodes that end after a time, once that is known.
    pub(super) remembers: OnceLock<bool>,
    /// Folders that have come to the end of their numbers. Each has had two thousand
    /// million nodes, so they are few.
    pub(super) used_up: Mutex<HashSet<String>>,
}

/// The session of this time; or why none could be opened when that was tried last.
type Current = Result<Arc<Session>, Option<BackendError>>;

impl Ensemble {
    /// Nothing is connected yet.
    pub(super) fn new(settings: Settings, context: Context) -> Arc<Self> {
        Arc::new(Self {
            settings,
            context,
            session: watch::Sender::new(Err(None)),
            remembers: OnceLock::new(),
            used_up: Mutex::default(),
        })
    }

    /// Opens a session with servers that nobody has heard of yet, and keeps one from
    /// here on. What refuses is told at once; but one that is silent, on a busy
    /// machine perhaps, is to be asked again. (The client gives up each server after
    /// a silence that is a part of a call, so as to ask another.)
    pub(super) async fn connect(self: &Arc<Self>, deadline: Deadline) -> Result<(), Failure> {
        let time = &self.context.time;
        let asked_at = time.now();
        let opened = Session::open(&self.settings, &self.context, deadline).await;
        let session = opened.map_err(|error| {
            let took = time.now().saturating_duration_since(asked_at);
            let was_silent = took >= self.settings.silence(self.context.patience())
                && error.kind() == BackendErrorKind::Unavailable;
            Failure {
                next: if was_silent { Next::Pause } else { Next::Stop },
                ..Failure::refused(error)
            }
        })?;
        let remembers = session.can_remember(&self.settings, deadline).await?;
        let _ = self.remembers.set(remembers);
        self.is_now(Ok(Arc::clone(&session)));
        self.context.spawn(Arc::clone(self).keep_session(session));
        Ok(())
    }

    /// Sees the end of each session, tells those who lost their locks by it, and
    /// opens another.
    async fn keep_session(self: Arc<Self>, mut session: Arc<Session>) {
        let Context { time, events, .. } = &self.context;
        let place = self.settings.place();
        loop {
            let state = tokio::select! {
                state = session.follow() => state,
                never = session.sweep() => match never {},
            };
            self.is_now(Err(None));
            let number = events.ended(session.scope());
            // A session that is still alive is closed by this.
            drop(session);
            let how = match state {
                SessionState::Expired => "has expired",
                SessionState::AuthFailed => "was refused",
                _ => "has ended",
            };
            tracing::warn!(target: "dlock::store", "the session with {place} {how}, and {number} locks are lost with it");
            let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
            session = loop {
                let deadline = time.after(self.context.request_timeout);
                match Session::open(&self.settings, &self.context, deadline).await {
                    Ok(session) => break session,
                    Err(error) => self.is_now(Err(Some(error))),
                }
                backoff.wait(time).await;
            };
            tracing::info!(target: "dlock::store", "a new session with {place}");
            self.is_now(Ok(Arc::clone(&session)));
        }
    }

    fn is_now(&self, session: Current) {
        self.session.send_modify(|now| *now = session);
    }

    /// The session of this time. Waits for a new one if it has ended.
    pub(super) async fn session(&self, deadline: Deadline) -> Result<Arc<Session>, Failure> {
        let mut sessions = self.session.subscribe();
        let good = sessions.wait_for(|now| now.as_ref().is_ok_and(|session| !session.is_over()));
        // The sender is this one's own.
        let _ = self.context.time.bound(deadline, good).await;
        let now = self.session.borrow().clone();
        now.map_err(|trouble| trouble.map_or_else(Failure::not_sent, Failure::refused))
    }

    /// All have but the one of this time.
    pub(super) fn has_ended(&self, scope: Scope) -> bool {
        let session = self.session.borrow();
        let is_it = |session: &Arc<Session>| session.scope() == scope && !session.is_over();
        !session.as_ref().is_ok_and(is_it)
    }

    /// Closes the session, and with it what it holds. If a lock is to be held
    /// beyond the end (`min_hold`), it is left to expire.
    pub(super) async fn leave(&self, holds: bool, deadline: Deadline) {
        let Ok(session) = self.session.send_replace(Err(None)) else {
            return;
        };
        let time = &self.context.time;
        if holds {
            // Ends together with the runtime, and the connection with it.
            time.spawn(async move {
                std::future::pending::<()>().await;
                drop(session);
            });
            return;
        }
        let mut states = session.client.state_watcher();
        // The last of its kind closes the session.
        drop(session);
        let closed = async {
            while !states.state().is_terminated() {
                states.changed().await;
            }
        };
        let _ = time.bound(deadline.min(time.after(TO_CLOSE)), closed).await;
    }
}
