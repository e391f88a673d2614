//! A backend between its start and its stop: what its operations share with the
//! tasks that go on by themselves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::errors::{Failed, no_answer, refused, used_up};
use super::names;
use super::nodes::Nodes;
use super::session::Session;
use super::settings::Settings;
use super::used_up::UsedUp;
use super::waiters::Waiters;
use crate::backend::BackendError;
use crate::backend::clock::{Clock, Deadline};
use crate::backend::losses::Losses;

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
    /// With its first session. What goes on by itself is not started yet.
    pub(super) fn new(settings: Settings, clock: Clock, session: Arc<Session>) -> Self {
        Self {
            settings,
            clock,
            nodes: Nodes::default(),
            waiters: Waiters::default(),
            used_up: UsedUp::default(),
            losses: Losses::default(),
            session: watch::Sender::new(Some(session)),
            trouble: Mutex::default(),
            stopping: CancellationToken::new(),
            tasks: Mutex::default(),
        }
    }

    /// Takes these tasks along when it stops.
    pub(super) fn add_tasks(&self, tasks: impl IntoIterator<Item = JoinHandle<()>>) {
        self.tasks().extend(tasks);
    }

    /// There is another session, or none for now.
    pub(super) fn set_session(&self, session: Option<Arc<Session>>) {
        self.session.send_replace(session);
    }

    /// Why no session could be opened; nothing once one was.
    pub(super) fn set_trouble(&self, trouble: Option<BackendError>) {
        *self.trouble() = trouble;
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
