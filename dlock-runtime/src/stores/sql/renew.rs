//! Extending leases, many in one transaction.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;

use super::database::Database;
use super::errors::Failed;
use super::pooled::Priority;
use super::retry::RetryPolicy;
use super::rows::Answer;
use super::tables::{Reply, Tables};
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
        let mut chunks: Vec<_> = order.chunks(RENEWED_AT_ONCE).collect();
        while !chunks.is_empty() {
            let extend = |chunk| self.extend(leases, chunk, deadline);
            let extensions: Vec<_> = chunks.drain(..).map(extend).collect();
            let mut extended = stream::iter(extensions).buffered(SIDE_BY_SIDE);
            while let Some((chunk, came)) = extended.next().await {
                match came {
                    Some(Ok(answer)) => read(&answer, leases, chunk, &mut answers),
                    // Somebody keeps the row of one of them, and that one alone has
                    // to wait.
                    Some(Err(failed)) if failed.retry == RetryPolicy::Kept && chunk.len() > 1 => {
                        chunks.extend(chunk.chunks(1));
                    }
                    Some(Err(failed)) => {
                        // What is kept is not asked for again at once: the others
                        // would have to wait for it to be told.
                        let next = match failed.retry {
                            RetryPolicy::Stop | RetryPolicy::Kept => Next::Stop,
                            RetryPolicy::Again | RetryPolicy::Reconnect => Next::Pause,
                        };
                        for &index in chunk {
                            answers[index] = Err(Failure {
                                cause: failed.cause.clone(),
                                next,
                                applied: Applied::No,
                            });
                        }
                    }
                    None => {}
                }
            }
        }
        answers
    }

    /// Extends leases in one transaction. `None`: there was no time for it.
    async fn extend<'a>(
        self: &Arc<Self>,
        leases: &[&Request],
        chunk: &'a [usize],
        deadline: Deadline,
    ) -> (&'a [usize], Option<Result<Answer, Failed>>) {
        if self.time.has_passed(deadline) {
            return (chunk, None);
        }
        let due = chunk.iter().map(|&index| leases[index]);
        let script = self.scripts.renew(due);
        let mut exchange = self.begin(script, 1, Priority::Urgent, deadline);
        let came = match exchange.reply().await {
            Some(Reply::Came(came)) => Some(came),
            Some(Reply::Late(_)) | None => None,
        };
        (chunk, came)
    }

    fn too_late(&self) -> Failure {
        Failure {
            cause: Cause::Error(BackendError::unavailable(format!(
                "it did not extend all leases within {:?}; check its load, or raise the request \
                 timeout",
                self.endpoint.request_timeout
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
