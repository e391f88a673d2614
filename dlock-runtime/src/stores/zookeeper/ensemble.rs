//! The ensemble, and the session that this process has with it.

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
use crate::outlast::outlast;
use crate::store::{Context, Failure, Scope};
use crate::sync::Mutex;

/// How often in a row the first session may be refused. The client (0.11) sends the login right
/// behind its request for a session. A busy server with Netty may answer the login first, which the
/// client takes for an "unsupported server version".
const AT_ONCE: u32 = 3;

/// The pauses between attempts to open a session: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long it may take to close a session. If it takes longer, the session just expires.
const TO_CLOSE: Duration = Duration::from_secs(1);

pub(super) struct Ensemble {
    pub(super) settings: Settings,
    pub(super) context: Context,
    session: watch::Sender<Current>,
    /// Whether the servers have nodes that end after a time, once that is known.
    pub(super) remembers: OnceLock<bool>,
    /// Folders that have come to the end of their numbers. Each has had two thousand million nodes,
    /// so they are few.
    pub(super) used_up: Mutex<HashSet<String>>,
}

/// The current session; or why none could be opened, when that was last tried.
type Current = Result<Arc<Session>, Option<BackendError>>;

impl Ensemble {
    /// Without a session yet.
    pub(super) fn new(settings: Settings, context: Context) -> Arc<Self> {
        Arc::new(Self {
            settings,
            context,
            session: watch::Sender::new(Err(None)),
            remembers: OnceLock::new(),
            used_up: Mutex::default(),
        })
    }

    /// Opens the first session, and keeps one open from here on. A refusal is reported at once, as
    /// soon as it was met [`AT_ONCE`] times. But if the servers were silent, perhaps on a busy
    /// machine, the engine tries again. (The client gives up a silent server after a part of the
    /// time that a call has, so that it can ask another one.)
    pub(super) async fn connect(self: &Arc<Self>, deadline: Deadline) -> Result<(), Failure> {
        let time = &self.context.time;
        let silence = self.settings.silence(self.context.patience());
        let mut attempt = 1;
        let session = loop {
            let asked_at = time.now();
            let opened = Session::open(&self.settings, &self.context, deadline).await;
            let error = match opened {
                Ok(session) => break session,
                Err(error) => error,
            };
            let was_silent = time.now().saturating_duration_since(asked_at) >= silence;
            match error.kind() {
                BackendErrorKind::Unavailable if was_silent => return Err(Failure::refused(error)),
                BackendErrorKind::Unavailable if attempt < AT_ONCE => attempt += 1,
                _ => return Err(Failure::stop(error)),
            }
        };
        let remembers = session.can_remember(&self.settings, deadline).await?;
        let _ = self.remembers.set(remembers);
        self.set_session(Ok(Arc::clone(&session)));
        self.context.spawn(Arc::clone(self).keep_session(session));
        Ok(())
    }

    /// Follows each session to its end, reports the locks that are lost with it, and opens another.
    async fn keep_session(self: Arc<Self>, mut session: Arc<Session>) {
        let Context { time, events, .. } = &self.context;
        let place = self.settings.place();
        let (mut began, mut backoff) = (time.now(), Backoff::new(FIRST_PAUSE, LAST_PAUSE));
        loop {
            let state = tokio::select! {
                state = session.follow() => state,
                never = session.sweep() => match never {},
            };
            self.set_session(Err(None));
            let number = events.ended(session.scope());
            // This closes a session that is still alive.
            drop(session);
            let how = match state {
                SessionState::Expired => "has expired",
                SessionState::AuthFailed => "was refused",
                _ => "has ended",
            };
            outlast(|| {
                tracing::warn!(target: "dlock::store", "the session with {place} {how}, and {number} locks are lost with it");
            });
            // Servers that end each session as soon as it is open are not asked without a pause.
            match time.now() >= began + LAST_PAUSE {
                true => backoff.reset(),
                false => backoff.wait(time).await,
            }
            session = loop {
                let deadline = time.after(self.context.request_timeout);
                match Session::open(&self.settings, &self.context, deadline).await {
                    Ok(session) => break session,
                    Err(error) => self.set_session(Err(Some(error))),
                }
                backoff.wait(time).await;
            };
            began = time.now();
            self.set_session(Ok(Arc::clone(&session)));
            outlast(|| tracing::info!(target: "dlock::store", "a new session with {place}"));
        }
    }

    fn set_session(&self, session: Current) {
        self.session.send_modify(|now| *now = session);
    }

    /// The current session. Waits for a new one if it has ended.
    pub(super) async fn session(&self, deadline: Deadline) -> Result<Arc<Session>, Failure> {
        let mut sessions = self.session.subscribe();
        let good = sessions.wait_for(|now| now.as_ref().is_ok_and(|session| !session.is_over()));
        // The sender belongs to `self`, so only the deadline ends this early.
        let _ = self.context.time.bound(deadline, good).await;
        let now = self.session.borrow().clone();
        now.map_err(|trouble| trouble.map_or_else(Failure::not_sent, Failure::refused))
    }

    /// Every session has ended, except the current one.
    pub(super) fn has_ended(&self, scope: Scope) -> bool {
        let session = self.session.borrow();
        let is_it = |session: &Arc<Session>| session.scope() == scope && !session.is_over();
        !session.as_ref().is_ok_and(is_it)
    }

    /// Closes the session, and so ends its locks. If a lock must be held beyond that (`min_hold`),
    /// the session is left to expire.
    pub(super) async fn leave(&self, holds: bool, deadline: Deadline) {
        let Ok(session) = self.session.send_replace(Err(None)) else {
            return;
        };
        let time = &self.context.time;
        if holds {
            // Dropping the session would close it. It is kept until the runtime ends, and its
            // connection with it.
            time.spawn(async move {
                std::future::pending::<()>().await;
                drop(session);
            });
            return;
        }
        let mut states = session.client.state_watcher();
        // Dropping the last one closes the session.
        drop(session);
        let closed = async {
            while !states.state().is_terminated() {
                states.changed().await;
            }
        };
        let _ = time.bound(deadline.min(time.after(TO_CLOSE)), closed).await;
    }
}
