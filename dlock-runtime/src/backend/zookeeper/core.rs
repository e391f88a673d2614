//! A backend between its start and its stop: what its operations share, and the
//! tasks that go on by themselves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use zookeeper_client::SessionState;

use super::errors::{Failed, no_answer, refused, used_up};
use super::give_back;
use super::names;
use super::nodes::Nodes;
use super::session::Session;
use super::settings::Settings;
use super::used_up::UsedUp;
use super::waiters::{self, Waiters};
use crate::backend::clock::{Backoff, Clock, Deadline};
use crate::backend::losses::Losses;
use crate::backend::{BackendError, BackendErrorKind};

/// Between attempts to open a session.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long a session may take to be closed. Nobody is any worse off if it then
/// just expires.
const TO_CLOSE: Duration = Duration::from_secs(1);

pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) nodes: Nodes,
    pub(super) waiters: Waiters,
    pub(super) used_up: UsedUp,
    pub(super) losses: Losses,
    /// The session of this time, if there is one.
    session: watch::Sender<Option<Arc<Session>>>,
    /// Why none could be opened when that was tried last.
    trouble: Mutex<Option<BackendError>>,
    stopping: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Core {
    /// Opens a session and starts the tasks, all on the current runtime.
    pub(super) async fn start(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let clock = Clock::of_this_runtime().ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "started outside a tokio runtime; start it from a task of one",
            )
        })?;
        let deadline = Deadline::after(settings.request_timeout);
        let session = first_session(&settings, &clock, deadline).await?;
        let core = Arc::new(Self {
            settings,
            clock,
            nodes: Nodes::default(),
            waiters: Waiters::default(),
            used_up: UsedUp::default(),
            losses: Losses::default(),
            session: watch::Sender::new(Some(Arc::clone(&session))),
            trouble: Mutex::default(),
            stopping: CancellationToken::new(),
            tasks: Mutex::default(),
        });
        let tasks = [
            tokio::spawn(keep_session(Arc::clone(&core), session)),
            tokio::spawn(give_back::work(Arc::clone(&core))),
            tokio::spawn(waiters::look(Arc::clone(&core))),
        ];
        core.tasks().extend(tasks);
        Ok(core)
    }

    /// The session of this time. Waits for a new one if it has ended.
    pub(super) async fn session(&self, deadline: Deadline) -> Result<Arc<Session>, BackendError> {
        let is_good = |session: &Option<Arc<Session>>| {
            session.as_ref().is_some_and(|session| !session.is_over())
        };
        let mut sessions = self.session.subscribe();
        let good = self.clock.bound(deadline, sessions.wait_for(is_good)).await;
        match good {
            Ok(Ok(session)) => session.clone().ok_or_else(|| self.no_answer()),
            _ => Err(self.trouble().clone().unwrap_or_else(|| self.no_answer())),
        }
    }

    /// The session of this time, without waiting.
    pub(super) fn present_session(&self) -> Option<Arc<Session>> {
        self.session.borrow().clone()
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.settings.request_timeout)
    }

    pub(super) fn folder(&self, key: &str) -> String {
        names::folder(&self.settings.root, key)
    }

    pub(super) fn no_answer(&self) -> BackendError {
        no_answer(&self.settings.place())
    }

    /// What callers are told.
    pub(super) fn error(&self, failed: Failed, folder: &str) -> BackendError {
        match failed {
            Failed::Refused(error) => refused(&self.settings.place(), folder, error),
            Failed::UsedUp => used_up(&self.settings.place(), folder),
            Failed::Lost | Failed::Over | Failed::TooLate => self.no_answer(),
        }
    }

    /// Ends the tasks and closes the session, and with it what it holds. If locks
    /// are held whose time has not come (`min_hold`), it is left to expire.
    pub(super) async fn stop(&self) {
        self.stopping.cancel();
        for task in self.tasks().drain(..) {
            task.abort();
        }
        let Some(session) = self.session.send_replace(None) else {
            return;
        };
        if self.nodes.holds_any() {
            // Ends together with the runtime, and the connection with it.
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(session);
            });
            return;
        }
        drop(self.nodes.forget_all_of(&session));
        let mut states = session.client.state_watcher();
        // The last of its kind closes the session.
        drop(session);
        let closed = async {
            while !states.state().is_terminated() {
                states.changed().await;
            }
        };
        let _ = self.clock.bound(Deadline::after(TO_CLOSE), closed).await;
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<BackendError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a session with servers that nobody has heard of yet. What refuses is told
/// at once; but one that is silent, on a busy machine perhaps, is asked again for
/// as long as a call may take. (The client gives up each server after a silence
/// that is a part of that, so as to ask another.)
async fn first_session(
    settings: &Settings,
    clock: &Clock,
    deadline: Deadline,
) -> Result<Arc<Session>, BackendError> {
    loop {
        let asked_at = Instant::now();
        match Session::open(settings, clock, deadline).await {
            Err(error)
                if error.kind() == BackendErrorKind::Unavailable
                    && asked_at.elapsed() >= settings.silence()
                    && !deadline.has_passed() => {}
            answer => return answer,
        }
    }
}

/// Sees the end of each session, tells those who lost their locks by it, and
/// opens another.
async fn keep_session(core: Arc<Core>, mut session: Arc<Session>) {
    let place = core.settings.place();
    loop {
        let state = session.follow().await;
        core.session.send_replace(None);
        let lost = core.nodes.forget_all_of(&session);
        // A session that is still alive is closed by this.
        drop(session);
        let number = lost.len();
        core.losses.tell(lost);
        let how = match state {
            SessionState::Expired => "has expired",
            SessionState::AuthFailed => "was refused",
            _ => "has ended",
        };
        tracing::warn!(target: "dlock::store", "the session with {place} {how}, and {number} locks are lost with it");
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        session = loop {
            match Session::open(&core.settings, &core.clock, core.deadline()).await {
                Ok(session) => break session,
                Err(error) => *core.trouble() = Some(error),
            }
            tokio::time::sleep(backoff.pause()).await;
        };
        *core.trouble() = None;
        tracing::info!(target: "dlock::store", "a new session with {place}");
        core.session.send_replace(Some(Arc::clone(&session)));
    }
}
