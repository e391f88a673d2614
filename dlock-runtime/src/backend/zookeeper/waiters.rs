//! Those who wait, and the look that makes up for a lost notification.
//!
//! A watch is set again by the client at each new connection, and says then what
//! was missed. Should one still be lost, the process looks at all the nodes that
//! it waits for every few seconds: one question for all of them, however many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use zookeeper_client::MultiReadResult;

use super::core::Core;
use super::errors::Failed;
use super::session::Session;
use crate::backend::Owner;

const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// How many nodes one question is about: it must stay well below the megabyte
/// that the server takes (`jute.maxbuffer`).
const AT_ONCE: usize = 200;

#[derive(Default)]
pub(super) struct Waiters(Mutex<HashMap<Owner, Waiter>>);

struct Waiter {
    session: Arc<Session>,
    /// The node that it waits for the end of.
    before: String,
    woken: Arc<Notify>,
}

/// An entry among those who wait, until it is dropped.
pub(super) struct Waiting<'w> {
    waiters: &'w Waiters,
    owner: Owner,
    woken: Arc<Notify>,
}

impl Waiters {
    pub(super) fn enter(&self, owner: Owner, session: &Arc<Session>, before: &str) -> Waiting<'_> {
        let woken = Arc::new(Notify::new());
        let waiter = Waiter {
            session: Arc::clone(session),
            before: before.to_owned(),
            woken: Arc::clone(&woken),
        };
        self.waiters().insert(owner, waiter);
        Waiting {
            waiters: self,
            owner,
            woken,
        }
    }

    fn all_of(&self, session: &Arc<Session>) -> Vec<(String, Arc<Notify>)> {
        let waiters = self.waiters();
        let waiters = waiters
            .values()
            .filter(|waiter| Arc::ptr_eq(&waiter.session, session));
        waiters
            .map(|waiter| (waiter.before.clone(), Arc::clone(&waiter.woken)))
            .collect()
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<Owner, Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// Resolves when the node is gone and nobody has said so.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.waiters().remove(&self.owner);
    }
}

/// Looks at what is waited for, again and again.
pub(super) async fn look(core: Arc<Core>) {
    loop {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let Some(session) = core.present_session() else {
            continue;
        };
        for waiters in core.waiters.all_of(&session).chunks(AT_ONCE) {
            // Whatever goes wrong here, there is a next time.
            let _ = look_at(&core, &session, waiters).await;
        }
    }
}

async fn look_at(
    core: &Core,
    session: &Session,
    waiters: &[(String, Arc<Notify>)],
) -> Result<(), Failed> {
    let deadline = core.deadline();
    session.connected(deadline).await?;
    let mut question = session.client.new_multi_reader();
    for (before, _) in waiters {
        question
            .add_get_data(before)
            .map_err(|error| session.failed(error))?;
    }
    let answers = session.answer(deadline, question.commit()).await?;
    for ((_, woken), answer) in waiters.iter().zip(answers) {
        if matches!(answer, MultiReadResult::Error { .. }) {
            woken.notify_one();
        }
    }
    Ok(())
}
