//! The start of a backend: its first session, and the tasks that keep one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client::SessionState;

use super::core::Core;
use super::session::Session;
use super::settings::Settings;
use super::{give_back, look};
use crate::backend::clock::{Backoff, Clock, Deadline};
use crate::backend::{BackendError, BackendErrorKind};

/// Between attempts to open a session.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// Opens a session and starts the tasks, all on the current runtime.
pub(super) async fn start(settings: Settings) -> Result<Arc<Core>, BackendError> {
    let clock = Clock::of_this_runtime().ok_or_else(|| {
        BackendError::new(
            BackendErrorKind::Unsupported,
            "started outside a tokio runtime; start it from a task of one",
        )
    })?;
    let deadline = Deadline::after(settings.request_timeout);
    let session = first_session(&settings, &clock, deadline).await?;
    let core = Arc::new(Core::new(settings, clock, Arc::clone(&session)));
    let tasks = [
        tokio::spawn(keep_session(Arc::clone(&core), session)),
        tokio::spawn(give_back::work(Arc::clone(&core))),
        tokio::spawn(look::look(Arc::clone(&core))),
    ];
    core.add_tasks(tasks);
    Ok(core)
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
        core.set_session(None);
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
                Err(error) => core.set_trouble(Some(error)),
            }
            tokio::time::sleep(backoff.pause()).await;
        };
        core.set_trouble(None);
        tracing::info!(target: "dlock::store", "a new session with {place}");
        core.set_session(Some(Arc::clone(&session)));
    }
}
