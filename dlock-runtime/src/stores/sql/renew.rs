//! Extending leases, many in one transaction.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::database::Database;
use super::errors::RetryPolicy;
use super::failed::Failed;
use super::pooled::Priority;
use super::rows::{Answer, Column};
use super::script::Args;
use super::tables::{Exchange, Reply, Tables};
use crate::backend::{BackendError, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Cause, Failure, Next};

/// So many leases are extended in one transaction. More would keep their rows
/// from others for long.
const RENEWED_AT_ONCE: usize = 50;

/// So many of these transactions run side by side, and leave connections to
/// those who want a lock.
const SIDE_BY_SIDE: usize = 2;

impl<D: Database> Tables<D> {
    pub(super) async fn extend_all(
        self: &Arc<Self>,
        leases: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        let mut answers: Vec<_> = leases.iter().map(|_| Err(self.too_late())).collect();
        // In the order of the keys: two transactions that lock the same rows do
        // not wait for each other.
        let mut order: Vec<usize> = (0..leases.len()).collect();
        order.sort_unstable_by(|&a, &b| leases[a].key.cmp(&leases[b].key));
        let mut chunks: VecDeque<_> = order.chunks(RENEWED_AT_ONCE).collect();
        let mut begun = VecDeque::new();
        loop {
            while begun.len() < SIDE_BY_SIDE
                && !self.time.has_passed(deadline)
                && let Some(chunk) = chunks.pop_front()
            {
                begun.push_back((chunk, self.extend(leases, chunk, deadline)));
            }
            let Some((chunk, mut exchange)) = begun.pop_front() else {
                return answers;
            };
            match exchange.reply().await {
                Some(Reply::Answered(answer)) => {
                    read(&answer, leases, chunk, &mut answers);
                }
                // Somebody keeps the row of one of them, and that one alone has to
                // wait.
                Some(Reply::Failed { failed, .. })
                    if failed.retry == RetryPolicy::Kept && chunk.len() > 1 =>
                {
                    chunks.extend(chunk.chunks(1));
                }
                Some(Reply::Failed { failed, .. }) => {
                    for &index in chunk {
                        answers[index] = Err(not_extended(&failed));
                    }
                }
                Some(Reply::Late(_)) | None => {}
            }
        }
    }

    /// Extends leases in one transaction.
    fn extend(
        self: &Arc<Self>,
        leases: &[&Request],
        chunk: &[usize],
        deadline: Deadline,
    ) -> Exchange {
        let leases = chunk.iter().map(|&index| leases[index]);
        let owners: Vec<_> = leases
            .clone()
            .map(|lease| lease.owner.to_string())
            .collect();
        let script = leases.zip(&owners).map(|(lease, owner)| {
            let args = Args {
                key: &lease.key,
                owner,
                ttl: lease.ttl,
                ..self.args()
            };
            (lease.mode, args)
        });
        let script = self.scripts.renew(script);
        self.begin(script, &[Column::Text], Priority::Urgent, deadline)
    }

    fn too_late(&self) -> Failure {
        Failure {
            cause: Cause::Error(BackendError::unavailable(format!(
                "it did not extend all leases within {:?}; check its load, or raise the request \
                 timeout",
                self.request_timeout
            ))),
            next: Next::Pause,
            applied: Applied::No,
        }
    }
}

/// One row for each lease that was extended: its owner.
fn read(
    answer: &Answer,
    leases: &[&Request],
    chunk: &[usize],
    answers: &mut [Result<Renewed, Failure>],
) {
    let held: HashSet<&str> = answer.rows.iter().map(|row| row.text(0)).collect();
    for &index in chunk {
        let owner = leases[index].owner.to_string();
        answers[index] = Ok(match held.contains(owner.as_str()) {
            true => Renewed::Extended {
                sent_at: answer.sent_at.into(),
            },
            false => Renewed::Gone,
        });
    }
}

/// What is kept is not asked for again at once: the others would have to wait for
/// it to be told.
fn not_extended(failed: &Failed) -> Failure {
    Failure {
        cause: failed.cause.clone(),
        next: match failed.retry {
            RetryPolicy::Stop | RetryPolicy::Kept => Next::Stop,
            RetryPolicy::Again | RetryPolicy::Reconnect => Next::Pause,
        },
        applied: Applied::No,
    }
}
