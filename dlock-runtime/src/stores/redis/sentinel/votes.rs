//! The answers of the sentinels, and whether enough of them agree.

use super::super::endpoint::Endpoint;
use crate::backend::{BackendError, BackendErrorKind};
use crate::stores::address::Address;

/// The answer of one sentinel.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    /// Its id, if it reports that. Two names in a URL may lead to the same sentinel, which has
    /// only one vote.
    pub(super) sentinel: Option<String>,
    /// Where the master is. `None`: it knows no master with this name.
    pub(super) master: Option<Address>,
}

/// The answers of the sentinels in a URL, in their order there.
pub(super) struct Votes {
    /// The names of the sentinels in messages.
    names: Vec<String>,
    votes: Vec<Option<Result<Vote, BackendError>>>,
}

impl Votes {
    pub(super) fn new(names: Vec<String>) -> Self {
        let votes = names.iter().map(|_| None).collect();
        Self { names, votes }
    }

    pub(super) fn set(&mut self, index: usize, vote: Result<Vote, BackendError>) {
        self.votes[index] = Some(vote);
    }

    /// More than half of all sentinels, not only of those that answered.
    fn majority(&self) -> usize {
        self.votes.len() / 2 + 1
    }

    /// The votes, one for each sentinel.
    fn counted(&self) -> impl Iterator<Item = (usize, &Vote)> {
        let votes = self.votes.iter().enumerate();
        votes.filter_map(|(index, vote)| {
            let vote = vote.as_ref()?.as_ref().ok()?;
            self.twin(index, vote).is_none().then_some((index, vote))
        })
    }

    /// The index of the same sentinel under another name, earlier in the URL.
    fn twin(&self, index: usize, vote: &Vote) -> Option<usize> {
        // A sentinel that names another master is a different one, whatever its id is.
        let id = vote.sentinel.as_ref()?;
        let same =
            |other: &Vote| other.sentinel.as_ref() == Some(id) && other.master == vote.master;
        let before = self.votes[..index].iter();
        before
            .map(|other| matches!(other, Some(Ok(other)) if same(other)))
            .position(|same| same)
    }

    /// The server that enough sentinels name.
    pub(super) fn winner(&self) -> Option<&Address> {
        let candidates = self.counted().filter_map(|(_, vote)| vote.master.as_ref());
        candidates.into_iter().find(|&candidate| {
            let named = |vote: &Vote| vote.master.as_ref() == Some(candidate);
            self.counted().filter(|(_, vote)| named(vote)).count() >= self.majority()
        })
    }

    /// The reason why there is no winner, with the answer of each sentinel.
    pub(super) fn no_winner(&self, endpoint: &Endpoint) -> BackendError {
        let (all, majority) = (self.votes.len(), self.majority());
        let unknown = self
            .counted()
            .filter(|(_, vote)| vote.master.is_none())
            .count();
        if unknown >= majority {
            return BackendError::new(
                BackendErrorKind::Config,
                format!(
                    "{endpoint}: {unknown} of {all} sentinels know no master of this name; check \
                     what stands behind the hosts in the URL against SENTINEL MASTERS"
                ),
            );
        }
        // These cannot count before somebody has changed a setting. If too few others are left
        // for a majority, the error is `Config`.
        let wrong = self
            .votes
            .iter()
            .enumerate()
            .filter(|(index, vote)| match vote {
                Some(Ok(vote)) => vote.master.is_none() || self.twin(*index, vote).is_some(),
                Some(Err(error)) => error.kind() != BackendErrorKind::Unavailable,
                None => false,
            });
        let kind = if all - wrong.count() < majority {
            BackendErrorKind::Config
        } else {
            BackendErrorKind::Unavailable
        };
        let voters = self.names.iter().zip(&self.votes).enumerate();
        let said = voters.map(|(index, (sentinel, vote))| match vote {
            None => format!("{sentinel} did not answer"),
            Some(Err(error)) => error.to_string(),
            Some(Ok(vote)) => match (self.twin(index, vote), &vote.master) {
                (Some(twin), _) => format!("{sentinel} is the same as {}", self.names[twin]),
                (None, Some(address)) => format!("{sentinel} says {address}"),
                (None, None) => format!("{sentinel} knows no such master"),
            },
        });
        let said: Vec<_> = said.collect();
        BackendError::new(
            kind,
            format!(
                "{endpoint}: {majority} of {all} sentinels must agree on where it is, and they do \
                 not: {}",
                said.join("; ")
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::errors::Role;
    use super::super::super::names::Keyspace;
    use super::*;

    fn address(port: u16) -> Address {
        Address::at("10.0.0.1", port).expect("a port")
    }

    /// Sentinel number `id` names the server on this port.
    fn vote(id: u8, port: impl Into<Option<u16>>) -> Result<Vote, BackendError> {
        Ok(Vote {
            sentinel: Some(id.to_string()),
            master: port.into().map(address),
        })
    }

    fn silence() -> Result<Vote, BackendError> {
        Err(BackendError::unavailable("nothing heard"))
    }

    fn votes<const N: usize>(all: [Result<Vote, BackendError>; N]) -> Votes {
        let mut votes = Votes::new(
            ["a", "b", "c", "d", "e"][..N]
                .iter()
                .map(|name| format!("sentinel at {name}:26379"))
                .collect(),
        );
        for (index, vote) in all.into_iter().enumerate() {
            votes.set(index, vote);
        }
        votes
    }

    #[test]
    fn more_than_half_of_all_decide() {
        let winner = |votes: Votes| votes.winner().cloned();
        assert_eq!(
            winner(votes([vote(1, 7), vote(2, 7), silence()])),
            Some(address(7))
        );
        assert_eq!(
            winner(votes([vote(1, 8), vote(2, 7), vote(3, 7)])),
            Some(address(7))
        );
        assert_eq!(winner(votes([vote(1, 7)])), Some(address(7)));
        // Half of four is not enough, nor two of five, even though nobody contradicts.
        let four = [vote(1, 7), vote(2, 7), vote(3, 8), vote(4, 8)];
        assert_eq!(winner(votes(four)), None);
        let five = [vote(1, 7), vote(2, 7), silence(), silence(), silence()];
        assert_eq!(winner(votes(five)), None);
        assert_eq!(winner(votes([vote(1, 7), vote(2, 8), silence()])), None);
        // A sentinel that is in the URL under two names has one vote.
        assert_eq!(winner(votes([vote(1, 7), vote(1, 7), silence()])), None);
        // A sentinel that pretends to be another one does not take that one's vote away.
        assert_eq!(
            winner(votes([vote(2, 8), vote(2, 7), vote(3, 7)])),
            Some(address(7))
        );
        // Without ids, sentinels under two names cannot be detected.
        let unnamed = || {
            vote(0, 7).map(|vote| Vote {
                sentinel: None,
                ..vote
            })
        };
        assert_eq!(
            winner(votes([unnamed(), unnamed(), silence()])),
            Some(address(7))
        );
    }

    #[test]
    fn who_said_what_is_told() {
        let name = "redis master `mymaster`";
        let endpoint = Endpoint::new(Role::Master, name, Keyspace::Server, None);
        let told = |votes: Votes| {
            let error = votes.no_winner(&endpoint);
            (error.kind(), error.to_string())
        };
        let (kind, text) = told(votes([vote(1, 7), vote(2, 8), silence()]));
        assert_eq!(kind, BackendErrorKind::Unavailable);
        for said in [
            "`mymaster`",
            "2 of 3",
            "a:26379 says 10.0.0.1:7",
            "b:26379 says 10.0.0.1:8",
            "nothing heard",
        ] {
            assert!(text.contains(said), "{text}");
        }
        let (kind, text) = told(votes([vote(1, None), vote(2, None), silence()]));
        assert_eq!(kind, BackendErrorKind::Config);
        assert!(text.contains("2 of 3 sentinels know no master"), "{text}");
        let (kind, text) = told(votes([vote(1, 7), vote(1, 7), vote(1, 7)]));
        assert_eq!(kind, BackendErrorKind::Config);
        assert!(
            text.contains("b:26379 is the same as sentinel at a:26379"),
            "{text}"
        );
    }
}
