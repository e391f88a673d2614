//! What a store must provide to be one voter of a quorum.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Request;
use crate::backend::{BackendError, LockInfo, Mode, Owner};
use crate::deadline::Deadline;
use crate::store::{Attempt, Attempted, Store};

/// A store that can be one voter of a quorum. Of [`Store`] it needs neither `take` nor the
/// methods for waiting. Its `renew` and `release` act on a vote, and its `follow` on a request
/// for a vote that was in flight when the caller left.
///
/// A release notifies the listeners, except with
/// [`Ending::Outvoted`](crate::store::Ending::Outvoted). A waiter that is notified asks all
/// voters, since none of them may hand the lock on. `inspect` and `list` count the processes that
/// listen as waiters.
pub trait Voter: Store<Record = ()> {
    /// A connection over which a question was sent.
    type Connection: Send + 'static;

    /// The state of the subscription.
    type Listening: Default + Send + 'static;

    /// The voters, if only the servers know them.
    fn electorate(
        voters: Vec<Self::Config>,
        request_timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Self::Config>, BackendError>> + Send {
        let _ = request_timeout;
        async { Ok(voters) }
    }

    /// The name of the voter in messages.
    fn place(&self) -> String;

    /// What distinguishes this server from all others, if it reports that.
    fn identity(&self, deadline: Deadline) -> impl Future<Output = Option<String>> + Send;

    /// Whether a connection is open, so that a question of the calling runtime is sent at once.
    fn is_connected(&self) -> bool;

    /// Asks for the vote: the lock on this voter and then, after it is granted, a block of token
    /// numbers. If the answer is no, returns the holder. [`Vote::Failed`] is for a vote that was
    /// granted, but without numbers.
    fn vote(
        &self,
        request: &Request,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Vote>> + Send;

    /// Raises the token counter to `last`, if it is lower.
    fn raise(&self, last: u64, deadline: Deadline) -> impl Future<Output = Attempted<()>> + Send;

    /// Notes that token numbers up to `last` have been granted. If the counter is lost, it must
    /// begin above.
    fn given(&self, last: u64);

    /// The holders of these locks, in the order of `keys`.
    fn values(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<Vec<Option<Holder>>>> + Send;

    /// The keys of the locks that begin with `prefix`, as far as this voter has them. `None`: there
    /// is more to ask, as with [`Store::list`].
    fn keys(
        &self,
        prefix: &str,
        attempt: Attempt<'_, Self>,
    ) -> impl Future<Output = Attempted<Option<BTreeSet<String>>>> + Send;

    /// What this voter knows of these locks. Those that are free are left out.
    fn look_at_each(
        &self,
        keys: &[String],
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<Vec<LockInfo>>> + Send;

    /// Listens to these keys, and to no others. From then on,
    /// [`Events::freed`](crate::store::Events::freed) reports votes for them that were given
    /// back, and `missed` reports that this voter is not listened to any more.
    fn listen(
        &self,
        keys: &BTreeSet<Arc<str>>,
        listening: &mut Self::Listening,
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<()>> + Send;

    /// The connection of the question whose answer is awaited. `None`: it was not sent, or has been
    /// answered.
    fn asked_over(notes: &Self::Notes) -> Option<Self::Connection>;

    /// Checks whether the voter answers: over this connection, which is closed if it does not, or
    /// over the manager's own, which is opened if necessary.
    fn ping(
        &self,
        connection: Option<&Self::Connection>,
        deadline: Deadline,
    ) -> impl Future<Output = Attempted<()>> + Send;
}

/// The answer of a voter to a request for its vote.
#[derive(Clone, Debug)]
pub enum Vote {
    /// Yes. `last` is the last of the token numbers it has drawn.
    Yes { last: u64 },
    /// No. The holder of the lock at this voter, if it is still there.
    No(Option<Holder>),
    /// The voter refused, or did not answer in time.
    Failed(BackendError),
}

/// The writer that holds a lock, or the reader that got it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// How it holds the lock.
    pub mode: Mode,
    /// Its owner.
    pub owner: Owner,
}

/// A set of voters, by their numbers.
pub(crate) type VoterSet = BTreeSet<usize>;
