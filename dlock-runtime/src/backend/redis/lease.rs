//! Keeping a lock, and giving it back.

use redis::Value;

use super::call::Answer;
use super::commands;
use super::core::Core;
use super::give_back::GiveBack;
use crate::backend::{BackendError, Released, Renewed, Request};

/// So many leases are extended in one go. More would keep the server from
/// answering others, and their answers from being read.
pub(super) const RENEWED_AT_ONCE: usize = 256;

impl Core {
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        if let Some(confirmer) = &self.confirmer {
            return confirmer.renew(requests).await;
        }
        let mut renewed = Vec::with_capacity(requests.len());
        for requests in requests.chunks(RENEWED_AT_ONCE) {
            let mut call = match self.call() {
                Ok(call) => call,
                Err(error) => {
                    renewed.extend(requests.iter().map(|_| Err(error.clone())));
                    continue;
                }
            };
            let answers = call
                .ask_all(
                    requests.len(),
                    |index| &requests[index].key,
                    |index, form| commands::renew(form, &requests[index]),
                    None,
                )
                .await;
            renewed.extend(
                answers
                    .into_iter()
                    .map(|answer| read_renewal(&answer?).ok_or_else(|| call.nonsense())),
            );
        }
        renewed
    }

    pub(super) async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        let mut call = self.call()?;
        let answer = call
            .ask(&request.key, |form| {
                (self.shared.release)(form, request, None)
            })
            .await?;
        if let Some(unanswered) = self.suspects.take(request.owner) {
            self.hub.give_back(GiveBack {
                request: request.clone(),
                behind: None,
                unanswered: Some(unanswered),
            });
        }
        match answer.value {
            Value::Int(1) => Ok(Released::Released),
            // The first release was run, and its answer lost.
            Value::Int(_) if answer.repeated => Ok(Released::Released),
            Value::Int(_) => Ok(Released::NotHeld),
            _ => Err(call.nonsense()),
        }
    }
}

/// The answer to a renewal.
pub(super) fn read_renewal(answer: &Answer) -> Option<Renewed> {
    match answer.value {
        Value::Int(0) => Some(Renewed::Gone),
        Value::Int(_) => Some(Renewed::Extended {
            sent_at: answer.sent_at.into(),
        }),
        _ => None,
    }
}
