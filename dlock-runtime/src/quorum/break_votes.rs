//! Breaking a lock that a majority of the voters has granted.

use std::sync::Arc;

use super::Quorum;
use super::look::FOR_THE_OTHERS;
use super::member::Member;
use super::voter::{Voter, VoterSet};
use crate::backend::{BackendError, Released};
use crate::deadline::Deadline;
use crate::store::{Applied, Break, Failure, Freed};

impl<V: Voter> Quorum<V> {
    /// Takes the votes of a holder away, on all voters that answer: at least a majority.
    ///
    /// A renewal that has seen a majority asks the voters without the vote for it again, and may
    /// be doing so now. If all voters have answered this break, those can only be a minority:
    /// every voter that the renewal has seen with the vote has lost it. If some have not
    /// answered, these add to that minority. The other voters are then asked again, after as long
    /// as such a renewal may take, until none of them had the vote: from then on, no renewal sees
    /// a majority.
    ///
    /// The lock was held if a majority is seen to have had the vote. A silent voter does not
    /// count, since it may or may not have had it; otherwise a vote left from a lost election
    /// would count as a lock. Once a majority was seen, the break has succeeded, even if there is
    /// no time to ask again.
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
            let asked = self.ask_most(
                self.all(),
                Some(deadline),
                FOR_THE_OTHERS,
                breaks,
                may_be_missing,
            );
            let answers = match asked.await {
                Ok(answers) => answers,
                Err(_) if voted.len() >= self.majority() => return Ok(Freed::Released),
                // The voters that were reached have done it.
                Err(failure) => return Err(failure.with(Applied::Answered)),
            };
            let had = answers.iter().filter(|(_, had)| *had == Released::Released);
            let had: VoterSet = had.map(|(voter, _)| *voter).collect();
            let (all_answered, none_had) = (answers.len() == self.members.len(), had.is_empty());
            voted.extend(had);
            let was_held = voted.len() >= self.majority();
            if all_answered || none_had {
                return Ok(Freed::of(was_held));
            }
            // Some of the time is kept for asking again.
            let left = self.time.remaining(deadline).mul_f64(0.9);
            let again = self.time.after(self.patience.min(left));
            self.time.sleep(again).await;
            if self.time.has_passed(deadline) {
                return match was_held {
                    true => Ok(Freed::Released),
                    false => Err(Failure::silent(Applied::Answered)),
                };
            }
        }
    }
}
