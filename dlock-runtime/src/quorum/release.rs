//! Giving a lock back, on a majority of the voters.

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::Quorum;
use super::ballot::no_quorum;
use super::voter::Voter;
use super::votes::Votes;
use crate::backend::{Released, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Failure, Freed};

impl<V: Voter> Quorum<V> {
    /// Asks all who may have the vote, until so few are left that others can have
    /// a majority. To those the engines of the voters see.
    pub(super) async fn free(
        &self,
        request: &Request,
        votes: &Votes<V>,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let vote = votes.request(request);
        for (voter, part) in votes.take_in_flight() {
            let engine = &self.members[voter].engine;
            engine.leave_behind(&vote, part.attempt, &part.left);
        }
        let voters = votes.voters();
        let mut silent = voters;
        let mut releases: FuturesUnordered<_> = voters
            .iter()
            .map(|voter| {
                let release = self.members[voter].engine.release(&vote);
                async move { (voter, release.await) }
            })
            .collect();
        let harmless = self.members.len() - self.majority();
        let mut not_held = 0;
        let mut failed = Vec::new();
        while silent.len() > harmless {
            match self.time.bound(deadline, releases.next()).await {
                Ok(Some((voter, Ok(released)))) => {
                    silent.remove(voter);
                    not_held += usize::from(released == Released::NotHeld);
                }
                Ok(Some((_, Err(error)))) => failed.push(error),
                Ok(None) | Err(_) => {
                    self.doubt(silent);
                    let answered = voters.len() - silent.len();
                    let error = no_quorum(self.members.len(), answered, failed.iter());
                    return Err(Failure {
                        // Those that were reached have done it.
                        applied: Applied::Answered,
                        ..Failure::refused(error)
                    });
                }
            }
        }
        // The others are about to answer.
        tokio::task::yield_now().await;
        while let Some(Some((voter, answer))) = releases.next().now_or_never() {
            if answer.is_ok() {
                silent.remove(voter);
            }
        }
        drop(releases);
        self.doubt(silent);
        for voter in silent.iter() {
            self.members[voter].engine.give_back(&vote);
        }
        // Without these, the others are no majority: so it had ended.
        Ok(if voters.len() - not_held < self.majority() {
            Freed::NotHeld
        } else {
            Freed::Released
        })
    }
}
