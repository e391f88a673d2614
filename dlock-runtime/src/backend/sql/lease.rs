//! Keeping a lock, and giving it back.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;

use super::core::Core;
use super::driver::{Column, Outcome};
use super::script::Args;
use crate::backend::{BackendError, Mode, Released, Renewed, Request};

/// So many leases are extended in one transaction. More would keep their rows
/// from others for long.
const RENEWED_AT_ONCE: usize = 50;

/// So many of these transactions run side by side, and leave connections to
/// those who want a lock.
const SIDE_BY_SIDE: usize = 2;

type Answers = Vec<Result<Renewed, BackendError>>;

impl Core {
    /// Extends leases, within the request timeout for all of them.
    pub(super) async fn renew(self: &Arc<Self>, requests: &[Request]) -> Answers {
        let deadline = Instant::now() + self.request_timeout;
        let mut order: Vec<usize> = (0..requests.len()).collect();
        // In the order of the keys: two transactions that lock the same rows do
        // not wait for each other.
        order.sort_unstable_by(|&a, &b| requests[a].key.cmp(&requests[b].key));
        let turns = Arc::new(Semaphore::new(SIDE_BY_SIDE));
        // Tasks of their own: each runs to its end, whoever waits for it.
        let chunks: Vec<_> = order
            .chunks(RENEWED_AT_ONCE)
            .map(|chunk| {
                let leases = chunk.iter().map(|&index| requests[index].clone()).collect();
                let (core, turns) = (Arc::clone(self), Arc::clone(&turns));
                let renewed = async move {
                    let _turn = turns.acquire().await;
                    core.renew_chunk(leases, deadline).await
                };
                (chunk, self.runtime.spawn(renewed))
            })
            .collect();
        // The driver ends by itself in time, unless it is stuck in the operating
        // system.
        let limit = deadline + self.request_timeout / 4;
        let mut renewed: Vec<_> = requests.iter().map(|_| Err(self.too_late())).collect();
        for (chunk, answers) in chunks {
            if let Ok(Ok(answers)) = tokio::time::timeout_at(limit.into(), answers).await {
                for (&index, answer) in chunk.iter().zip(answers) {
                    renewed[index] = answer;
                }
            }
        }
        renewed
    }

    async fn renew_chunk(self: &Arc<Self>, leases: Vec<Request>, deadline: Instant) -> Answers {
        if Instant::now() >= deadline {
            return vec![Err(self.too_late()); leases.len()];
        }
        let error = match self.extend(&leases, deadline).await {
            Extended::Answered(answers) => return answers,
            Extended::Kept(error) => error,
        };
        if leases.len() == 1 {
            return vec![Err(error)];
        }
        // Somebody keeps the row of one of them, and that one alone has to wait.
        let singles: Vec<_> = leases
            .into_iter()
            .map(|lease| {
                let core = Arc::clone(self);
                self.runtime
                    .spawn(async move { core.extend(slice::from_ref(&lease), deadline).await })
            })
            .collect();
        let mut renewed = Vec::with_capacity(singles.len());
        for single in singles {
            match single.await {
                Ok(Extended::Answered(answers)) => renewed.extend(answers),
                Ok(Extended::Kept(error)) => renewed.push(Err(error)),
                Err(_) => renewed.push(Err(self.too_late())),
            }
        }
        renewed
    }

    /// Extends leases in one transaction.
    async fn extend(&self, leases: &[Request], deadline: Instant) -> Extended {
        let owners: Vec<_> = leases.iter().map(|lease| lease.owner.to_string()).collect();
        let script = leases.iter().zip(&owners).map(|(lease, owner)| {
            let args = Args {
                key: &lease.key,
                owner,
                ttl: lease.ttl,
                ..self.args()
            };
            (lease.mode, args)
        });
        let script = self.scripts.renew(script);
        let columns = &[Column::Text];
        let answer = match self.driver.run_in_time(&script, columns, deadline).await {
            Ok(Outcome::Answered(answer)) => answer,
            Ok(Outcome::Kept(error)) => return Extended::Kept(error),
            Err(error) => return Extended::Answered(vec![Err(error); leases.len()]),
        };
        let held: HashSet<&str> = answer.rows.iter().map(|row| row.text(0)).collect();
        let sent_at = answer.sent_at.into();
        let renewed = owners.iter().map(|owner| {
            Ok(if held.contains(owner.as_str()) {
                Renewed::Extended { sent_at }
            } else {
                Renewed::Gone
            })
        });
        Extended::Answered(renewed.collect())
    }

    fn too_late(&self) -> BackendError {
        BackendError::unavailable(format!(
            "it did not extend all leases within {:?}; check its load, or raise the request timeout",
            self.request_timeout
        ))
    }
}

enum Extended {
    Answered(Answers),
    /// Somebody keeps the row of one of them.
    Kept(BackendError),
}

impl Core {
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
        if let Some(unanswered) = self.unknown.take(request.owner, Instant::now) {
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
