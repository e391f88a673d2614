//! How a script gets to the task that runs it, and its answer back to the caller.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::connections::Answer;
use super::database::RetryPolicy;
use super::errors::Failed;
use crate::deadline::Deadline;
use crate::engine::time::Time;

/// How long after the deadline a caller still waits for the task to report that no answer came. The
/// driver may be stuck in the operating system.
const STUCK: Duration = Duration::from_millis(20);

/// A script that is being run or waits to be sent, as its caller sees it.
pub(crate) struct Exchange {
    came: oneshot::Receiver<Came>,
    /// When the caller asked.
    pub(super) begun: Instant,
    pub(super) leave: Leave,
    /// The caller waits no longer than this.
    pub(super) limit: Deadline,
}

/// Whether a request is sent. This is decided once, by whoever comes first: the task that sends it
/// (`true`), or the caller that gives up (`false`).
#[derive(Clone, Debug, Default)]
pub(super) struct Leave(Arc<OnceLock<bool>>);

pub(super) type Came = Result<Answer, Failed>;

impl Leave {
    /// Decides to send it. `false`: the caller has given it up.
    pub(super) fn takes(&self) -> bool {
        self.0.set(true).is_ok()
    }
}

impl Exchange {
    /// A new exchange, and the sender of its answer.
    pub(super) fn new(time: &Time, deadline: Deadline) -> (oneshot::Sender<Came>, Self) {
        let (tell, came) = oneshot::channel();
        let exchange = Self {
            came,
            begun: time.now(),
            leave: Leave::default(),
            limit: Deadline::from(deadline.at(), STUCK),
        };
        (tell, exchange)
    }

    /// Gives up a request that has not been sent. `false`: it has been sent.
    pub(super) fn stays(&self) -> bool {
        !self.leave.0.get_or_init(|| false)
    }

    /// Waits for the answer. `None`: it did not come in time, and the script goes on.
    pub(super) async fn reply(&mut self, time: &Time) -> Option<Result<Came, RecvError>> {
        time.bound(self.limit, &mut self.came).await.ok()
    }

    /// Waits for the end, however long that takes. Returns whether the outcome is known.
    pub(super) async fn ends(self) -> bool {
        match self.came.await {
            Ok(Ok(_)) => true,
            Ok(Err(failed)) => failed.retry != RetryPolicy::Reconnect,
            Err(_) => false,
        }
    }
}
