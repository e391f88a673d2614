//! Keeping a lock, and giving it back.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;

use super::acquire::owned;
use super::connection::Changed;
use super::core::Core;
use super::expiry::Expiry;
use super::give_back::GiveBack;
use super::lanes::CONNECTIONS;
use crate::backend::{BackendError, Released, Renewed, Request};

/// So long at least a renewal waits for an answer: a sixth of the shortest ttl.
const PATIENCE: Duration = Duration::from_millis(500);

impl Core {
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let started = Instant::now();
        // The answers are told together: one that does not come must not take
        // the time of those that did.
        let shortest = requests.iter().map(|request| request.ttl).min();
        let patience = (shortest.unwrap_or_default() / 6).max(PATIENCE);
        // Side by side, as far as there are connections.
        let extend = |request| self.extend(request, started, patience);
        let extensions: Vec<_> = requests.iter().map(extend).collect();
        stream::iter(extensions)
            .buffered(CONNECTIONS)
            .collect()
            .await
    }

    async fn extend(
        &self,
        request: &Request,
        started: Instant,
        patience: Duration,
    ) -> Result<Renewed, BackendError> {
        let expiry = Expiry::of(request.ttl)?;
        let lock = owned(request);
        let known = &self.shared.known;
        let version = known.recall(request.owner);
        let mut call = self.part_of_call(started)?.patient_for(patience);
        let extended = call
            .ask(|mut connection| {
                let lock = lock.clone();
                async move {
                    let extended = connection.extend(&lock, expiry, version).await;
                    (connection, extended)
                }
            })
            .await
            // Whatever it is now, it is looked at before it is extended again.
            .inspect_err(|_| known.forget(request.owner))?;
        let sent_at = extended.sent_at;
        Ok(match extended.value {
            Changed::Done(version) => {
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
        let mut call = self.call()?;
        let deleted = call
            .ask(|mut connection| {
                let lock = lock.clone();
                async move {
                    let deleted = connection.delete(&lock, known).await;
                    let restarted = connection.has_restarted_since(known);
                    (connection, deleted.map(|deleted| (deleted, restarted)))
                }
            })
            .await?;
        self.shared.known.forget(request.owner);
        self.turns.given_back(&request.key, Instant::now());
        if let Some(unanswered) = self.suspects.take(request.owner) {
            self.hub.give_back(GiveBack {
                lock,
                expiry: Expiry::of(request.ttl)?,
                behind: None,
                unanswered: Some(unanswered),
            });
        }
        Ok(match deleted.value {
            (Changed::Done(()), _) => Released::Released,
            // The first was run, and its answer lost.
            (Changed::NotOurs, false) if deleted.repeated => Released::Released,
            // It may have been run before the restart, but as likely the lock was
            // lost in it: the one who held it is not told that all was well.
            (Changed::NotOurs, _) => Released::NotHeld,
        })
    }
}
