//! Keeping a lock, and giving it back.

use redis::Value;

use super::commands;
use super::core::Core;
use super::give_back::GiveBack;
use crate::backend::{BackendError, Released, Renewed, Request};

/// So many leases are extended in one go. More would keep the server from
/// answering others, and their answers from being read.
const RENEWED_AT_ONCE: usize = 256;

impl Core {
    pub(super) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
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
                )
                .await;
            renewed.extend(answers.into_iter().map(|answer| {
                let answer = answer?;
                match answer.value {
                    Value::Int(0) => Ok(Renewed::Gone),
                    Value::Int(_) => Ok(Renewed::Extended {
                        sent_at: answer.sent_at.into(),
                    }),
                    _ => Err(call.nonsense()),
                }
            }));
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
