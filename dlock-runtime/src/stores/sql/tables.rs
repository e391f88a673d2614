//! The tables of a database, and what is run on them.
//!
//! A script is run by a task of the manager's, to its end, whoever waits for it: a
//! future that is dropped in the middle of a statement would leave its connection
//! in the middle of an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::database::Database;
use super::durability::Durability;
use super::errors::{Endpoint, RetryPolicy};
use super::failed::Failed;
use super::notifications::Notifications;
use super::pooled::{Pooled, Priority};
use super::rows::{Answer, Column};
use super::script::{Args, CLEANED_EVERY, Scripts};
use crate::backend::{BackendError, Owner, TokenTier};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::in_flight::InFlight;
use crate::store::{Applied, Cause, Context, Failure, Next};

/// The task of a script tells so long after its deadline that there is no answer,
/// if the driver has not: it may be stuck in the operating system.
const STUCK: Duration = Duration::from_millis(20);

pub(super) struct Tables<D: Database> {
    pub(super) database: D,
    pub(super) pooled: Pooled<D>,
    pub(super) scripts: Scripts,
    pub(super) durability: Durability,
    pub(super) request_timeout: Duration,
    /// This backend among all that share the database.
    pub(super) process: String,
    /// Messages tell the waiters when it is their turn.
    pub(super) notified: Arc<AtomicBool>,
    /// A lock has been asked for.
    pub(super) used: Notify,
    /// Counts the scripts that are run.
    pub(super) running: InFlight,
    pub(super) time: Time,
    pub(super) events: Events,
}

/// A script that is being run.
pub(crate) struct Exchange(oneshot::Receiver<Reply>);

/// What has come of one.
pub(super) enum Reply {
    Answered(Answer),
    Failed {
        failed: Failed,
        sent_at: Instant,
    },
    /// Not yet: it comes here.
    Late(Exchange),
}

impl<D: Database> Tables<D> {
    pub(super) fn new(database: D, context: Context) -> Self {
        let request_timeout = context.request_timeout;
        let endpoint = Endpoint {
            name: database.name(),
            request_timeout,
        };
        let pool = database.pool(request_timeout);
        Self {
            durability: Durability::unknown(endpoint.clone(), D::DIALECT),
            pooled: Pooled::new(pool, endpoint),
            scripts: Scripts::new(D::DIALECT, CLEANED_EVERY, request_timeout),
            database,
            request_timeout,
            process: Owner::unique().to_string(),
            notified: Arc::default(),
            used: Notify::new(),
            running: InFlight::default(),
            time: context.time,
            events: context.events,
        }
    }

    /// What every script of this process may be given.
    pub(super) fn args(&self) -> Args<'_> {
        Args {
            process: &self.process,
            ..Args::default()
        }
    }

    /// A lock is asked for.
    pub(super) fn is_used(&self) {
        self.pooled.is_used();
        self.used.notify_one();
    }

    pub(super) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Where messages to the waiters go.
    pub(super) fn notifications(&self) -> Notifications {
        Notifications {
            endpoint: self.pooled.endpoint.clone(),
            process: self.process.clone(),
            events: self.events.clone(),
            come: Arc::clone(&self.notified),
        }
    }

    /// By when what is asked from now on is to be answered.
    pub(super) fn deadline(&self) -> Deadline {
        self.time.after(self.request_timeout)
    }

    /// Begins to run a script.
    pub(super) fn begin(
        self: &Arc<Self>,
        script: String,
        columns: &'static [Column],
        priority: Priority,
        deadline: Deadline,
    ) -> Exchange {
        let (tell, reply) = oneshot::channel();
        let (this, counted) = (Arc::clone(self), self.running.count());
        self.time.spawn(async move {
            let _counted = counted;
            let run = this.reply(&script, columns, priority, deadline);
            let mut run = std::pin::pin!(run);
            let limit = deadline.at() + STUCK;
            match tokio::time::timeout_at(limit.into(), &mut run).await {
                Ok(reply) => {
                    let _ = tell.send(reply);
                }
                Err(_) => {
                    let (tell_late, late) = oneshot::channel();
                    let _ = tell.send(Reply::Late(Exchange(late)));
                    let _ = tell_late.send(run.await);
                }
            }
        });
        Exchange(reply)
    }

    async fn reply(
        &self,
        script: &str,
        columns: &[Column],
        priority: Priority,
        deadline: Deadline,
    ) -> Reply {
        match self
            .pooled
            .run(script, columns, priority, deadline.at())
            .await
        {
            Ok(answer) => {
                self.events.heard(answer.sent_at);
                Reply::Answered(answer)
            }
            Err((failed, sent_at)) => Reply::Failed { failed, sent_at },
        }
    }

    /// Runs a script of which nothing is left to undo.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: String,
        columns: &'static [Column],
        deadline: Deadline,
    ) -> Result<Answer, Failure> {
        let exchange = self.begin(script, columns, Priority::InTurn, deadline);
        self.answer(exchange, &mut None).await
    }

    /// Waits for the answer. An exchange that has none yet stays in `in_flight`.
    pub(super) async fn answer(
        &self,
        exchange: Exchange,
        in_flight: &mut Option<Exchange>,
    ) -> Result<Answer, Failure> {
        let begun = self.time.now();
        let reply = in_flight.insert(exchange).reply().await;
        *in_flight = None;
        match reply {
            Some(Reply::Answered(answer)) => Ok(answer),
            Some(Reply::Failed { failed, sent_at }) => Err(failure(failed, sent_at)),
            Some(Reply::Late(exchange)) => {
                *in_flight = Some(exchange);
                Err(Failure {
                    cause: Cause::Silence,
                    next: Next::Pause,
                    applied: Applied::OnItsWay,
                })
            }
            None => Err(Failure {
                cause: Cause::Error(BackendError::unavailable(
                    "its thread has ended; the manager was shut down",
                )),
                next: Next::Stop,
                applied: Applied::Unknown { sent_at: begun },
            }),
        }
    }

    /// What the tokens are worth. If they are not strict it is looked at again
    /// behind this: who needs them so is refused, and would never learn that they
    /// are by now.
    pub(super) fn tokens(self: &Arc<Self>) -> TokenTier {
        let tier = self.durability.tier.get();
        if tier != TokenTier::Strict && self.durability.is_due() {
            let this = Arc::clone(self);
            self.time.spawn(async move {
                let looked = this.look_at_durability(this.deadline()).await;
                if let Err(failure) = looked
                    && let Cause::Error(error) | Cause::NotReached(error) = failure.cause
                {
                    tracing::debug!(
                        target: "dlock::store",
                        "dlock cannot look at the settings of its database: {error}"
                    );
                }
            });
        }
        tier
    }

    /// Looks at the tables and at the settings of the server, and whether the
    /// tables are those of this version.
    pub(super) async fn look_at_durability(
        self: &Arc<Self>,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let script = self.durability.script.clone();
        let answer = self.run(script, &[Column::Int; 5], deadline).await?;
        self.durability.read(&answer).map_err(Failure::refused)
    }
}

impl Exchange {
    /// `None` if the manager's thread has ended.
    pub(super) async fn reply(&mut self) -> Option<Reply> {
        (&mut self.0).await.ok()
    }

    /// Waits for as long as it takes: whether it is known what became of it.
    pub(super) async fn ends(mut self) -> bool {
        loop {
            match self.reply().await {
                Some(Reply::Late(exchange)) => self = exchange,
                Some(Reply::Answered(_)) => return true,
                Some(Reply::Failed { failed, .. }) => {
                    return failed.retry != RetryPolicy::Reconnect;
                }
                None => return false,
            }
        }
    }
}

/// What a script has failed with that was sent then.
pub(super) fn failure(failed: Failed, sent_at: Instant) -> Failure {
    Failure {
        next: match failed.retry {
            RetryPolicy::Stop => Next::Stop,
            _ => Next::Pause,
        },
        applied: match failed.retry {
            RetryPolicy::Reconnect => Applied::Unknown { sent_at },
            _ => Applied::No,
        },
        cause: failed.cause,
    }
}
