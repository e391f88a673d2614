//! `recipe=lock-service`: the server's own Lock call does the waiting.
//!
//! Each attempt has a lease of its own, which is kept alive while the call waits
//! (the call does not do that) and is revoked when the attempt is given up: the
//! server deletes the key of a call that was cut off by its name alone (etcd issue
//! 22082), and an attempt after it must not have the same.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, LockOptions};

use super::errors::{Failed, Verdict};
use super::leases::Lease;
use super::members::Members;
use super::names::LockName;
use super::queue::{Ahead, Key, Question, Stands, created_at};
use crate::deadline::Deadline;
use crate::store::Failure;

/// When it is first looked whether somebody else has the lock, for a caller who
/// gives up soon.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// Between looks until the call has its place.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The Lock call of one attempt, which waits for its turn. Cut off when dropped.
pub(super) enum LockCall {
    Waits(Pin<Box<dyn Future<Output = Result<(), Failed>> + Send>>),
    Answered,
}

impl LockCall {
    pub(super) fn new(members: &Arc<Members>, lock: &LockName, lease: &Arc<Lease>) -> Self {
        let (members, lock) = (Arc::clone(members), lock.for_lock_service().to_owned());
        let (lease, options) = (Arc::clone(lease), LockOptions::new().with_lease(lease.id()));
        Self::Waits(Box::pin(async move {
            let call = |mut client: Client| async move { client.lock(lock, Some(options)).await };
            // It has no limit but its lease, as it waits.
            match members.ask_one(Deadline::never(), call).await {
                // The next attempt has another.
                Err(failed) if failed.verdict == Verdict::LeaseNotFound => lease.end(),
                answer => drop(answer?),
            }
            Ok(())
        }))
    }

    /// Waits for its answer.
    pub(super) async fn answer(&mut self) -> Result<(), Failed> {
        if let Self::Waits(call) = self {
            let answer = call.await;
            *self = Self::Answered;
            answer?;
        }
        Ok(())
    }

    /// Waits until the call has answered, or stands behind somebody. What is watched
    /// for its turn is its own key: the call may be answered although that has ended
    /// (etcd issue 9921), or wait for ever (19597).
    pub(super) async fn stands(
        &mut self,
        members: &Members,
        asked: &Question<'_>,
        key: &mut Key,
    ) -> Result<Stands, Failure> {
        let (deadline, mut pause) = (asked.deadline, FIRST_LOOK);
        loop {
            let limit = deadline.min(members.time.after(pause));
            if let Ok(answer) = members.time.bound(limit, self.answer()).await {
                answer?;
            }
            let own = std::iter::once(key.name.key());
            let found = created_at(members, own, deadline).await?;
            let created = found.into_iter().flatten().next();
            let was_there = key.create_revision != 0;
            key.create_revision = created.unwrap_or(0);
            match (created, &self) {
                (Some(_), Self::Answered) => return Ok(Stands::First),
                (None, Self::Answered) => return Ok(Stands::Nowhere),
                (None, Self::Waits(_)) if was_there => return Ok(Stands::Nowhere),
                (None, Self::Waits(_)) => {}
                (Some(created), Self::Waits(_)) => {
                    let stands = key.look(members, asked).await?;
                    if let Stands::Behind(ahead) = stands {
                        let key = key.name.key().to_owned();
                        return Ok(Stands::Behind(Ahead {
                            key,
                            created,
                            ..ahead
                        }));
                    }
                }
            }
            if members.time.has_passed(deadline) {
                return Err(Failed::not_sent().into());
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
