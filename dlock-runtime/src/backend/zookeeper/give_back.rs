//! Deleting what nobody wants any more: what dropped requests left, and what
//! holds a lock whose time has come. Until the server has confirmed it, or the
//! session has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep_until;
use zookeeper_client::{Error, Stat};

use super::core::Core;
use super::errors::Failed;
use super::names;
use super::nodes::{Doomed, Place};
use crate::backend::Owner;
use crate::backend::clock::{Backoff, Deadline};

/// Between attempts that fail at once.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A node that was found by its name.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) czxid: i64,
}

/// The task that deletes nodes at their time.
pub(super) async fn work(core: Arc<Core>) {
    let mut in_flight = JoinSet::new();
    loop {
        let (doomed, next) = core.nodes.take_due();
        for doomed in doomed {
            in_flight.spawn(delete(Arc::clone(&core), doomed));
        }
        let next = async {
            match next {
                Some(next) => sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = next => {}
            () = core.nodes.earlier() => {}
            Some(_) = in_flight.join_next() => {}
        }
    }
}

async fn delete(core: Arc<Core>, doomed: Doomed) {
    let owner = doomed.owner;
    let work = until_deleted(&core, owner, doomed.place);
    tokio::pin!(work);
    if let Some((counted, until)) = doomed.counted {
        tokio::select! {
            () = &mut work => {}
            () = sleep_until(until.into()) => {
                drop(counted);
                work.await;
            }
        }
    } else {
        work.await;
    }
    core.nodes.forget(owner);
}

async fn until_deleted(core: &Core, owner: Owner, mut place: Place) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        match core.delete(owner, &mut place, Deadline::never()).await {
            Ok(_) | Err(Failed::Over) => return,
            Err(Failed::Refused(error)) => {
                let folder = &place.folder;
                tracing::warn!(
                    target: "dlock::store",
                    "a node in {folder} cannot be deleted, and stays until the session ends: {error}"
                );
                return;
            }
            Err(Failed::Lost | Failed::TooLate | Failed::UsedUp) => {}
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

impl Core {
    /// Deletes the node of a request, and says whether it was there. Once
    /// answered, it is not there and will not come.
    pub(super) async fn delete(
        &self,
        owner: Owner,
        place: &mut Place,
        deadline: Deadline,
    ) -> Result<bool, Failed> {
        if place.name.is_none() {
            let Some(found) = self.find(owner, place, deadline).await? else {
                return Ok(false);
            };
            place.name = Some(found.name);
        }
        let session = &place.session;
        session.connected(deadline).await?;
        let path = place.path();
        let sent_at = Instant::now();
        match session
            .answer(deadline, session.client.delete(&path, None))
            .await
        {
            Ok(()) => {
                session.prove(sent_at);
                Ok(true)
            }
            Err(Failed::Refused(Error::NoNode)) => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    /// Looks for the node of a request whose creation was not answered.
    ///
    /// What the session has sent over this connection comes before the question.
    /// What it sent over an earlier one has either reached the leader before the
    /// session moved, and then `sync` waits until this server has it too; or it
    /// is refused there, as the session has moved.
    ///
    /// The owner may have made another node by an earlier session, which the
    /// server has not ended yet: so a name says less than whose the node is.
    pub(super) async fn find(
        &self,
        owner: Owner,
        place: &Place,
        deadline: Deadline,
    ) -> Result<Option<Found>, Failed> {
        let session = &place.session;
        session.connected(deadline).await?;
        // Both are sent at once, in this order.
        let synced = session.client.sync(&self.settings.root);
        let listed = session.client.list_children(&place.folder);
        let answers = futures_util::future::join(synced, listed);
        let (synced, listed) = session.bound(deadline, answers).await?;
        synced.map_err(|error| session.failed(error))?;
        let names = match listed {
            Ok(names) => names,
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(session.failed(error)),
        };
        let own = names::own(owner);
        for name in names {
            if !name.starts_with(&own) {
                continue;
            }
            let path = names::join(&place.folder, &name);
            let looked_at = session.client.check_stat(&path);
            let stat = session.answer(deadline, looked_at).await?;
            let is_ours = |stat: &Stat| stat.ephemeral_owner == session.client.session_id().0;
            if let Some(stat) = stat.filter(is_ours) {
                return Ok(Some(Found {
                    name,
                    czxid: stat.czxid,
                }));
            }
        }
        Ok(None)
    }
}
