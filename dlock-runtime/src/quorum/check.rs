//! Whether the voters can be worked with.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Quorum;
use super::ballot::no_quorum;
use super::voter::Voter;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::store::{Failure, Next};

/// How long the start waits for the slower voters once a majority has answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(500);

impl<V: Voter> Quorum<V> {
    /// A majority must answer, and none may refuse.
    pub(super) async fn see_to_voters(&self, deadline: Deadline) -> Result<(), Failure> {
        if self.members.len().is_multiple_of(2) {
            tracing::warn!(
                target: "dlock::store",
                "{} with {} nodes: one fewer would outlive the loss of as many; use an odd number",
                self.name,
                self.members.len()
            );
        }
        // What each has to say comes before all are given up.
        let limit = self.time.remaining(deadline).mul_f64(0.9);
        let mut questions: FuturesUnordered<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(voter, member)| async move {
                if let Err(error) = member.engine.check(limit).await {
                    return (voter, Err(error));
                }
                let patience = self.time.after(self.patience);
                (voter, Ok(member.voter().identity(patience).await))
            })
            .collect();
        let mut checked = Vec::new();
        let mut missing = self.all();
        let mut failed = Vec::new();
        let mut limit = deadline;
        while let Ok(Some((voter, answer))) = self.time.bound(limit, questions.next()).await {
            match answer {
                Ok(identity) => {
                    missing.remove(voter);
                    checked.push((voter, identity));
                }
                Err(error) if error.kind() != BackendErrorKind::Unavailable => {
                    return Err(Failure::refused(error));
                }
                Err(error) => failed.push(error),
            }
            if checked.len() >= self.majority() {
                limit = limit.min(self.time.after(FOR_THE_OTHERS));
            }
        }
        drop(questions);
        if checked.len() < self.majority() {
            let error = no_quorum(self.members.len(), checked.len(), failed.iter());
            return Err(Failure {
                // Each was asked for as long as there was time.
                next: Next::Stop,
                ..Failure::refused(error)
            });
        }
        self.are_different(&checked).map_err(Failure::refused)?;
        for voter in missing.iter() {
            let member = &self.members[voter];
            tracing::warn!(
                target: "dlock::store",
                "{} does not answer; locks go on with the other nodes, and with it once it does",
                member.voter().place()
            );
            member.is_missing();
        }
        Ok(())
    }

    /// A server that is reached by two names has two votes.
    fn are_different(&self, checked: &[(usize, Option<String>)]) -> Result<(), BackendError> {
        for (index, (voter, this)) in checked.iter().enumerate() {
            let same = checked[..index]
                .iter()
                .find(|(_, other)| this.is_some() && this == other);
            if let Some((other, _)) = same {
                return Err(BackendError::new(
                    BackendErrorKind::Config,
                    format!(
                        "{} and {} are one server; name each of them once",
                        self.members[*other].voter().place(),
                        self.members[*voter].voter().place()
                    ),
                ));
            }
        }
        Ok(())
    }
}
