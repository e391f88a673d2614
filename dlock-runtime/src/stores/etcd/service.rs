//! `recipe=lock-service`: the server's own Lock call gives the lock.
//!
//! A request writes the key of the call itself, under a lease of its own, and waits like any other.
//! The call is made when nobody is ahead: it finds its key there, and answers at once. It never
//! waits, for two reasons. A server watches for all its calls over one stream inside itself, which
//! stops for ever when many of them end together (etcd issue 13336). And it deletes the key of a
//! call that was cut off while it waited, by the name alone (etcd issue 22082).

use std::sync::Arc;

use etcd_client::{Client, LockOptions};

use super::batches::Batches;
use super::errors::ErrorClass;
use super::queue::{Key, Question, QueuePosition, of_existing_key};
use crate::store::Failure;

impl Key {
    /// Makes the Lock call for this key, which is the first.
    pub(super) async fn call(
        &mut self,
        batches: &Arc<Batches>,
        asked: &Question<'_>,
    ) -> Result<QueuePosition, Failure> {
        let options = LockOptions::new().with_lease(self.lease().id);
        let lock = asked.lock.for_lock_service();
        let call = |mut client: Client| async move { client.lock(lock, Some(options)).await };
        match batches.members.ask(asked.deadline, call).await {
            // If the key was deleted just before, the call has made another.
            Ok(_) => self.enter(batches, asked, &mut None).await,
            Err(failed) if failed.class == ErrorClass::LeaseNotFound => {
                self.lease().end();
                Ok(QueuePosition::Nowhere)
            }
            Err(failed) => Err(of_existing_key(failed.into())),
        }
    }
}
