//! `recipe=lock-service`: the server's own Lock call does the waiting.
//!
//! Each attempt has a lease of its own. It is kept alive while the call waits (the call does not do
//! that), and revoked when the attempt is given up. When a call was cut off, the server deletes its
//! key by the name alone (etcd issue 22082), so the next attempt must not have the same name.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, LockOptions};
use tokio::sync::oneshot;

use super::batches::Batches;
use super::errors::{ErrorClass, Failed};
use super::members::Members;
use super::queue::{Key, Question, QueuePosition};
use crate::deadline::Deadline;
use crate::store::Failure;

/// The pause before the first look whether another owner has the lock. It is short, for a caller
/// that gives up soon.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// The longest pause between looks until the call has its place.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The Lock call of one attempt, which waits for its turn. It is cut off when this is dropped.
pub(super) struct LockCall {
    /// `None`: the answer has come.
    answer: Option<oneshot::Receiver<Result<(), Failed>>>,
}

impl LockCall {
    /// Begins the call. Its answer wakes the request.
    pub(super) fn new(members: &Arc<Members>, asked: &Question<'_>, key: &Key) -> Self {
        let (members, lease) = (Arc::clone(members), Arc::clone(key.lease()));
        let lock = asked.lock.for_lock_service().to_owned();
        let (owner, waits_for) = (asked.request.owner, Arc::clone(&asked.request.key));
        let context = members.context.clone();
        let events = context.events.clone();
        let (mut done, answer) = oneshot::channel();
        context.spawn(async move {
            let options = LockOptions::new().with_lease(lease.id);
            let call = |mut client: Client| async move { client.lock(lock, Some(options)).await };
            let answered = tokio::select! {
                biased;
                // Since the call waits, only its lease limits it.
                answered = members.ask_one(Deadline::never(), call) => answered,
                () = done.closed() => return,
            };
            let answered = match answered {
                // The next attempt has another lease.
                Err(failed) if failed.class == ErrorClass::LeaseNotFound => {
                    lease.end();
                    Ok(())
                }
                answered => answered.map(drop),
            };
            let _ = done.send(answered);
            events.wake(owner, &waits_for);
        });
        let answer = Some(answer);
        Self { answer }
    }

    /// Waits for the answer of the call.
    async fn answer(&mut self) -> Result<(), Failed> {
        if let Some(answer) = &mut self.answer {
            let answer = answer.await;
            self.answer = None;
            // The engine has stopped, so nobody waits any more.
            return answer.unwrap_or(Ok(()));
        }
        Ok(())
    }

    /// Waits until the call has answered, or has a place behind another. What counts is its key:
    /// the call may be answered although the key has gone (etcd issue 9921), or wait for ever (etcd
    /// issue 19597).
    pub(super) async fn stands(
        &mut self,
        batches: &Arc<Batches>,
        asked: &Question<'_>,
        key: &mut Key,
    ) -> Result<QueuePosition, Failure> {
        let (members, deadline) = (&batches.members, asked.deadline);
        let mut pause = FIRST_LOOK;
        loop {
            let limit = deadline.min(members.time.after(pause));
            if let Ok(answer) = members.time.bound(limit, self.answer()).await {
                answer?;
            }
            let (own, mark) = (&*key.name.key, asked.lock.mark());
            let keys = [own, &mark].into_iter();
            let found = members.created_above(keys, &asked.lock, deadline);
            let (found, floor) = found.await?;
            let mut found = found.into_iter();
            let created = found.next().flatten().unwrap_or(0);
            key.floor = floor;
            if found.next().flatten().is_some() {
                // The call knows nothing of marks. The key that it has written ends with its lease.
                return Ok(QueuePosition::Done);
            }
            let before = std::mem::replace(&mut key.create_revision, created);
            if self.answer.is_none() || before != 0 && created == 0 {
                return Ok(match created {
                    0 => QueuePosition::Nowhere,
                    _ => QueuePosition::First,
                });
            }
            if created != 0 {
                let stands = key.enter(batches, asked, &mut None).await?;
                if stands != QueuePosition::First {
                    return Ok(stands);
                }
            }
            if members.time.has_passed(deadline) {
                return Err(Failure::not_sent());
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
