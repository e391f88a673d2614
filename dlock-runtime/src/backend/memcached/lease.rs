//! Keeping a lock, and giving it back.

use futures_util::future::join_all;

use super::acquire::owned;
use super::connection::Changed;
use super::core::Core;
use super::expiry::Expiry;
use super::give_back::GiveBack;
use super::lanes::CONNECTIONS;
use crate::backend::{BackendError, Released, Renewed, Request};

impl Core {
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let mut renewed = Vec::with_capacity(requests.len());
        // Side by side, as far as there are connections.
        for requests in requests.chunks(CONNECTIONS) {
            renewed.extend(join_all(requests.iter().map(|request| self.extend(request))).await);
        }
        renewed
    }

    async fn extend(&self, request: &Request) -> Result<Renewed, BackendError> {
        let expiry = Expiry::of(request.ttl)?;
        let lock = owned(request);
        let known = self.shared.known.recall(request.owner);
        let extended = self
            .call()?
            .ask(|mut connection| {
                let lock = lock.clone();
                async move {
                    let extended = connection.extend(&lock, expiry, known).await;
                    (connection, extended)
                }
            })
            .await?;
        let sent_at = extended.sent_at;
        Ok(match extended.value {
            Changed::Done(version) => {
                let known = &self.shared.known;
                known.seen(request.owner, version, sent_at, expiry);
                Renewed::Extended {
                    sent_at: sent_at.into(),
                }
            }
            Changed::NotOurs => Renewed::Gone,
        })
    }

    pub(super) async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        let lock = owned(request);
        let known = self.shared.known.recall(request.owner);
        let deleted = self
            .call()?
            .ask(|mut connection| {
                let lock = lock.clone();
                async move {
                    let deleted = connection.delete(&lock, known).await;
                    (connection, deleted)
                }
            })
            .await?;
        self.shared.known.forget(request.owner);
        if let Some(unanswered) = self.suspects.take(request.owner) {
            self.hub.give_back(GiveBack {
                lock,
                expiry: Expiry::of(request.ttl)?,
                behind: None,
                unanswered: Some(unanswered),
            });
        }
        Ok(match deleted.value {
            Changed::Done(()) => Released::Released,
            // The first was run, and its answer lost.
            Changed::NotOurs if deleted.repeated => Released::Released,
            Changed::NotOurs => Released::NotHeld,
        })
    }
}
