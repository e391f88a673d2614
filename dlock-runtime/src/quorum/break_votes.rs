//! Breaking a lock that a majority of the voters has given.

use std::sync::Arc;

use super::Quorum;
use super::look::FOR_THE_OTHERS;
use super::member::Member;
use super::voter::{Voter, VoterSet};
use crate::backend::{BackendError, Released};
use crate::deadline::Deadline;
use crate::store::{Applied, Break, Failure, Freed};

impl<V: Voter> Quorum<V> {
    /// Takes the votes away from a holder, on all voters that answer: a majority at least.
    ///
    /// A renewal that has seen a majority asks those who have no vote for it again, and may do
    /// so just now. If all have answered, that is a minority: nobody lacks the vote whom the
    /// renewal has seen with it. Else there are those who did not answer besides. Then the
    /// others are asked again, after as long as such a renewal may take, until none of them
    /// had the vote: no renewal sees a majority from then on.
    ///
    /// It was held if a majority is seen to have had the vote. One that is silent may have
    /// had it or not: it is not counted, or a vote left from a lost election would count as a
    /// lock. Once that is seen, the break is done, though there be no time to ask again.
    pub(super) async fn break_votes(
        &self,
        broken: &Break,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let mut voted = VoterSet::new();
        loop {
            let breaks = async |member: &'_ Arc<Member<V>>| member.engine.break_off(broken).await;
            let may_be_missing = |voter: usize, error: &BackendError| {
                self.members[voter].complain(error);
                true
            };
            let asked = self.ask_most(self.all(), deadline, FOR_THE_OTHERS, breaks, may_be_missing);
            let answers = match asked.await {
                Ok(answers) => answers,
                Err(_) if voted.len() >= self.majority() => return Ok(Freed::Released),
                Err(failure) => {
                    return Err(Failure {
                        // Those that were reached have done it.
                        applied: Applied::Answered,
                        ..failure
                    });
                }
            };
            let had = answers.iter().filter(|(_, had)| *had == Released::Released);
            let had: VoterSet = had.map(|(voter, _)| *voter).collect();
            let (all_answered, none_had) = (answers.len() == self.members.len(), had.is_empty());
            voted.extend(had);
            let was_held = voted.len() >= self.majority();
            if all_answered || none_had {
                return Ok(match was_held {
                    true => Freed::Released,
                    false => Freed::NotHeld,
                });
            }
            // Some of the time is left to ask in.
            let left = self.time.remaining(deadline).mul_f64(0.9);
            let again = self.time.after(self.patience.min(left));
            self.time.sleep(again).await;
            if self.time.has_passed(deadline) {
                return match was_held {
                    true => Ok(Freed::Released),
                    false => Err(Failure {
                        applied: Applied::Answered,
                        ..Failure::not_sent()
                    }),
                };
            }
        }
    }
}
