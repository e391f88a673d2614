//! Extends leases, many in one transaction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::connections::{Answer, Priority};
use super::database::{Database, RetryPolicy};
use super::errors::Failed;
use super::tables::Tables;
use crate::backend::{BackendError, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Cause, Failure};
use crate::stores::stored_owner::StoredOwner;

/// How many leases are extended in one transaction. More would keep their rows from others for too
/// long.
const RENEWED_AT_ONCE: usize = 50;

/// How many of these transactions run at once. This leaves connections to requests for locks.
const SIDE_BY_SIDE: usize = 2;

impl<D: Database> Tables<D> {
    pub(super) async fn extend_all(
        self: &Arc<Self>,
        leases: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        // Every transaction locks rows in the order of the keys, so that two of them do not wait
        // for each other.
        let mut sorted = leases.to_vec();
        sorted.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut chunks: Vec<_> = sorted.chunks(RENEWED_AT_ONCE).collect();
        let mut answers = HashMap::new();
        while !chunks.is_empty() {
            let extend = |chunk| async move { (chunk, self.extend(chunk, deadline).await) };
            let extensions: Vec<_> = chunks.drain(..).map(extend).collect();
            let mut extended = stream::iter(extensions).buffered(SIDE_BY_SIDE);
            while let Some((chunk, came)) = extended.next().await {
                match came {
                    Ok(answer) => {
                        let rows = answer.rows.iter();
                        let held = rows.filter_map(|row| StoredOwner::read(row.text(0)));
                        let held: HashSet<_> = held.map(|stored| stored.owner).collect();
                        let sent_at = answer.sent_at.into();
                        answers.extend(chunk.iter().map(|lease| {
                            let renewed = match held.contains(&lease.owner) {
                                true => Renewed::Extended { sent_at },
                                false => Renewed::Gone,
                            };
                            (lease.owner, Ok(renewed))
                        }));
                    }
                    // Another session keeps the row of one of these leases. Each is tried by
                    // itself, so that only that one waits.
                    Err(failed) if failed.retry == RetryPolicy::Kept && chunk.len() > 1 => {
                        chunks.extend(chunk.chunks(1));
                    }
                    Err(failed) => {
                        // This lease is not tried again here, since the other leases would have to
                        // wait for the answers.
                        let failure = failed.without_kept();
                        let failed = chunk
                            .iter()
                            .map(|lease| (lease.owner, Err(failure.clone())));
                        answers.extend(failed);
                    }
                }
            }
        }
        let answer = |lease: &&Request| answers.remove(&lease.owner);
        let answers = leases.iter().map(answer);
        answers
            .map(|answer| answer.unwrap_or_else(|| Err(Failure::not_sent())))
            .collect()
    }

    /// Extends leases in one transaction. The answer has a row for each that was extended, with its
    /// owner.
    async fn extend(
        self: &Arc<Self>,
        leases: &[&Request],
        deadline: Deadline,
    ) -> Result<Answer, Failed> {
        if !self.time.has_passed(deadline) {
            let script = self.scripts.renew(leases);
            let mut exchange = self.begin(script, 1, Priority::Urgent, deadline);
            if let Some(Ok(came)) = exchange.reply(&self.time).await {
                return came;
            }
        }
        let cause = Cause::Error(BackendError::unavailable(format!(
            "it did not extend all leases within {:?}; check its load, or raise the request \
             timeout",
            self.endpoint.request_timeout
        )));
        Err(Failed::new(RetryPolicy::Again, cause, self.time.now()))
    }
}
