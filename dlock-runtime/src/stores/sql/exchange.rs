//! The way of a script to the task that runs it, and of its answer to who waits for it.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::database::RetryPolicy;
use super::errors::Failed;
use super::lent::Lent;
use super::run::Answer;
use crate::deadline::Deadline;
use crate::engine::time::Time;

/// So long after its deadline, nobody waits any more for a script to say that there is
/// no answer: the driver may be stuck in the operating system.
const STUCK: Duration = Duration::from_millis(20);

/// A script that is being run.
pub(crate) struct Exchange {
    came: oneshot::Receiver<Came>,
    /// When it was asked for.
    pub(super) begun: Instant,
    pub(super) leave: Leave,
    /// Run by who waits for this.
    pub(super) lent: Option<Lent>,
    /// Who waits for it waits until then.
    limit: Deadline,
}

/// Whether something is sent, which is said once: `false`, it is not.
#[derive(Clone, Debug, Default)]
pub(super) struct Leave(Arc<OnceLock<bool>>);

pub(super) type Came = Result<Answer, Failed>;

impl Leave {
    /// `false`: it is not to go.
    pub(super) fn takes(&self) -> bool {
        self.0.set(true).is_ok()
    }
}

impl Exchange {
    /// One that is told its answer by the other.
    pub(super) fn new(time: &Time, deadline: Deadline) -> (oneshot::Sender<Came>, Self) {
        let (tell, came) = oneshot::channel();
        let exchange = Self {
            came,
            begun: time.now(),
            leave: Leave::default(),
            lent: None,
            limit: Deadline::from(deadline.at(), STUCK),
        };
        (tell, exchange)
    }

    /// It is not to go any more. `false`: it has gone.
    pub(super) fn stays(&self) -> bool {
        !self.leave.0.get_or_init(|| false)
    }

    /// `None`: it has no more time, and goes on.
    pub(super) async fn reply(&mut self, time: &Time) -> Option<Result<Came, RecvError>> {
        let limit = self.limit;
        time.bound(limit, self.came()).await.ok()
    }

    async fn came(&mut self) -> Result<Came, RecvError> {
        poll_fn(|cx| {
            if let Some(lent) = &self.lent {
                lent.poll(cx);
            }
            self.came.poll_unpin(cx)
        })
        .await
    }

    /// Waits for as long as it takes: whether it is known what became of it.
    pub(super) async fn ends(mut self) -> bool {
        match self.came().await {
            Ok(Ok(_)) => true,
            Ok(Err(failed)) => failed.retry != RetryPolicy::Reconnect,
            Err(_) => false,
        }
    }
}

impl Drop for Exchange {
    /// Nobody waits any more. What was begun goes on.
    fn drop(&mut self) {
        if let Some(lent) = &self.lent {
            lent.recall();
        }
    }
}
