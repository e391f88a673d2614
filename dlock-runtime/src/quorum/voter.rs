//! What a store must be able to do to be one of several.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Request;
use crate::backend::{BackendError, Mode, Owner};
use crate::deadline::Deadline;
use crate::store::{Failure, Store};

/// A store that can be one of several. Of [`Store`] it needs neither `take` nor
/// what is for waiting; its `renew` and `release` are for a vote, and so is its
/// way to follow one that was on its way when the caller left.
///
/// A release tells those who listen, but not with
/// [`Ending::Outvoted`](crate::store::Ending::Outvoted). Who is told asks all
/// voters: none of them may hand the lock on. `inspect` and `list` count the
/// processes that listen as those that wait.
pub trait Voter: Store<Record = ()> {
    /// A connection that something was sent over.
    type Connection: Send + 'static;

    /// What is listened to.
    type Listening: Default + Send + 'static;

    /// Who votes, where only the servers know it.
    fn electorate(
        voters: Vec<Self::Config>,
        request_timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Self::Config>, BackendError>> + Send {
        let _ = request_timeout;
        async { Ok(voters) }
    }

    /// What it is called in messages.
    fn place(&self) -> String;

    /// What tells it apart from all others, if it says.
    fn identity(&self, deadline: Deadline) -> impl Future<Output = Option<String>> + Send;

    /// Whether a question goes out at once, from the runtime that this is called
    /// on.
    fn is_connected(&self) -> bool;

    /// Asks for the vote: the lock on this voter, and behind it a block of token
    /// numbers; or what is there if the answer is no. [`Vote::Failed`] is for a
    /// vote that was given, but without numbers.
    fn vote(
        &self,
        request: &Request,
        deadline: Deadline,
        attempt: &mut Self::Attempt,
    ) -> impl Future<Output = Result<Vote, Failure>> + Send;

    /// Raises the token counter to `last`, if it is lower.
    fn raise(
        &self,
        last: u64,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Numbers up to this one were given: should the counter be lost, it begins
    /// above.
    fn given(&self, last: u64);

    /// Who holds these locks, each in its place.
    fn values(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Option<Holder>>, Failure>> + Send;

    /// Listens to these keys, and to no others. From then on
    /// [`Events::freed`](crate::store::Events::freed) tells of votes for them that
    /// were given back, and `missed` that it is not listened to any more.
    fn listen(
        &self,
        keys: &BTreeSet<Arc<str>>,
        listening: &mut Self::Listening,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// What the question went over that this attempt waits for. `None`: it was not
    /// sent, or is answered.
    fn asked_over(attempt: &Self::Attempt) -> Option<Self::Connection>;

    /// Sees whether it answers: over this connection, which is given up if not, or
    /// over the manager's own, which is made if there is none.
    fn ping(
        &self,
        connection: Option<&Self::Connection>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// What a voter said to a request for its vote.
#[derive(Clone, Debug)]
pub enum Vote {
    /// Yes, and the last of the token numbers it has drawn.
    Yes { last: u64 },
    /// No: this is what holds the lock there, if it has not gone since.
    No(Option<Holder>),
    /// It would not, or has not answered in time.
    Failed(BackendError),
}

/// The writer who holds a lock, or the reader who was let in last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whether it writes.
    pub mode: Mode,
    /// Who it is.
    pub owner: Owner,
}

/// Some of the voters, by their number.
pub(crate) type VoterSet = BTreeSet<usize>;
