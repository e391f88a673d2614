//! `recipe=lock-service`: the server's own Lock call gives the lock.
//!
//! A request writes the key of the call itself, under a lease of its own, and waits like any other.
//! The call is made when nobody is ahead: it finds its key there, and answers at once. It is not
//! left waiting, for two reasons. A server watches for all its calls over one stream inside itself,
//! which stops for ever when many of them end together (etcd issue 13336). And it deletes the key
//! of a call that was cut off while it waited, by the name alone.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, LockOptions};

use super::batches::Batches;
use super::errors::ErrorClass;
use super::queue::{Key, Question, QueuePosition};
use crate::store::Failure;

/// How often the key is looked at while the call has not answered.
const LOOK: Duration = Duration::from_millis(250);

impl Key {
    /// Makes the Lock call for this key. It stands first in the queue. If it is deleted just before,
    /// the call writes another, behind those who wait, and waits too. It is cut off then.
    pub(super) async fn call(
        &mut self,
        batches: &Arc<Batches>,
        asked: &Question<'_>,
    ) -> Result<QueuePosition, Failure> {
        let time = &batches.members.time;
        let options = LockOptions::new().with_lease(self.lease().id);
        let lock = asked.lock.for_lock_service();
        let call = |mut client: Client| async move { client.lock(lock, Some(options)).await };
        let mut called = pin!(batches.members.ask(asked.deadline, call));
        // Sooner than the call counts as unanswered, for which a healthy member would be left.
        let pause = LOOK.min(batches.members.context.patience() / 2);
        loop {
            match time.bound(time.after(pause), called.as_mut()).await {
                Ok(Err(failed)) if failed.class == ErrorClass::LeaseNotFound => {
                    self.lease().end();
                    return Ok(QueuePosition::Nowhere);
                }
                Ok(Err(failed)) => return Err(failed.into()),
                Ok(Ok(_)) => return self.enter(batches, asked, &mut None).await,
                Err(_) => match self.enter(batches, asked, &mut None).await? {
                    QueuePosition::First => {}
                    elsewhere => return Ok(elsewhere),
                },
            }
        }
    }
}
