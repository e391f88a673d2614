//! The look that makes up for a lost notification.
//!
//! A watch is set again by the client at each new connection, and says then what
//! was missed. Should one still be lost, the process looks at all the nodes that
//! it waits for every few seconds: one question for all of them, however many.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use zookeeper_client::MultiReadResult;

use super::core::Core;
use super::errors::Failed;
use super::session::Session;

const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// How many nodes one question is about: it must stay well below the megabyte
/// that the server takes (`jute.maxbuffer`).
const AT_ONCE: usize = 200;

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
