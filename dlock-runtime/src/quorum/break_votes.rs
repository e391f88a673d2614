//! Breaking a lock that a majority of the voters has given.

use std::sync::Arc;

use super::Quorum;
use super::look::FOR_THE_OTHERS;
use super::member::Member;
use super::voter::Voter;
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
    pub(super) async fn break_votes(
        &self,
        broken: &Break,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let mut was_held = false;
        loop {
            let breaks = async |member: &'_ Arc<Member<V>>| member.engine.break_off(broken).await;
            let may_be_missing = |voter: usize, error: &BackendError| {
                self.members[voter].complain(error);
                true
            };
            let asked = self.ask_most(self.all(), deadline, FOR_THE_OTHERS, breaks, may_be_missing);
            let answers = asked.await.map_err(|failure| Failure {
                // Those that were reached have done it.
                applied: Applied::Answered,
                ..failure
            })?;
            let all = self.members.len();
            let had = answers.iter().filter(|(_, had)| *had == Released::Released);
            let (had, answered) = (had.count(), answers.len());
            // Without these, the others are no majority: so it had ended.
            was_held |= had > 0 && all - (answered - had) >= self.majority();
            if answered == all || had == 0 {
                return Ok(match was_held {
                    true => Freed::Released,
                    false => Freed::NotHeld,
                });
            }
            self.time.sleep(self.time.after(self.patience)).await;
            if self.time.has_passed(deadline) {
                return Err(Failure {
                    applied: Applied::Answered,
                    ..Failure::not_sent()
                });
            }
        }
    }
}
