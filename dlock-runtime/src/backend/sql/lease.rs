//! Keeping a lock, and giving it back.

use std::collections::HashSet;
use std::sync::Arc;

use super::core::Core;
use super::driver::Column;
use super::script::Args;
use crate::backend::{BackendError, Mode, Released, Renewed, Request};

/// So many leases are extended in one transaction. More would keep their rows
/// from others for long.
const RENEWED_AT_ONCE: usize = 50;

impl Core {
    pub(super) async fn renew(
        self: &Arc<Self>,
        requests: &[Request],
    ) -> Vec<Result<Renewed, BackendError>> {
        let mut renewed: Vec<_> = requests.iter().map(|_| Ok(Renewed::Gone)).collect();
        let mut order: Vec<usize> = (0..requests.len()).collect();
        // In the order of the keys: two transactions that lock the same rows do
        // not wait for each other.
        order.sort_unstable_by(|&a, &b| requests[a].key.cmp(&requests[b].key));
        for indices in order.chunks(RENEWED_AT_ONCE) {
            let owners: Vec<_> = indices
                .iter()
                .map(|&index| requests[index].owner.to_string())
                .collect();
            let leases = indices.iter().zip(&owners).map(|(&index, owner)| {
                let Request { key, mode, ttl, .. } = &requests[index];
                let args = Args {
                    key,
                    owner,
                    ttl: *ttl,
                    ..self.args()
                };
                (*mode, args)
            });
            let script = self.scripts.renew(leases);
            let answer = self.ask(script, &[Column::Text]).await;
            let extended = answer.as_ref().map(|answer| {
                let owners: HashSet<&str> = answer.rows.iter().map(|row| row.text(0)).collect();
                (owners, answer.sent_at.into())
            });
            for (&index, owner) in indices.iter().zip(&owners) {
                match &extended {
                    Ok((extended, sent_at)) if extended.contains(owner.as_str()) => {
                        renewed[index] = Ok(Renewed::Extended { sent_at: *sent_at });
                    }
                    Ok(_) => {}
                    Err(error) => renewed[index] = Err((*error).clone()),
                }
            }
        }
        renewed
    }

    pub(super) async fn release(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Released, BackendError> {
        let owner = request.owner.to_string();
        let args = Args {
            key: &request.key,
            owner: &owner,
            ..self.args()
        };
        let columns = &[Column::Int];
        let (answer, held) = match request.mode {
            Mode::Write => {
                let answer = self.ask(self.scripts.release(&args), columns).await?;
                let held = !answer.rows.is_empty();
                (answer, held)
            }
            Mode::Read => {
                let answer = self.ask(self.scripts.leave(&args), columns).await?;
                let held = answer.rows.first().is_some_and(|row| row.int(0) == 1);
                (answer, held)
            }
        };
        if let Some(unanswered) = self.suspects.take(request.owner) {
            self.give_back(request, None, Some(unanswered));
        }
        // The first release may have been run, and its answer lost.
        Ok(if held || answer.repeated {
            Released::Released
        } else {
            Released::NotHeld
        })
    }
}
